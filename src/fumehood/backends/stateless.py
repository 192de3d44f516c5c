"""One piece of code in a sandbox of its own, as one request: files in, code, files out.

Used on both sides of the port. `run_once` is the whole life of such a sandbox, told over the verbs of any
backend; a backend that can do it in one go (a server elsewhere) overrides `Backend.run_once` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.backends.requests import ExecuteRequest, SandboxSpec, check_path
from fumehood.errors import InvalidArgumentError
from fumehood.execution import Execution
from fumehood.limits import MIB
from fumehood.models import Isolation

_MAX_FILES = 1000
_MAX_FILES_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessRequest:
    """What to run, in what, with which files.

    Attributes:
        spec: The sandbox.
        code: What runs in it.
        stdin: Lines that `input()` and the standard input get; None: there is no input.
        files: Content by path, written before the code runs.
        outputs: Paths of files, or of directories, that are read after it has run; what is not there is left out.
        max_output_bytes: How much of them at most; what does not fit is named in `StatelessReply.skipped`.
    """

    spec: SandboxSpec
    code: ExecuteRequest
    stdin: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    max_output_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        if len(self.files) > _MAX_FILES or len(self.outputs) > _MAX_FILES:
            raise InvalidArgumentError(
                field="files", value=len(self.files), allowed=f"at most {_MAX_FILES} files"
            )

        for path in (*self.files, *self.outputs):
            check_path("files", path)

        if (size := sum(map(len, self.files.values()))) > _MAX_FILES_BYTES:
            raise InvalidArgumentError(
                field="files", value=f"{size} bytes", allowed=f"at most {_MAX_FILES_BYTES} bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessReply:
    """What it did.

    Attributes:
        execution: The record of the execution.
        isolation: What stood between it and the host.
        files: Content by path, of what `outputs` named.
        skipped: Paths that `outputs` named and that did not fit.
    """

    execution: Execution
    isolation: Isolation
    files: Mapping[str, bytes] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
