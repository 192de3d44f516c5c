"""`fumehood batch`: many pieces of code from a file of JSON lines, each in a sandbox of its own.

A line of input is what `POST /v1/execute` takes, with an `id`; a line of output has that `id` and the `reply` or the
`problem`, in the order in which they end. Answers are written as they come, so that `--resume` continues an interrupted
command. Text of guests is written as JSON only, in ASCII.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from fumehood.cli.parser import Argument, Command, Option, Options, PathWord
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import counted, note, progress_bar
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.refusals import naming_arguments

if TYPE_CHECKING:
    from fumehood.api.many import Run, RunOutcome
    from fumehood.port.backend import Backend

_NAMES = {"url": "--url", "api_key": "--api-key", "concurrency": "--concurrency"}
_STANDARD = "-"
_FIELDS = (
    "code",
    "language",
    "template",
    "stdin",
    "outputs",
    "envs",
    "limits",
    "strict",
    "isolation",
    "network",
)
_OTHER_FIELDS = ("id", "files", "timeout_seconds")
# As many as a server takes in one request.
_AT_ONCE = 10_000
# Problems that the item did not cause: with `--resume` it is run again.
_PASSING = frozenset(
    {
        "capacity",
        "host_unavailable",
        "overloaded",
        "queue_timeout",
        "quota",
        "rate_limited",
        "sandbox_closed",
        "sandbox_start",
        "server_ending",
    }
)
_EXISTS = 73
_INTERRUPTED = 130


@dataclass(slots=True)
class _Counts:
    """The numbers of items: with a reply, with a problem, and answered already by an earlier run."""

    before: int = 0
    replies: int = 0
    errors: int = 0
    problems: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


def run(options: Options) -> int:
    """Run all items and return the exit code."""
    is_printed = options.output == _STANDARD

    if is_printed and options.resume:
        raise InvalidArgumentError(
            field="--resume",
            value=True,
            allowed="a file: -o OUT.jsonl",
            problem="--resume needs an output file",
        )

    if not is_printed and os.path.exists(options.output) and not options.resume:
        note(f"{options.output!r} is there already: go on in it with --resume, or name another file")
        return _EXISTS

    done = _answered(options.output) if options.resume else set()
    counts = _Counts(before=len(done))

    with ExitStack() as stack:
        source = (
            sys.stdin.buffer if options.input == _STANDARD else stack.enter_context(open(options.input, "rb"))
        )
        output = sys.stdout.buffer if is_printed else stack.enter_context(open(options.output, "ab"))

        with naming_arguments(_NAMES):
            backend = _backend(options)
            step = stack.enter_context(progress_bar(sys.stderr, "answered", _size_of(source)))

        try:
            for portion in _portions(_items(source, done), _AT_ONCE):
                with naming_arguments(_NAMES):
                    _run_portion(portion, backend, options.concurrency, output, counts, step)
        except KeyboardInterrupt:
            way_on = "" if is_printed else ". The same command with --resume goes on"
            note(f"interrupted; {_summary(counts)}{way_on}")
            return _INTERRUPTED

    note(_summary(counts))
    return 1 if counts.problems else 0


def _backend(options: Options) -> Backend | None:
    from fumehood.assemble import has_server, remote_backend

    if options.url is not None or options.api_key is not None or has_server():
        return remote_backend(options.url, options.api_key)

    return None


def _run_portion(
    portion: list[tuple[Any, Run, int]],
    backend: Backend | None,
    concurrency: int | None,
    output: BinaryIO,
    counts: _Counts,
    step: Callable[[int], None],
) -> None:
    # Imported late: `--help` needs no engine.
    from fumehood.api.many import run_many

    runs = [run for _, run, _ in portion]

    for outcome in run_many(runs, concurrency=concurrency, backend=backend):
        name, _, size = portion[outcome.index]
        # One write: a line that was interrupted in the middle is cut off by the next `--resume`.
        output.write(_line(name, outcome, counts))
        output.flush()
        step(size)


def _line(name: Any, outcome: RunOutcome, counts: _Counts) -> bytes:
    from fumehood.values.plain_data import as_data

    answer: dict[str, Any] = {"id": name}

    if (failure := outcome.failure) is not None:
        counts.problems += 1
        counts.kinds[failure.code] = counts.kinds.get(failure.code, 0) + 1
        answer["problem"] = _problem(failure)
    else:
        counts.replies += 1
        counts.errors += outcome.execution.error is not None
        answer["reply"] = {
            "execution": as_data(outcome.execution),
            "isolation": as_data(outcome.isolation),
            "files": as_data(outcome.files),
            "skipped": as_data(outcome.skipped),
        }

    return json.dumps(answer).encode() + b"\n"


def _problem(failure: FumehoodError) -> dict[str, Any]:
    return {
        "code": failure.code,
        "detail": failure.message,
        "hint": failure.hint,
        "outcome_unknown": failure.outcome_unknown,
    }


# -- the input


def _items(source: BinaryIO, done: set[str]) -> Iterator[tuple[Any, Run, int]]:
    """Yield the items that have no answer yet: the id, the run, and the bytes of its line."""
    seen: set[str] = set()
    passed_over = 0

    for number, line in enumerate(source, 1):
        if not line.strip():
            continue

        where = f"line {number}"
        fields = _object(line, where)
        name = fields.get("id", number)
        key = json.dumps(name)

        if key in seen:
            raise InvalidArgumentError(field=where, value=name, allowed="an `id` that no line before has")

        seen.add(key)

        if key in done:
            passed_over += len(line)
            continue

        with naming_arguments({name: f"{where}: {name}" for name in (*_FIELDS, *_OTHER_FIELDS)}):
            yield name, _run_of(fields, where), len(line) + passed_over

        passed_over = 0


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None

    if not isinstance(fields, dict):
        shown = line[:80].decode("utf-8", "replace")
        raise InvalidArgumentError(
            field=where, value=shown, allowed='a JSON object such as {"code": "1 + 1"}'
        )

    known = (*_FIELDS, *_OTHER_FIELDS)

    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgumentError(
                field=where, value=name, allowed=f"the names {', '.join(known)}{meant}"
            )

    if not isinstance(fields.get("code"), str):
        raise InvalidArgumentError(
            field=f"{where}: code", value=fields.get("code"), allowed="the code, as text"
        )

    return fields


def _run_of(fields: Mapping[str, Any], where: str) -> Run:
    from fumehood.api.many import Run, request_of

    given = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    limits = dict(given.get("limits", {}))

    if fields.get("timeout_seconds") is not None:
        limits["wall_seconds"] = fields["timeout_seconds"]

    files = fields.get("files") or {}
    run = Run(
        **{**given, "limits": limits or None},
        files={path: _content(path, content, where) for path, content in files.items()},
    )
    # A refusal names the number of the line, and comes before any item of the portion is begun.
    request_of(run)
    return run


def _content(path: str, content: Any, where: str) -> bytes | str:
    if isinstance(content, str):
        return content

    if isinstance(content, dict) and isinstance(text := content.get("text"), str):
        return text

    try:
        return base64.b64decode(content["base64"], validate=True)
    except (TypeError, KeyError, ValueError, binascii.Error):
        raise InvalidArgumentError(
            field=f"{where}: files[{path!r}]", value=content, allowed='{"text": ...} or {"base64": ...}'
        ) from None


def _portions(items: Iterator[tuple[Any, Run, int]], count: int) -> Iterator[list[tuple[Any, Run, int]]]:
    while portion := list(islice(items, count)):
        yield portion


# -- the output


def _answered(path: str) -> set[str]:
    """Return the ids that have an answer, as JSON; removes temporary problems and a torn last line from the file."""
    if not os.path.exists(path):
        return set()

    done: set[str] = set()
    draft = f"{path}.draft"

    with open(path, "rb") as old, open(draft, "wb") as new:
        for line in old:
            try:
                answer = json.loads(line)
                key, code = json.dumps(answer["id"]), answer.get("problem", {}).get("code")
            except (ValueError, TypeError, KeyError, AttributeError):
                # The line was cut off by an interruption: its item has no answer.
                continue

            if code not in _PASSING and key not in done:
                done.add(key)
                new.write(line if line.endswith(b"\n") else line + b"\n")

    os.replace(draft, path)
    return done


def _summary(counts: _Counts) -> str:
    parts = [counted(counts.replies, "reply", "replies")]

    if counts.errors:
        parts.append(f"{counts.errors:,} of them of code that failed")

    if counts.problems:
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.kinds.items()))
        parts.append(f"{counted(counts.problems, 'problem')} ({kinds})")

    if counts.before:
        parts.append(f"{counts.before:,} answered before")

    return ", ".join(parts)


def _size_of(source: BinaryIO) -> int | None:
    """Return the size of the input in bytes; None if it is empty or not a regular file."""
    status = os.fstat(source.fileno())
    return status.st_size or None


BATCH = Command(
    "batch",
    run,
    brief="run many pieces of code from a file of JSON lines",
    about="Run each line of a file, a JSON object with `code`, in a sandbox of its own, and print the answers, or "
    "write them to another file, as they come. Without a server it runs them here, on all processors.",
    epilog="A line takes what `POST /v1/execute` takes: code, language, stdin, files, outputs, envs, limits, "
    "timeout_seconds, template, strict, isolation, network; and an `id`, which its answer has too (default: the number "
    "of the line). exit code: 0; 1 when an item has a problem in place of a reply; 64 for a wrong argument or line, "
    "73 when the output is there already, 130 when it was interrupted",
    params=[
        Argument("input", metavar="IN.jsonl", type=PathWord(), about="the items; - for standard input"),
        Option(
            ["-o", "--output"],
            default=_STANDARD,
            metavar="OUT.jsonl",
            type=PathWord(),
            help="where answers go (default: -, standard output)",
        ),
        Option(
            ["--resume"],
            is_flag=True,
            help="go on in an output that is there: what has an answer is not run again, but for what failed by "
            "no fault of its own, such as a server that was full",
        ),
        Option(
            ["--concurrency"],
            type=click.INT,
            metavar="N",
            help="how many run at once (default: twice the processors here, what the server allows there)",
        ),
        *SERVER_OPTIONS,
    ],
)
