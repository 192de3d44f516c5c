"""`AsyncSandbox`: what the user holds, for asyncio.

This is the one implementation: it turns the public verbs into calls of the backend port and nothing else. `Sandbox`
is its synchronous async version, where the verbs are described; a test compares the two name by name.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fumehood.api.audit import AsyncAuditing, AsyncSecurityCallback, follow_security_events
from fumehood.api.commands import AsyncCommands
from fumehood.api.files import AsyncFilesystem
from fumehood.api.handle import SandboxHandle, default_backend, named_backend
from fumehood.api.pty import AsyncPty
from fumehood.api.time_travel import AsyncForking, AsyncSaving, AsyncTimeTravel
from fumehood.api.tools import AsyncToolCallback, ToolRunner, Tools, ready_tools
from fumehood.errors import NoHostNameError, ProtocolViolationError, SandboxClosedError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.portal import check_callbacks, notify
from fumehood.values.checks import check_text
from fumehood.values.events import (
    CommitRequestEvent,
    ErrorEvent,
    Event,
    ExecutionFinished,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.values.execution import Changes, Execution, ExecutionError, Record
from fumehood.values.limits import Limits, check_seconds
from fumehood.values.network import EgressRecord, NetworkChoice, read_network
from fumehood.values.requests import (
    CommitAnswer,
    CreateContext,
    ExecuteRequest,
    InputAnswer,
    ListContexts,
    RemoveContext,
    RestartContext,
    SandboxSpec,
)
from fumehood.values.results import Result
from fumehood.values.sandbox import ContextInfo, IsolationLevel, Metrics, SandboxInfo, TimeoutAction
from fumehood.values.security import SecurityRule, SecuritySettings
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.notebook.reading import NotebookSource

Language: TypeAlias = Literal["python", "bash"]
Context: TypeAlias = ContextInfo | str
SandboxInfos: TypeAlias = list[SandboxInfo]
ContextInfos: TypeAlias = list[ContextInfo]
EgressRecords: TypeAlias = list[EgressRecord]

AsyncTextCallback: TypeAlias = Callable[[str], Awaitable[object] | object]
AsyncResultCallback: TypeAlias = Callable[[Result], Awaitable[object] | object]
AsyncErrorCallback: TypeAlias = Callable[[ExecutionError], Awaitable[object] | object]
AsyncCommitCallback: TypeAlias = Callable[[Changes], Awaitable[bool] | bool]
AsyncInputCallback: TypeAlias = Callable[[InputRequestEvent], Awaitable[str | None] | str | None]


class AsyncSandbox(AsyncAuditing, AsyncForking, AsyncTimeTravel, AsyncSaving):
    """An isolated machine with files and state; described at `Sandbox`.

    It starts when it is entered (`async with AsyncSandbox() as sandbox:`) or made by `await
    AsyncSandbox.create()`.
    """

    def __init__(
        self,
        template: str | Template = "default",
        *,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        auto_resume: bool = False,
        strict: bool = False,
        isolation: IsolationLevel | None = None,
        network: NetworkChoice = "none",
        security_policy: Sequence[SecurityRule] = (),
        on_security_event: AsyncSecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._spec = SandboxSpec(
            template=template,
            limits=Limits() if limits is None else limits,
            envs={} if envs is None else envs,
            metadata={} if metadata is None else metadata,
            timeout_seconds=timeout,
            idle_timeout_seconds=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            strict=strict,
            isolation=isolation,
            network=read_network(network),
            security=SecuritySettings(rules=security_policy, telemetry=telemetry),
        )
        check_callbacks(on_security_event=on_security_event)
        self._on_security_event = on_security_event
        self._sandbox_handle = SandboxHandle(named_backend(url, api_key, backend))
        self._is_open = False
        self.files = AsyncFilesystem(self._sandbox_handle)
        self.commands = AsyncCommands(self._sandbox_handle)
        self.pty = AsyncPty(self._sandbox_handle)

    @classmethod
    async def create(
        cls,
        template: str | Template = "default",
        *,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        auto_resume: bool = False,
        strict: bool = False,
        isolation: IsolationLevel | None = None,
        network: NetworkChoice = "none",
        security_policy: Sequence[SecurityRule] = (),
        on_security_event: AsyncSecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> AsyncSandbox:
        """Start a sandbox."""
        sandbox = cls(
            template,
            limits=limits,
            envs=envs,
            metadata=metadata,
            timeout=timeout,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            strict=strict,
            isolation=isolation,
            network=network,
            security_policy=security_policy,
            on_security_event=on_security_event,
            telemetry=telemetry,
            url=url,
            api_key=api_key,
            backend=backend,
        )
        return await sandbox.__aenter__()

    @classmethod
    async def from_notebook(
        cls,
        notebook: NotebookSource,
        *,
        parameters: Mapping[str, Any] | None = None,
        template: str | Template = "default",
        limits: Limits | None = None,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> AsyncSandbox:
        """Start a sandbox and run the code cells of a notebook in it."""
        # Late: who never asks for a notebook does not load what reads it. Refused before a sandbox starts.
        from fumehood.api.notebooks import NotebookOptions, run_notebook
        from fumehood.notebook.reading import read_notebook, set_parameters

        ready = await asyncio.to_thread(read_notebook, notebook)
        set_parameters(ready, parameters or {})
        sandbox = await cls.create(template, limits=limits, url=url, api_key=api_key, backend=backend)

        try:
            await run_notebook(sandbox, ready, NotebookOptions(stop_on_error=True))
        except BaseException:
            await sandbox.kill(wait=False)
            raise

        return sandbox

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> AsyncSandbox:
        """Take hold of a living sandbox by its id."""
        check_text("sandbox_id", sandbox_id, max_bytes=255)
        sandbox = cls(url=url, api_key=api_key, backend=backend)
        sandbox._sandbox_handle.grant(await sandbox._sandbox_handle.backend.info(sandbox_id))
        return sandbox

    @classmethod
    async def list(
        cls, *, url: str | None = None, api_key: str | None = None, backend: Backend | None = None
    ) -> SandboxInfos:
        """Describe the living sandboxes."""
        return [*await (named_backend(url, api_key, backend) or default_backend()).list()]

    async def __aenter__(self) -> AsyncSandbox:
        if not self._sandbox_handle.is_granted:
            self._sandbox_handle.grant(await self._sandbox_handle.backend.create(self._spec))
            self._is_open = True

            if self._on_security_event is not None:
                follow_security_events(self._sandbox_handle.backend, self.id, self._on_security_event)

        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # A forked child that leaves the block does not end what its parent uses.
        if not self._sandbox_handle.is_foreign:
            await self.kill()

    def __del__(self) -> None:
        # A warning imports; while the interpreter ends, the lock of that may be held by a thread that is no more.
        if sys.is_finalizing():
            return

        if getattr(self, "_is_open", False) and not self._sandbox_handle.is_foreign:
            warnings.warn(f"{self!r} was never killed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        name = (
            repr(self._sandbox_handle.info.id)
            if self._sandbox_handle.is_granted and not self._sandbox_handle.is_foreign
            else "-"
        )
        return f"<{type(self).__name__} {name}>"

    @property
    def id(self) -> str:
        """Its name, for `connect`."""
        return self._sandbox_handle.id

    async def get_info(self) -> SandboxInfo:
        """Describe the sandbox."""
        return await self._sandbox_handle.backend.info(self.id)

    async def get_metrics(self) -> Metrics:
        """Tell what the sandbox uses now."""
        return await self._sandbox_handle.backend.metrics(self.id)

    async def get_record(self, context: Context | None = None) -> Record:
        """Tell what ran in a context."""
        return await self._sandbox_handle.backend.record(self.id, _context_id(context))

    async def to_notebook(
        self, path: str | os.PathLike[str] | None = None, context: Context | None = None
    ) -> str:
        """Write what ran in a context as a notebook, a script or a report."""
        # Late, as above.
        from fumehood.notebook.writing import check_form, write_record

        check_form(path)
        # In a thread: a large record would hold up what else runs on this loop.
        return await asyncio.to_thread(write_record, await self.get_record(context), path)

    async def get_url(self, port: int) -> str:
        """Return an address by which a server inside is reached."""
        return (await self._sandbox_handle.backend.port_address(self.id, port)).url

    async def get_host(self, port: int) -> str:
        """Return the host name, with a port where it needs one, of a server inside."""
        host = (await self._sandbox_handle.backend.port_address(self.id, port)).host

        if host is None:
            raise NoHostNameError(port=port)

        return host

    async def is_running(self) -> bool:
        """Tell whether the sandbox lives."""
        try:
            await self.get_info()
        except (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError):
            return False

        return True

    async def set_timeout(self, timeout: float | None) -> None:
        """Let the sandbox live for so long from now on."""
        check_seconds("timeout", timeout)
        await self._sandbox_handle.backend.set_timeout(self.id, timeout)

    async def set_network(self, network: NetworkChoice) -> None:
        """Change what the sandbox may reach."""
        await self._sandbox_handle.backend.set_network(self.id, read_network(network))

    async def egress_log(self) -> EgressRecords:
        """Tell what the sandbox reached and tried to reach."""
        return [*await self._sandbox_handle.backend.egress_log(self.id)]

    async def pause(self) -> bool:
        """Freeze the sandbox."""
        return await self._sandbox_handle.backend.pause(self.id)

    async def resume(self) -> bool:
        """Let the paused sandbox go on."""
        return await self._sandbox_handle.backend.resume(self.id)

    async def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox."""
        self._is_open = False
        return await self._sandbox_handle.backend.kill(self.id, wait=wait)

    async def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
        on_result: AsyncResultCallback | None = None,
        on_error: AsyncErrorCallback | None = None,
        on_input: AsyncInputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: AsyncToolCallback | None = None,
        transactional: bool = False,
        on_commit: AsyncCommitCallback | None = None,
        changes: bool = False,
    ) -> Execution:
        """Run code and wait for its end."""
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result, on_error=on_error)
        check_callbacks(on_input=on_input, on_tool_call=on_tool_call, on_commit=on_commit)

        if not any((on_stdout, on_stderr, on_result, on_error, on_input, tools, on_commit)):
            request = ExecuteRequest(
                code=code,
                language=language,
                context_id=_context_id(context),
                envs={} if envs is None else envs,
                wall_seconds=timeout,
                stdin=stdin,
                transactional=transactional,
                tell_changes=changes,
            )
            return await self._sandbox_handle.backend.run(self.id, request)

        events = self.stream_code(
            code,
            language=language,
            context=context,
            envs=envs,
            timeout=timeout,
            stdin=stdin,
            on_input=on_input,
            tools=tools,
            on_tool_call=on_tool_call,
            transactional=transactional,
            on_commit=on_commit,
            changes=changes,
        )

        async with aclosing(events):
            async for event in events:
                match event:
                    case StdoutEvent():
                        await notify(on_stdout, event.text)
                    case StderrEvent():
                        await notify(on_stderr, event.text)
                    case ResultEvent():
                        await notify(on_result, event.result)
                    case ErrorEvent():
                        await notify(on_error, event.error)
                    case ExecutionFinished():
                        return event.execution

        # The port promises ExecutionFinished or an exception; what breaks the promise is gone.
        raise SandboxClosedError(sandbox_id=self.id, reason="died", outcome_unknown=True)

    async def stream_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_input: AsyncInputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: AsyncToolCallback | None = None,
        transactional: bool = False,
        on_commit: AsyncCommitCallback | None = None,
        changes: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Run code and give what happens as it happens."""
        check_callbacks(on_input=on_input, on_tool_call=on_tool_call, on_commit=on_commit)
        ready, backend = ready_tools(tools), self._sandbox_handle.backend
        request = ExecuteRequest(
            code=code,
            language=language,
            context_id=_context_id(context),
            envs={} if envs is None else envs,
            wall_seconds=timeout,
            allow_input=on_input is not None,
            stdin=stdin,
            tools=tuple(tool.spec for tool in ready.values()),
            transactional=transactional,
            ask_commit=on_commit is not None,
            tell_changes=changes,
        )
        happening = backend.execute(self.id, request)

        if ready:
            runner = ToolRunner(ready, on_tool_call, lambda answer: backend.answer_tool(self.id, answer))
            happening = runner.follow(happening)

        async with aclosing(happening) as events:
            async for event in events:
                yield event

                if isinstance(event, InputRequestEvent):
                    answer = await _ask(event, on_input)
                    await backend.answer_input(self.id, answer)

                if isinstance(event, CommitRequestEvent):
                    await backend.answer_commit(self.id, await _decide(event, on_commit))

    async def interrupt(self, context: Context | None = None) -> bool:
        """Interrupt what runs in a context."""
        return await self._sandbox_handle.backend.interrupt(self.id, _context_id(context))

    async def create_code_context(
        self, *, cwd: str | None = None, language: Language = "python"
    ) -> ContextInfo:
        """Make a context."""
        call = CreateContext(cwd=cwd, language=language)
        return (await self._sandbox_handle.backend.context_call(self.id, call))[0]

    async def list_code_contexts(self) -> ContextInfos:
        """List the contexts."""
        return [*await self._sandbox_handle.backend.context_call(self.id, ListContexts())]

    async def restart_code_context(self, context: Context) -> ContextInfo:
        """Replace a context by a fresh one."""
        call = RestartContext(context_id=_context_id(context) or "")
        return (await self._sandbox_handle.backend.context_call(self.id, call))[0]

    async def remove_code_context(self, context: Context) -> None:
        """Kill a context."""
        await self._sandbox_handle.backend.context_call(
            self.id, RemoveContext(context_id=_context_id(context) or "")
        )


async def _decide(event: CommitRequestEvent, on_commit: AsyncCommitCallback | None) -> CommitAnswer:
    """What raises, or says nothing clear, says no; the error goes to the caller."""
    return CommitAnswer(
        execution_id=event.execution_id, commit=await notify(on_commit, event.changes) is True
    )


async def _ask(event: InputRequestEvent, on_input: AsyncInputCallback | None) -> InputAnswer:
    text = await notify(on_input, event)
    return InputAnswer(execution_id=event.execution_id, request_id=event.request_id, text=text)


def _context_id(context: Context | None) -> str | None:
    context_id = context.id if isinstance(context, ContextInfo) else context

    if context_id is not None:
        check_text("context", context_id, max_bytes=255)

    return context_id
