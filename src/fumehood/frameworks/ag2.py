"""Sandboxes for AG2: its shell and code tools run a model's code there.

Runs in the user's process, on the loop of the agents. `FumehoodSandbox` is a backend for both tools, each command a
process of its own; `FumehoodCodeEnvironment` is for the code tool alone and keeps variables from call to call.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from fumehood import (
    AsyncSandbox,
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    PathNotFoundError,
)
from fumehood.frameworks.needed import needed
from fumehood.llm.readable_text import unfenced
from fumehood.values.checks import check_language
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.languages import Language

with needed("ag2"):
    from ag2.tools.code.environment.base import CodeRunResult
    from ag2.tools.sandbox import ExecResult, SandboxBase

_HOME = PurePosixPath(HOME_PATH)
# What a shell answers: timed out, no such program, not to be executed.
_TIMED_OUT, _NO_PROGRAM, _NOT_EXECUTABLE = 124, 127, 126


class FumehoodSandbox(SandboxBase):
    """One sandbox, as AG2's tools take it: `SandboxShellTool(FumehoodSandbox())`.

    Args:
        sandbox: A living sandbox to use as it is. Without one, the first use makes a sandbox, which `aclose` kills.
        options: Arguments of `fumehood.AsyncSandbox`, such as *template*, *limits* and *url*.
    """

    def __init__(self, sandbox: AsyncSandbox | None = None, **options: Any) -> None:
        self._is_owner = sandbox is None
        self.sandbox = AsyncSandbox(**options) if sandbox is None else sandbox
        self._lock = asyncio.Lock()

    @property
    def workdir(self) -> PurePosixPath:
        """The working directory of commands and of relative paths."""
        return _HOME

    @property
    def host_workdir(self) -> Path | None:
        """None: files of the sandbox are in no directory of the host."""
        return None

    async def begin(self) -> AsyncSandbox:
        """Return the sandbox; start it first if none runs."""
        async with self._lock:
            return await self.sandbox.__aenter__() if self._is_owner else self.sandbox

    @asynccontextmanager
    async def open(self, context: object = None) -> AsyncGenerator[FumehoodSandbox, None]:
        """Yield this sandbox for one call of a tool; the sandbox lives on afterwards."""
        await self.begin()
        yield self

    async def exec(
        self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Run a command; standard output and standard error come back as one text, in the order of writing."""
        sandbox = await self.begin()
        pieces: list[str] = []

        try:
            await sandbox.commands.run(
                argv, envs=env, timeout=timeout, on_stdout=pieces.append, on_stderr=pieces.append
            )
        except CommandExitError as failed:
            return ExecResult("".join(pieces).strip(), failed.exit_code)
        except CommandTimeoutError as late:
            return ExecResult("".join([*pieces, "\n", late.message]).strip(), _TIMED_OUT)
        except CommandStartError as failed:
            code = _NO_PROGRAM if failed.errno == errno.ENOENT else _NOT_EXECUTABLE
            return ExecResult(failed.message, code)

        return ExecResult("".join(pieces).strip(), 0)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file below the working directory."""
        await (await self.begin()).files.write(_inside(path), content)

    async def remove_file(self, path: PurePosixPath) -> None:
        """Remove a file below the working directory, if it exists."""
        sandbox = await self.begin()

        try:
            await sandbox.files.remove(_inside(path))
        except PathNotFoundError:
            return

    async def aclose(self) -> None:
        """Kill the sandbox if it was made here."""
        if self._is_owner:
            async with self._lock:
                sandbox = await self.sandbox.__aenter__()
                await sandbox.kill()

    def __deepcopy__(self, memo: object) -> FumehoodSandbox:
        # Agents copy their tools; the sandbox stays one.
        return self


class FumehoodCodeEnvironment:
    """The code tool's environment over a `FumehoodSandbox`: variables stay from call to call.

    Args:
        sandbox: The sandbox that runs the code; a `SandboxShellTool` may share it and its files.
        timeout: Seconds of one call; `limits.wall_seconds` unless given.
        languages: The languages that the model may use, each with a context of its own; the template must support them.
    """

    def __init__(
        self,
        sandbox: FumehoodSandbox,
        *,
        timeout: float | None = None,
        languages: Sequence[Language] = ("python", "bash"),
    ) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self.supported_languages = tuple(check_language(name) for name in languages)

    async def run(self, code: str, language: Language, *, context: object = None) -> CodeRunResult:
        """Run code in the context of its language."""
        if language not in self.supported_languages:
            return CodeRunResult(
                output=f"Language {language!r} is not available: use {' or '.join(self.supported_languages)}",
                exit_code=2,
            )

        sandbox = await self._sandbox.begin()
        execution = await sandbox.run_code(unfenced(code), language=language, timeout=self._timeout)
        parts = (str(execution.logs), execution.text or "", str(execution.error or ""))
        output = "\n".join(part.strip("\n") for part in parts if part)
        late = execution.error is not None and execution.error.kind == "time_limit"
        return CodeRunResult(
            output=output, exit_code=_TIMED_OUT if late else int(execution.error is not None)
        )


def _inside(path: PurePosixPath) -> str:
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is refused: files of a tool lie below the working directory")

    return str(_HOME / path)
