"""Judging: one program, many inputs, a verdict for each.

Plain values of the host process, used on both sides of the port. The expected output never enters a sandbox: outputs
are compared here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_integer, check_program_language, check_text
from fumehood.values.limits import Usage, check_seconds
from fumehood.values.requests import MAX_STDIN_BYTES
from fumehood.values.sandbox import NOTHING_CUT, Truncation

Verdict = Literal["accepted", "wrong_answer", "time_limit", "memory_limit", "runtime_error"]

DEFAULT_CASE_SECONDS = 10.0
_MAX_CODE_BYTES = 1 * MIB
_MAX_CASES = 10_000
_CASES = "pairs of texts: what the program reads, and what it should print"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """A program to run once for each input.

    Attributes:
        code: The program; one in Python runs as `__main__`.
        stdins: The standard input of each run.
        wall_seconds: Time of each run.
        memory_bytes: The memory of each run beyond that of the interpreter and the imports, or the memory of a
            program in another language; None: the limit of the sandbox.
        concurrency: How many runs may be active at once; None: as many as the sandbox has processors.
        language: Its language, by a name or an alias.
    """

    code: str
    stdins: tuple[str, ...]
    wall_seconds: float = DEFAULT_CASE_SECONDS
    memory_bytes: int | None = None
    concurrency: int | None = None
    language: str = "python"

    def __post_init__(self) -> None:
        object.__setattr__(self, "language", check_program_language(self.language))
        check_text("code", self.code, max_bytes=_MAX_CODE_BYTES, empty=True)
        check_seconds("timeout", self.wall_seconds, high=86_400)

        if not isinstance(self.stdins, tuple) or not len(self.stdins) <= _MAX_CASES:
            raise InvalidArgumentError(
                field="cases", value=self.stdins, allowed=f"at most {_MAX_CASES:,} cases"
            )

        for stdin in self.stdins:
            check_text("stdin", stdin, max_bytes=MAX_STDIN_BYTES, empty=True, nul=True)

        if self.memory_bytes is not None:
            check_integer("memory_bytes", self.memory_bytes, low=1 * MIB, high=2**50)

        if self.concurrency is not None:
            check_integer("concurrency", self.concurrency, low=1, high=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """The result of one run.

    Attributes:
        stdout: Its standard output, up to `limits.stdout_bytes`.
        stderr: Its standard error.
        error: The error that ended it, as text, or empty.
        kind: How it ended: ok, time_limit, memory_limit or runtime_error.
        usage: Its resource usage.
        truncated: How much of its output was cut off.
    """

    stdout: str
    stderr: str = ""
    error: str = ""
    kind: Literal["ok", "time_limit", "memory_limit", "runtime_error"] = "ok"
    usage: Usage = field(default_factory=Usage)
    truncated: Truncation = NOTHING_CUT


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case, judged.

    Attributes:
        verdict: accepted, wrong_answer, time_limit, memory_limit or runtime_error. Output that was cut off is never
            accepted.
        run: The run of the program.
    """

    verdict: Verdict
    run: CaseRun


def checked_cases(cases: object) -> list[tuple[str, str]]:
    """Return the input and the expected output of each case.

    Raises:
        InvalidArgumentError: A case is not a pair of texts.
    """
    if not isinstance(cases, Iterable):
        raise InvalidArgumentError(field="cases", value=cases, allowed=_CASES)

    return [_checked(case) for case in cases]


def _checked(case: object) -> tuple[str, str]:
    if isinstance(case, (tuple, list)) and [type(part) for part in case] == [str, str]:
        return case[0], case[1]

    raise InvalidArgumentError(field="cases", value=case, allowed=_CASES)


def judged(run: CaseRun, expected: str) -> CaseResult:
    """Compare a program's output with the expected one: line by line, without the space at the ends."""
    if run.kind != "ok":
        return CaseResult(verdict=run.kind, run=run)

    # Output that was cut off may be right or wrong.
    is_right = not run.truncated.stdout_bytes and _lines(run.stdout) == _lines(expected)
    return CaseResult(verdict="accepted" if is_right else "wrong_answer", run=run)


def _lines(text: str) -> Sequence[str]:
    # Other characters that some programs take for line ends are compared like any character.
    return [line.rstrip() for line in text.rstrip().split("\n")]
