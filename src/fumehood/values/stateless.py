"""Stateless runs: one request with code and files, run in a sandbox of its own, and its output files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_integer, check_path
from fumehood.values.execution import Execution
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.sandbox import Isolation

DEFAULT_OUTPUT_BYTES = 32 * MIB
MAX_STATELESS_FILES = 1000
_MAX_FILES_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessRequest:
    """The code, the sandbox and the files of a stateless run.

    Attributes:
        spec: The sandbox.
        code: The code.
        stdin: The standard input, from which `input()` reads; None: the `stdin` of `code`.
        files: Content by path, written before the code runs.
        outputs: Paths of files, or of directories for all files below them, that are read after the code has run;
            missing ones are left out.
        max_output_bytes: How many bytes of output files at most; files that do not fit are named in
            `StatelessReply.skipped`.
    """

    spec: SandboxSpec
    code: ExecuteRequest
    stdin: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES

    def __post_init__(self) -> None:
        check_integer("max_output_bytes", self.max_output_bytes, low=0, high=_MAX_FILES_BYTES)

        if self.code.allow_input:
            raise InvalidArgumentError(
                field="allow_input",
                value=True,
                allowed="False here, where no caller can answer: give `stdin`",
            )

        if self.code.tools:
            raise InvalidArgumentError(
                field="tools",
                value=[tool.name for tool in self.code.tools],
                allowed="() here, where no caller can answer a call",
            )

        if self.code.ask_commit:
            raise InvalidArgumentError(
                field="ask_commit", value=True, allowed="False here, where no caller can decide"
            )

        # The bounds of the input are those of the code's request.
        self.whole_code()

        if len(self.files) > MAX_STATELESS_FILES or len(self.outputs) > MAX_STATELESS_FILES:
            raise InvalidArgumentError(
                field="files", value=len(self.files), allowed=f"at most {MAX_STATELESS_FILES} files"
            )

        for path in (*self.files, *self.outputs):
            check_path("files", path)

        if (size := sum(map(len, self.files.values()))) > _MAX_FILES_BYTES:
            raise InvalidArgumentError(
                field="files", value=f"{size} bytes", allowed=f"at most {_MAX_FILES_BYTES} bytes"
            )

    def whole_code(self) -> ExecuteRequest:
        """Return the execution request with the standard input set."""
        return self.code if self.stdin is None else replace(self.code, stdin=self.stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessReply:
    """The result of a stateless run.

    Attributes:
        execution: The record of the execution.
        isolation: The isolation of its sandbox.
        files: The content of the `outputs` by path; for a file below a directory, the directory's path as given,
            followed by the path in it.
        skipped: Paths of `outputs` that did not fit, or could not be read.
    """

    execution: Execution
    isolation: Isolation
    files: Mapping[str, bytes] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
