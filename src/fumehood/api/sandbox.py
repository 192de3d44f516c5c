"""`Sandbox`: what the user holds.

Runs in the host process, in the caller's thread. Each verb is one line over `AsyncSandbox`, which holds the
logic and runs on the engine's thread; callbacks run here, so they may use the sandbox. Nothing is decided
in this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from fumehood.api.async_sandbox import (
    AsyncSandbox,
    Context,
    ContextInfos,
    EgressRecords,
    Language,
    SandboxInfos,
)
from fumehood.api.audit import Auditing, SecurityCallback, called_apart
from fumehood.api.commands import Commands
from fumehood.api.files import Filesystem
from fumehood.api.pty import Pty
from fumehood.api.time_travel import Forking, Saving, TimeTravel
from fumehood.api.tools import AsyncToolCallback, Tools, relay_approval, relay_tools
from fumehood.port.backend import Backend
from fumehood.portal import Turn, call
from fumehood.values.events import Event, InputRequestEvent
from fumehood.values.execution import Changes, Execution, ExecutionError, Record
from fumehood.values.limits import Limits
from fumehood.values.network import NetworkChoice
from fumehood.values.results import Result
from fumehood.values.sandbox import ContextInfo, IsolationLevel, Metrics, SandboxInfo, TimeoutAction
from fumehood.values.security import SecurityRule
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.notebook.reading import NotebookSource

TextCallback: TypeAlias = Callable[[str], object]
ResultCallback: TypeAlias = Callable[[Result], object]
ErrorCallback: TypeAlias = Callable[[ExecutionError], object]
CommitCallback: TypeAlias = Callable[[Changes], bool]
InputCallback: TypeAlias = Callable[[InputRequestEvent], str | None]
ToolCallback: TypeAlias = AsyncToolCallback


class Sandbox(Auditing, Forking, TimeTravel, Saving):
    """An isolated machine with files and state, for code that nobody has read yet.

    It runs from the moment it is made until it is killed, its time is over, or this process ends; use it in
    a `with`.

    Attributes:
        files: Its files.
        commands: Its processes.
        pty: Its terminals.

    Args:
        template: What it starts from: interpreter, packages, what is imported already. A `Template`, or the name
            of one that was used before; `default` is the environment of this process.
        limits: What it may use; `Limits()` unless given.
        envs: Environment of everything that runs in it.
        metadata: Labels of your own, found again in `get_info()` and `list()`.
        timeout: Seconds after which it is killed, or paused; None: it lives until it is killed.
        idle_timeout: Seconds without a call after which it is killed; None: never for that reason.
        on_timeout: What happens when the `timeout` is over: kill, or pause.
        auto_resume: Whether a call to it while it is paused resumes it, instead of raising SandboxPausedError.
        strict: Refuse to start when a layer of isolation is missing, instead of listing it as degraded.
        isolation: The weakest level of isolation that will do, such as `namespaces` or `landlock-only`; where that
            cannot be had it does not start. None: what the settings say, `namespaces` unless they say otherwise.
        network: What it may reach: `none`, `internet` for everything public, or a `Network(allow=[...])`.
        security_policy: What is done about security events: `SecurityRule(kind=..., action=..., count=...)`.
        on_security_event: Called with each security event, in a thread of its own, one after the other.
        telemetry: Whether its interpreters tell what code does in them, as events that are advice.
        url: Address of the server that it lives at; None: FUMEHOOD_URL, or in this process.
        api_key: What opens that server; None: FUMEHOOD_API_KEY.
        backend: Where it lives, in place of both.

    Raises:
        InvalidArgumentError: An argument is refused.
        SandboxStartError: It did not start; the class and the hint say why.
    """

    _async: AsyncSandbox
    _async_kind = AsyncSandbox

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
        on_security_event: SecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        async_impl = AsyncSandbox(
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
            on_security_event=called_apart(on_security_event),
            telemetry=telemetry,
            url=url,
            api_key=api_key,
            backend=backend,
        )
        self._hold(call(async_impl.__aenter__))

    def _hold(self, async_impl: AsyncSandbox) -> None:
        self._async = async_impl
        self.files = Filesystem(async_impl.files)
        self.commands = Commands(async_impl.commands)
        self.pty = Pty(async_impl.pty)

    @classmethod
    def create(
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
        on_security_event: SecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Sandbox:
        """Start a sandbox, as `Sandbox(...)` does."""
        return cls(
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

    @classmethod
    def from_notebook(
        cls,
        notebook: NotebookSource,
        *,
        parameters: Mapping[str, Any] | None = None,
        template: str | Template = "default",
        limits: Limits | None = None,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Sandbox:
        """Start a sandbox and run the code cells of a notebook in it, up to the first that fails.

        As with `run_code`, code that fails is no exception: `get_record().cells[-1].execution.error` tells.

        `notebook` is a path, or the notebook as JSON holds it; `parameters` are variables that are set behind the cell
        with the tag `parameters`, or before all cells. The others are those of `Sandbox`.

        Raises:
            InvalidArgumentError: It is no notebook of Python, or a parameter cannot be set.
        """
        sandbox = cls.__new__(cls)
        sandbox._hold(
            call(
                AsyncSandbox.from_notebook,
                notebook,
                parameters=parameters,
                template=template,
                limits=limits,
                url=url,
                api_key=api_key,
                backend=backend,
            )
        )
        return sandbox

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Sandbox:
        """Take hold of a living sandbox by its id; leaving its `with` kills it like any other.

        Raises:
            SandboxNotFoundError: It never lived here.
            SandboxClosedError: It has ended.
        """
        sandbox = cls.__new__(cls)
        sandbox._hold(call(AsyncSandbox.connect, sandbox_id, url=url, api_key=api_key, backend=backend))
        return sandbox

    @classmethod
    def list(
        cls, *, url: str | None = None, api_key: str | None = None, backend: Backend | None = None
    ) -> SandboxInfos:
        """Describe the living sandboxes, the oldest first."""
        return call(AsyncSandbox.list, url=url, api_key=api_key, backend=backend)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        call(self._async.__aexit__, kind, error, where)

    def __repr__(self) -> str:
        return repr(self._async).replace(AsyncSandbox.__name__, type(self).__name__, 1)

    @property
    def id(self) -> str:
        """Its name, for `connect`."""
        return self._async.id

    def get_info(self) -> SandboxInfo:
        """Describe the sandbox: times, labels, limits, and what isolates it.

        Raises:
            SandboxClosedError: It has ended; so from every other verb but `kill` and `is_running`.
        """
        return call(self._async.get_info)

    def get_metrics(self) -> Metrics:
        """Tell what the sandbox uses now, paused or not."""
        return call(self._async.get_metrics)

    def get_record(self, context: Context | None = None) -> Record:
        """Tell what ran in a context, the default one unless given, and what came of it.

        Executions that were silent are not in it. The records of a sandbox take 16 MiB at most; the oldest outputs
        are dropped first, then the oldest cells, and both are counted.
        """
        return call(self._async.get_record, context)

    def to_notebook(self, path: str | os.PathLike[str] | None = None, context: Context | None = None) -> str:
        """Write what ran in a context as a notebook, a script or a report, and return its text.

        Args:
            path: The file, which is replaced. Its ending says what it is: `.ipynb` (nbformat 4.5, with all outputs),
                `.py` (the cells), `.html` (a page of its own, in which nothing of the sandbox can run). None: the
                text of the notebook is returned and no file written.
            context: Which; the default context unless given.
        """
        return call(self._async.to_notebook, path, context)

    def get_url(self, port: int) -> str:
        """Return an address by which a server inside is reached, in a browser for example.

        It works as soon as something listens on that port of the sandbox, on 127.0.0.1 or 0.0.0.0. Of a sandbox
        in this process it is a port of this machine's loopback, of one at a server an address of that server.
        """
        return call(self._async.get_url, port)

    def get_host(self, port: int) -> str:
        """Return the host name, with a port where it needs one, of a server inside.

        Raises:
            NoHostNameError: The server of the sandbox has no domain; `get_url` works there as well.
        """
        return call(self._async.get_host, port)

    def is_running(self) -> bool:
        """Tell whether the sandbox lives, paused or not."""
        return call(self._async.is_running)

    def set_timeout(self, timeout: float | None) -> None:
        """Let the sandbox live for so many seconds from now on; None: until it is killed.

        Of a paused one it is the time that it gets when it is resumed.
        """
        call(self._async.set_timeout, timeout)

    def set_network(self, network: NetworkChoice) -> None:
        """Change what the sandbox may reach; connections that the new rules would not allow end.

        Secrets without a value, as `get_info().network` shows them, keep the value that they have.
        """
        call(self._async.set_network, network)

    def egress_log(self) -> EgressRecords:
        """Tell what the sandbox reached, and tried to reach: the last 1000 of each, the oldest first."""
        return call(self._async.egress_log)

    def pause(self) -> bool:
        """Freeze the sandbox; False if it was paused.

        Nothing in it runs any more, and it uses no CPU time; processes and memory stay as they are. All of its
        clocks stand still: the `timeout`, the `idle_timeout`, and the time limits of what runs. It stays so
        until `resume` or `kill`.
        """
        return call(self._async.pause)

    def resume(self) -> bool:
        """Let the paused sandbox go on where it was, with the time that it had left; False if it ran.

        One that was paused because its time was over gets all of it again.
        """
        return call(self._async.resume)

    def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox, paused or not, with everything in it; False if it had ended before.

        Args:
            wait: Return when nothing is left of it; otherwise as soon as its end is certain.
        """
        return call(self._async.kill, wait=wait)

    def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        on_result: ResultCallback | None = None,
        on_error: ErrorCallback | None = None,
        on_input: InputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: ToolCallback | None = None,
        transactional: bool = False,
        on_commit: CommitCallback | None = None,
        changes: bool = False,
    ) -> Execution:
        """Run code and wait for its end. Code that fails gives an `Execution` with an `error`, no exception.

        Ctrl-C, or an error in a callback, interrupts the code as `interrupt` does; its state is kept.

        Args:
            code: What to run, as in a notebook's cell.
            language: python or bash.
            context: Where its variables live; the default context unless given.
            envs: Environment variables for this execution only.
            timeout: Seconds until it is interrupted; `limits.wall_seconds` unless given.
            stdin: What `input()` and the standard input give, up to its end; empty unless given.
            on_stdout: Called with each piece of standard output as it comes, in this thread.
            on_stderr: The same for standard error.
            on_result: Called with each result as it comes.
            on_error: Called with the error, if there is one.
            on_input: Called when the code asks for input; returns the line, or None for the end of input.
                Without it, and without `stdin`, `input()` fails with EOFError.
            tools: Functions of yours that the code may call while it runs, by the names that it calls them by; plain
                ones run in this thread, an `async def` is awaited inside and runs on a loop of its own.
            on_tool_call: Asked before each call of a tool; False or a text denies it, and the text is what the code
                sees.
            transactional: Keep what it changes only if it ends normally: after an error, a timeout, a
                kill or a lack of memory, variables and files are as they were before; `execution.transaction` says so.
            on_commit: Of a transactional one, called with what it has changed; anything but True undoes it. The context
                waits meanwhile: code that is run in it from there would wait as well.
            changes: Tell in `execution.changes` which variables and files it changed.
        """
        turn = Turn()
        return turn.call(
            self._async.run_code,
            code,
            language=language,
            context=context,
            envs=envs,
            timeout=timeout,
            stdin=stdin,
            on_stdout=turn.relay(on_stdout, "on_stdout"),
            on_stderr=turn.relay(on_stderr, "on_stderr"),
            on_result=turn.relay(on_result, "on_result"),
            on_error=turn.relay(on_error, "on_error"),
            on_input=turn.relay(on_input, "on_input"),
            tools=relay_tools(turn, tools),
            on_tool_call=relay_approval(turn, on_tool_call),
            transactional=transactional,
            on_commit=turn.relay(on_commit, "on_commit"),
            changes=changes,
        )

    def stream_code(
        self,
        code: str,
        *,
        language: Language = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_input: InputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: ToolCallback | None = None,
        transactional: bool = False,
        on_commit: CommitCallback | None = None,
        changes: bool = False,
    ) -> Iterator[Event]:
        """Run code and give what happens as it happens; the last event is `ExecutionFinished`.

        Leaving the loop early interrupts the code. The arguments are those of `run_code`.
        """
        turn = Turn()
        return turn.iterate(
            self._async.stream_code(
                code,
                language=language,
                context=context,
                envs=envs,
                timeout=timeout,
                stdin=stdin,
                on_input=turn.relay(on_input, "on_input"),
                tools=relay_tools(turn, tools),
                on_tool_call=relay_approval(turn, on_tool_call),
                transactional=transactional,
                on_commit=turn.relay(on_commit, "on_commit"),
                changes=changes,
            )
        )

    def interrupt(self, context: Context | None = None) -> bool:
        """Interrupt what runs in a context, from another thread or a callback; False if nothing ran.

        Code that does not stop within `limits.grace_seconds` is killed and its context replaced; the
        execution's error and `state_lost` say which of the two happened.
        """
        return call(self._async.interrupt, context)

    def create_code_context(self, *, cwd: str | None = None, language: Language = "python") -> ContextInfo:
        """Make a context: another live namespace, with a process of its own, over the same files."""
        return call(self._async.create_code_context, cwd=cwd, language=language)

    def list_code_contexts(self) -> ContextInfos:
        """List the contexts, the default one first."""
        return call(self._async.list_code_contexts)

    def restart_code_context(self, context: Context) -> ContextInfo:
        """Replace a context by a fresh one of the same id; what runs in it is killed."""
        return call(self._async.restart_code_context, context)

    def remove_code_context(self, context: Context) -> None:
        """Kill a context; the default one comes back fresh when it is used again."""
        call(self._async.remove_code_context, context)
