"""A sandbox as the backend of a deep agent: `create_deep_agent(..., backend=FumehoodSandbox())`.

Runs in the agent's process; the synchronous verbs block their thread, and deepagents runs the asynchronous ones in
threads of its own. Commands and files of the agent's tools are those of one sandbox: no file of the agent's machine is
read or written here.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from fumehood import (
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    FileError,
    InvalidArgumentError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
    PathNotFoundError,
    PathPermissionError,
    Sandbox,
)
from fumehood.frameworks.needed import needed

with needed("deepagents"):
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileOperationError,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox

# The shell that `commands.run` gives a line to, with both streams in one, in the order in which they were written.
_SHELL = ("/bin/bash", "-l", "-c", 'exec 2>&1; eval "$1"', "bash")
# What `timeout` of coreutils answers, and a shell that cannot start a program.
_TIMED_OUT, _NOT_STARTED = 124, 126

_WORDS: tuple[tuple[type[Exception], FileOperationError], ...] = (
    (PathNotFoundError, "file_not_found"),
    (PathPermissionError, "permission_denied"),
    (PathIsDirectoryError, "is_directory"),
    (PathNotDirectoryError, "invalid_path"),
    (PathExistsError, "invalid_path"),
    (InvalidArgumentError, "invalid_path"),
)


class FumehoodSandbox(BaseSandbox):
    """One sandbox, as deepagents uses it: `execute`, and files by `ls`, `read_file`, `edit_file` and their kin.

    Args:
        sandbox: A living sandbox, which stays yours. Without one a sandbox is made here, which `close()` kills.
        timeout: Seconds of a command without a timeout of its own; `limits.wall_seconds` unless given.
        options: Arguments of `fumehood.Sandbox`, such as *template*, *limits* and *url*, when one is made here.
    """

    def __init__(
        self, sandbox: Sandbox | None = None, *, timeout: float | None = None, **options: Any
    ) -> None:
        if sandbox is not None and options:
            raise InvalidArgumentError(
                field="options", value=options, allowed="nothing when a sandbox is given"
            )

        self.sandbox = Sandbox(**options) if sandbox is None else sandbox
        self._is_owner = sandbox is None
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The name of the sandbox."""
        return self.sandbox.id

    def close(self) -> None:
        """Kill the sandbox, if it was made here."""
        if self._is_owner:
            self.sandbox.kill()

    def __enter__(self) -> FumehoodSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line of shell; exit code 124 means that it timed out."""
        seconds = self._timeout if timeout is None else timeout

        try:
            result = self.sandbox.commands.run([*_SHELL, command], timeout=seconds)
        except CommandExitError as error:
            return ExecuteResponse(
                output=error.stdout, exit_code=error.exit_code, truncated=error.is_truncated
            )
        except CommandTimeoutError as error:
            return ExecuteResponse(
                output=f"{error.stdout}\n[killed: {error.timeout_seconds:g} s are over]", exit_code=_TIMED_OUT
            )
        except CommandStartError as error:
            return ExecuteResponse(output=error.message, exit_code=_NOT_STARTED)

        return ExecuteResponse(output=result.stdout, exit_code=0, truncated=bool(result.truncated))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files and their parent directories; returns a result for each."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; returns a result for each."""
        return [self._read(path) for path in paths]

    def _write(self, path: str, content: bytes) -> str | None:
        try:
            self.sandbox.files.write(path, content)
        except (FileError, InvalidArgumentError) as error:
            return _word_for(error)

        return None

    def _read(self, path: str) -> FileDownloadResponse:
        try:
            content = self.sandbox.files.read(path, format="bytes")
        except (FileError, InvalidArgumentError) as error:
            return FileDownloadResponse(path=path, error=_word_for(error))

        return FileDownloadResponse(path=path, content=content)


def _word_for(error: FileError | InvalidArgumentError) -> str:
    return next((word for kind, word in _WORDS if isinstance(error, kind)), error.message)
