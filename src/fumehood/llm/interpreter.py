"""`AsyncCodeInterpreter` and `CodeInterpreter`: one live sandbox as a tool that a model can call.

Runs in the host process, over the public sandbox. Calls are answered one after the other, each with text that a model
can act on: code that fails, a sandbox that has died and arguments that are none are results and no exceptions. The
synchronous class is one line a verb over the asynchronous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from fumehood import (
    AsyncSandbox,
    Execution,
    InvalidArgumentError,
    Limits,
    ProtocolViolationError,
    Result,
    Sandbox,
    SandboxClosedError,
    SandboxNotFoundError,
    Template,
)
from fumehood.llm.file_changes import FileChanges
from fumehood.llm.hints import Surroundings
from fumehood.llm.hooks import Scan, WrapOutput, reason_to_refuse, wrapped
from fumehood.llm.images import ImageBounds
from fumehood.llm.result import ToolFile, ToolResult
from fumehood.llm.shaping import Shape, list_files, tell
from fumehood.llm.tenure import Tenure, require_option, sync_face
from fumehood.portal import Turn, call

_MAX_FILES = 20
_MAX_HINTED_FILES = 10
_ENDED = (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError)


class AsyncCodeInterpreter:
    """A code interpreter for a model, for asyncio; described at `CodeInterpreter`."""

    def __init__(
        self,
        sandbox: AsyncSandbox | Sandbox | None = None,
        *,
        template: str | Template | None = None,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        network: object = None,
        url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approve: Callable[..., Any] | None = None,
        max_text_chars: int = 20_000,
        max_images: int = 4,
        max_image_bytes: int = 1 << 20,
        transactional: bool = False,
        scan: Scan | None = None,
        wrap_output: WrapOutput | None = None,
        publish: Any = None,
    ) -> None:
        self._tenure = Tenure(
            sandbox,
            {
                "template": template,
                "limits": limits,
                "envs": envs,
                "network": network,
                "url": url,
                "api_key": api_key,
            },
        )
        self._run_options = _run_options(
            {"timeout": timeout, "tools": tools, "approve": approve, "transactional": transactional or None}
        )
        self._shape = Shape(
            _at_least("max_text_chars", max_text_chars, 500),
            ImageBounds(
                _at_least("max_images", max_images, 0), _at_least("max_image_bytes", max_image_bytes, 0)
            ),
        )
        self._scan, self._wrap_output, self._publish = scan, wrap_output, publish
        self._changes = FileChanges()
        self._lock = asyncio.Lock()

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox as it is now; another one after it has died and was replaced."""
        return self._tenure.current

    async def __aenter__(self) -> AsyncCodeInterpreter:
        await self._tenure.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill the sandbox if it was made here."""
        await self._tenure.end()

    async def run(
        self,
        code: str,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> ToolResult:
        """Run code as one call of the tool; the callbacks hear what happens as it happens."""
        reason = await reason_to_refuse(self._scan, code)

        if reason:
            text = f"The code was not run: {reason}.\nHint: solve the task in another way, without what was refused."
            return ToolResult(text=text, is_error=True, blocked_by=reason)

        async with self._lock:
            return await self._run(
                code, {"on_stdout": on_stdout, "on_stderr": on_stderr, "on_result": on_result}
            )

    async def _run(self, code: str, callbacks: Mapping[str, Any]) -> ToolResult:
        sandbox = await self._tenure.begin()

        try:
            if not self._changes.is_begun:
                await self._changes.look(sandbox)

            execution = await sandbox.run_code(code, **self._run_options, **callbacks)
            files = await self._changes.look(sandbox)
        except _ENDED as error:
            return await self._after_the_end(error)

        listed = await self._published(sandbox, files[:_MAX_FILES])
        return await self._result(execution, code, listed, len(files) - len(listed))

    async def _result(
        self, execution: Execution, code: str, files: list[ToolFile], more_files: int
    ) -> ToolResult:
        told = tell(execution, code, self._shape, self._surroundings(), list_files(files, more_files))
        return ToolResult(
            text=await wrapped(self._wrap_output, told.text),
            images=told.images,
            files=tuple(files),
            is_error=execution.error is not None,
            execution=execution,
            state_lost=execution.state_lost,
        )

    async def _after_the_end(self, error: Exception) -> ToolResult:
        """What a model is told when the sandbox has ended: nothing is left, and how it goes on."""
        self._changes = FileChanges()
        text = f"{getattr(error, 'message', error)}. All variables and files are lost"

        if await self._tenure.replace():
            text += (
                ", and this code may not have been run to its end.\nHint: a fresh sandbox is ready for the next call. "
                "Import, load and define again what you need; uploaded files have to be uploaded again."
            )
        else:
            text += (
                ".\nHint: tell the user that the sandbox is gone; further calls will fail in the same way."
            )

        return ToolResult(text=text, is_error=True, state_lost=True)

    async def _published(self, sandbox: AsyncSandbox, files: list[ToolFile]) -> list[ToolFile]:
        return files

    def _surroundings(self) -> Surroundings:
        return Surroundings(files=self._changes.paths[:_MAX_HINTED_FILES])


class CodeInterpreter:
    """A code interpreter for a model: one live sandbox, and answers that a model can act on.

    Args:
        sandbox: One of yours, which stays yours; without it one is made at first use and killed by `close()`.
        template: What a sandbox that is made here starts from; so for `limits`, `envs`, `network`, `url` and `api_key`.
        limits: What it may use.
        envs: Environment of everything that runs in it.
        network: What of the network it may reach.
        url: Address of a server that keeps it.
        api_key: A key of that server.
        timeout: Seconds of one call; `limits.wall_seconds` unless given.
        tools: Functions of yours that the code may call, by name.
        approve: Asked before each call of one of them.
        max_text_chars: Characters of the text of one call.
        max_images: Pictures of one call.
        max_image_bytes: Bytes of one picture.
        transactional: Undo what a call did when it fails.
        scan: Looks at the code before it runs; what it blocks, or fails at, is not run.
        wrap_output: Makes the last change to the text of a call.
        publish: Makes new files available to the user.
    """

    def __init__(
        self,
        sandbox: Sandbox | AsyncSandbox | None = None,
        *,
        template: str | Template | None = None,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        network: object = None,
        url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approve: Callable[..., Any] | None = None,
        max_text_chars: int = 20_000,
        max_images: int = 4,
        max_image_bytes: int = 1 << 20,
        transactional: bool = False,
        scan: Scan | None = None,
        wrap_output: WrapOutput | None = None,
        publish: Any = None,
    ) -> None:
        self._twin = AsyncCodeInterpreter(
            sandbox,
            template=template,
            limits=limits,
            envs=envs,
            network=network,
            url=url,
            api_key=api_key,
            timeout=timeout,
            tools=tools,
            approve=approve,
            max_text_chars=max_text_chars,
            max_images=max_images,
            max_image_bytes=max_image_bytes,
            transactional=transactional,
            scan=scan,
            wrap_output=wrap_output,
            publish=publish,
        )

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox as it is now, made if there is none yet; another one after it has died and was replaced."""
        return sync_face(call(self._twin._tenure.begin))

    def __enter__(self) -> CodeInterpreter:
        call(self._twin.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the sandbox if it was made here."""
        call(self._twin.close)

    def run(
        self,
        code: str,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> ToolResult:
        """Run code as one call of the tool; what it defines is there in the next one.

        Code that fails, or that the scan refuses, and a sandbox that has died give a result with `is_error`. The
        callbacks hear what happens as it happens, as those of `Sandbox.run_code` do.

        Raises:
            SandboxStartError: No sandbox can be made.
        """
        turn = Turn()
        return turn.call(
            self._twin.run,
            code,
            on_stdout=turn.relay(on_stdout),
            on_stderr=turn.relay(on_stderr),
            on_result=turn.relay(on_result),
        )


def _run_options(options: Mapping[str, object]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}

    for name, value in given.items():
        require_option(AsyncSandbox.run_code, name, value)

    return given


def _at_least(field: str, value: object, low: int) -> int:
    if type(value) is not int or value < low:
        raise InvalidArgumentError(field=field, value=value, allowed=f"a whole number from {low:,}")

    return value
