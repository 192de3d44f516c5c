"""A sandbox as a workspace of Pydantic AI: `agent.run(..., workspace=FumehoodWorkspace())`.

Runs in the user's process, on the loop of the agent. It keeps the contract of workspace backends, whose own
conformance suite is among our tests: nothing is done before the first use, a ref leads back to the sandbox, the end of
a run ends nothing. The creator of the workspace kills it.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fumehood import (
    AsyncSandbox,
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    FileInfo,
    InvalidArgumentError,
    PathExistsError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.cancellation import wait_shared
from fumehood.frameworks.needed import needed

with needed("pydantic-ai"):
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        WorkspaceCommand,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )

PROVIDER = "fumehood"
# A command has no end of time but the one that is asked for.
_LONGEST_SECONDS = 86_400 * 365
# What a shell answers when there is no such program, and when it may not be run.
_NO_PROGRAM, _NOT_EXECUTABLE = 127, 126


class FumehoodWorkspace:
    """A workspace whose commands and files are those of one sandbox.

    Args:
        sandbox: A living sandbox to use as it is. Without one, the first use makes a sandbox, which `kill` ends.
        ref: The `ref` of an earlier workspace, to continue in its sandbox.
        options: Arguments of `fumehood.AsyncSandbox`, such as *template*, *limits*, *timeout* and *url*; with a ref,
            where it lives: *url* and *api_key*.
    """

    def __init__(
        self, sandbox: AsyncSandbox | None = None, *, ref: WorkspaceRef | None = None, **options: Any
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is none of {PROVIDER!r}")

        if sandbox is not None and options:
            raise InvalidArgumentError(
                field="options", value=options, allowed="nothing when a sandbox is given"
            )

        self._ref = WorkspaceRef(provider=PROVIDER, id=sandbox.id) if sandbox is not None else ref
        self._is_lent = sandbox is not None
        self._options = options
        self._sandbox = sandbox
        self._opening: asyncio.Task[AsyncSandbox] | None = None
        self._home = ""

    @property
    def ref(self) -> WorkspaceRef | None:
        """The name of the sandbox, once there is one."""
        return self._ref

    async def kill(self) -> None:
        """End the sandbox that was made here or that the ref names; a borrowed sandbox is left alone."""
        if self._opening is not None and _is_of_this_loop(self._opening):
            await asyncio.wait([self._opening])

        if self._is_lent or self._ref is None:
            return

        with suppress(WorkspaceUnavailableError), _unavailable_when_gone():
            await (await self._open()).kill()

    async def working_dir(self) -> str:
        """Return the directory in which commands start."""
        if not self._home:
            self._home = (await self.run(["pwd", "-P"])).stdout.removesuffix("\n")

        with _unavailable_when_gone():
            await (await self._open()).get_info()

        return self._home

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its end."""
        if isinstance(command, str) != shell:
            raise TypeError("a line of text needs shell=True, a program with its arguments needs shell=False")

        seconds = _LONGEST_SECONDS if timeout is None else timeout

        with _unavailable_when_gone():
            sandbox = await self._open()

            try:
                result = await sandbox.commands.run(command, envs=env, timeout=seconds)
                code, out, err, is_cut = 0, result.stdout, result.stderr, bool(result.truncated)
            except CommandExitError as error:
                code, out, err, is_cut = error.exit_code, error.stdout, error.stderr, error.is_truncated
            except CommandStartError as error:
                code = _NO_PROGRAM if error.errno == errno.ENOENT else _NOT_EXECUTABLE
                return CommandResult(exit_code=code, stdout="", stderr=error.message)
            except CommandTimeoutError as error:
                raise WorkspaceTimeoutError(str(error), stdout=error.stdout, stderr=error.stderr) from error

        if is_cut:
            raise WorkspaceOutputLimitError(
                "the command wrote more than is kept; `limits.stdout_bytes` allows more",
                limit=(await sandbox.get_info()).limits.stdout_bytes,
                stdout=out,
                stderr=err,
            )

        return CommandResult(exit_code=code, stdout=out, stderr=err)

    async def read_bytes(self, path: str) -> bytes:
        """Read a file."""
        with _unavailable_when_gone():
            return await (await self._open()).files.read(path, format="bytes")

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file and make its parents; a link is followed to its target."""
        # A write of ours puts a new file in the place of the old one, whatever that one allowed.
        if (await self.run(["sh", "-c", '[ ! -e "$1" ] || [ -w "$1" ]', "sh", path])).exit_code != 0:
            raise PermissionError(errno.EACCES, "the file may not be written", path)

        with _unavailable_when_gone():
            try:
                await (await self._open()).files.write(await self.realpath(path), data)
            except PathExistsError as error:
                raise NotADirectoryError(
                    errno.ENOTDIR, "a file is where a directory is needed", path
                ) from error

    async def stat(self, path: str) -> FileEntry:
        """Describe a file or directory."""
        with _unavailable_when_gone():
            found = await (await self._open()).files.get_info(path)

        if found.type == "symlink":
            raise FileNotFoundError(errno.ENOENT, "the link leads nowhere", path)

        return _entry(found, path)

    async def list_dir(self, path: str) -> list[FileEntry]:
        """List a directory."""
        with _unavailable_when_gone():
            return [_entry(found, found.path) for found in await (await self._open()).files.list(path)]

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""
        with _unavailable_when_gone():
            if not await (await self._open()).files.make_dir(path) and not (await self.stat(path)).is_dir:
                raise FileExistsError(errno.EEXIST, "something else is there", path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its content; never the working directory."""
        home, parent = await self.working_dir(), await self.realpath(posixpath.dirname(path))
        target = posixpath.normpath(posixpath.join(parent, posixpath.basename(path)))

        if posixpath.commonpath([home, target]) == target:
            raise ValueError(f"{path!r} holds the working directory, which is not removed")

        with _unavailable_when_gone():
            await (await self._open()).files.remove(path)

    async def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False

        return True

    async def realpath(self, path: str) -> str:
        """Return a path with its links resolved; its last parts need not exist."""
        result = await self.run(["realpath", "-mz", "--", path])

        if result.exit_code != 0:
            raise OSError(errno.ELOOP, result.stderr.strip(), path)

        return str(result.stdout).removesuffix("\0")

    async def _open(self) -> AsyncSandbox:
        if self._sandbox is None:
            # One task for all concurrent callers; it continues when they are cancelled, so that no sandbox is lost.
            if self._opening is None or self._opening.done() or not _is_of_this_loop(self._opening):
                self._opening = asyncio.create_task(self._start())

            return await wait_shared(self._opening)

        return self._sandbox

    async def _start(self) -> AsyncSandbox:
        if self._ref is None:
            sandbox = await AsyncSandbox.create(**self._options)
        else:
            sandbox = await AsyncSandbox.connect(self._ref.id, **self._options)

        self._sandbox = sandbox
        self._ref = WorkspaceRef(provider=PROVIDER, id=sandbox.id)
        return sandbox


def _is_of_this_loop(task: asyncio.Task[Any]) -> bool:
    return task.get_loop() is asyncio.get_running_loop()


def _entry(found: FileInfo, path: str) -> FileEntry:
    is_dir = found.type == "dir"
    name = posixpath.basename(path)
    return FileEntry(name=name, path=path, is_dir=is_dir, size=None if is_dir else found.size_bytes)


@contextmanager
def _unavailable_when_gone() -> Iterator[None]:
    try:
        yield
    except (ProtocolViolationError, SandboxClosedError, SandboxNotFoundError) as error:
        raise WorkspaceUnavailableError(str(error)) from error
