"""`Sandbox` and its parts: the synchronous API.

Written by `make sync-api` from the asynchronous classes; do not edit. Runs in the caller's thread, which waits for the
engine's thread; callbacks run here, so they may use the sandbox. Nothing is decided in this file.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast, overload

from fumehood.api.activity import AsyncActivity
from fumehood.api.async_sandbox import AsyncSandbox, DownloadedPaths, EgressRecords, SandboxInfos
from fumehood.api.callbacks import (
    CommitCallback,
    ErrorCallback,
    InputCallback,
    ResultCallback,
    SecurityCallback,
    TextCallback,
)
from fumehood.api.commands import AsyncCommandHandle, AsyncCommands, ProcessInfos
from fumehood.api.contexts import CaseResults, Checkpoint, CheckpointInfos, Context, ContextInfos
from fumehood.api.files import (
    DEFAULT_MAX_BYTES,
    AsyncFilesystem,
    AsyncWatch,
    Content,
    FileInfos,
    InsidePath,
    ReadFormat,
    WriteEntry,
)
from fumehood.api.handle import Uncopied, check_child
from fumehood.api.pty import DEFAULT_SHELL, AsyncPty, AsyncPtyHandle
from fumehood.api.records import AsyncRecords, EndedSandboxes
from fumehood.api.saved_states import StatePlace
from fumehood.api.security_events import called_apart
from fumehood.api.shares import AsyncShares, SharedParts, ShareList
from fumehood.api.tools import ToolCallback, Tools, relay_approval, relay_tools
from fumehood.api.transfers import MAX_DOWNLOAD_BYTES, LocalPath
from fumehood.port.backend import Backend
from fumehood.portal import Turn, call
from fumehood.values.audit import AuditLog
from fumehood.values.events import Event
from fumehood.values.execution import Execution, Record
from fumehood.values.languages import Language
from fumehood.values.limits import LimitFields, LimitsChoice
from fumehood.values.looking import Cell, CellPage, CommandPage, Family, PortList, SandboxUse, VariablePage
from fumehood.values.moments import Comparison
from fumehood.values.network import NetworkChoice
from fumehood.values.requests import DEFAULT_CONTEXT_ID, ForkSeconds
from fumehood.values.sandbox import (
    CheckpointInfo,
    CommandResult,
    ContextInfo,
    FileChange,
    FileInfo,
    HostLossAction,
    IsolationLevel,
    Metrics,
    SandboxInfo,
    TimeoutAction,
)
from fumehood.values.saved_state import LoadReport, SaveReport
from fumehood.values.security import SecurityRule
from fumehood.values.shares import DAY_SECONDS, Share
from fumehood.values.template import Template
from fumehood.values.watching import WatchEvent

if TYPE_CHECKING:
    from fumehood.notebook.ipynb import NotebookSource


class Sandbox(Uncopied):
    """An isolated machine with files and state, for untrusted code.

    It runs from the moment it is made until it is killed, its time is over, or this process ends; use it in
    a `with`.

    Attributes:
        files: Its files.
        commands: Its processes.
        pty: Its terminals.
        activity: Past and running executions.
        shares: Read-only views of it for other people; of a sandbox at a server.

    Args:
        template: Its interpreter, packages and preloaded modules: a `Template`, or the name of one that was used
            before; `default` is the environment of this process.
        limits: Its limits: `Limits(memory="2G")`, or a mapping such as `{"memory": "2G"}`.
        envs: Environment of everything that runs in it.
        metadata: Names and values of your own, found again in `get_info()` and `list()`.
        labels: Labels that its machine must have, such as `{"zone": "a"}`; machines of a cluster have labels.
        timeout: Seconds after which it is killed, or paused; None: it lives until it is killed.
        idle_timeout: Seconds without a call after which it is killed; None: never for that reason.
        on_timeout: What happens when the `timeout` is over: kill, pause, or pause_files (`pause(files_only=True)`).
        on_host_loss: What a call does that finds the sandbox lost, because its machine or host daemon is gone: `raise`
            SandboxClosedError, or `restore` it from its last `save`, which may be in a bucket, and go on from there. A
            call that may have been carried out raises in any case, and the next one goes on.
        auto_resume: Whether a call to it while it is paused resumes it, instead of raising SandboxPausedError.
        strict: Refuse to start when a layer of isolation is missing, instead of listing it as degraded.
        isolation: The weakest level of isolation that is accepted, such as `namespaces` or `landlock-only`; without it
            the sandbox does not start. None: the level in the settings, by default `namespaces`.
        network: The network that it may reach: `none`, `pip` for the package index alone, `internet` for everything
            public, a list such as `["api.example.com"]`, or a `Network(allow=[...])`.
        security_policy: The reactions to security events: `SecurityRule(kind=..., action=..., count=...)`.
        on_security_event: Called with each security event, in a thread of its own, one after the other.
        telemetry: Whether its interpreters report what code does, as security events that are only advice.
        url: Address of the server that it lives at; None: FUMEHOOD_URL, or in this process.
        api_key: The token of that server; None: FUMEHOOD_API_KEY.
        backend: An existing backend to use, instead of `url` and `api_key`.
        limit_fields: Limits one by one, in place of those in `limits`: `Sandbox(memory="2G", cpu_cores=1)`.

    Raises:
        InvalidArgumentError: An argument is refused.
        SandboxStartError: It did not start; the class and the hint say why.
    """

    def __init__(
        self,
        template: str | Template = "default",
        *,
        limits: LimitsChoice | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        on_host_loss: HostLossAction = "raise",
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
        **limit_fields: Unpack[LimitFields],
    ) -> None:
        async_impl = AsyncSandbox(
            template,
            limits=limits,
            envs=envs,
            metadata=metadata,
            labels=labels,
            timeout=timeout,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            on_host_loss=on_host_loss,
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
            **limit_fields,
        )
        self._hold(call(async_impl.__aenter__))

    @classmethod
    def _around(cls, async_impl: AsyncSandbox) -> Self:
        sandbox = cls.__new__(cls)
        sandbox._hold(async_impl)
        return sandbox

    def _hold(self, async_impl: AsyncSandbox) -> None:
        self._async = async_impl
        self.files = Filesystem(async_impl.files)
        self.commands = Commands(async_impl.commands)
        self.pty = Pty(async_impl.pty)
        self.activity = Activity(async_impl.activity)
        self.shares = Shares(async_impl.shares)

    @classmethod
    def create(
        cls,
        template: str | Template = "default",
        *,
        limits: LimitsChoice | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        on_host_loss: HostLossAction = "raise",
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
        **limit_fields: Unpack[LimitFields],
    ) -> Sandbox:
        """Start a sandbox, as `Sandbox(...)` does."""
        return cls(
            template,
            limits=limits,
            envs=envs,
            metadata=metadata,
            labels=labels,
            timeout=timeout,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            on_host_loss=on_host_loss,
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
            **limit_fields,
        )

    @classmethod
    def from_notebook(
        cls,
        notebook: NotebookSource,
        *,
        parameters: Mapping[str, Any] | None = None,
        template: str | Template = "default",
        limits: LimitsChoice | None = None,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Sandbox:
        """Start a sandbox and run the code cells of a notebook in it, up to the first that fails.

        As with `run_code`, code that fails is no exception: `get_record().cells[-1].execution.error` tells.

        `notebook` is a path, or the notebook as JSON holds it; `parameters` are variables that are set behind the cell
        with the tag `parameters`, or before all cells. The others are those of `Sandbox`.

        Raises:
            InvalidArgumentError: The notebook is not one of Python, or a parameter cannot be set.
        """
        return cls._around(
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

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Sandbox:
        """Connect to a living sandbox by its id; leaving its `with` kills it like any other.

        Raises:
            SandboxNotFoundError: It never lived here.
            SandboxClosedError: It has ended.
        """
        return cls._around(call(AsyncSandbox.connect, sandbox_id, url=url, api_key=api_key, backend=backend))

    @classmethod
    def list(
        cls,
        *,
        metadata: Mapping[str, str] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> SandboxInfos:
        """Describe the living sandboxes, the oldest first.

        Args:
            metadata: Only those with each of these labels.
            url: Address of the server; None: FUMEHOOD_URL, or in this process.
            api_key: The token of the server; None: FUMEHOOD_API_KEY.
            backend: Where they live, in place of both.
        """
        return call(AsyncSandbox.list, metadata=metadata, url=url, api_key=api_key, backend=backend)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        call(self._async.__aexit__, kind, error, where)

    def __repr__(self) -> str:
        return repr(self._async).replace(AsyncSandbox.__name__, type(self).__name__, 1)

    def get_info(self) -> SandboxInfo:
        """Describe the sandbox: times, labels, limits, and what isolates it.

        Raises:
            SandboxClosedError: It has ended; so from every other verb but `kill` and `is_running`.
        """
        return call(self._async.get_info)

    def get_metrics(self) -> Metrics:
        """Return the current resource use of the sandbox, paused or not."""
        return call(self._async.get_metrics)

    def upload(self, local: LocalPath, remote: InsidePath | None = None) -> FileInfos:
        """Write a file of this machine, or a folder with all files in it, into the sandbox.

        Args:
            local: The file or folder.
            remote: Its path in the sandbox; None: its own name, in the home directory, where code finds it by that.

        Returns:
            The files that were written.

        Raises:
            OSError: The file cannot be read.
            InvalidArgumentError: One is a FIFO, a socket or a device.
            FileError: It cannot be written.
        """
        return call(self._async.upload, local, remote)

    def download(
        self,
        remote: InsidePath,
        local: LocalPath = ".",
        *,
        overwrite: bool = False,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> DownloadedPaths:
        """Write a file of the sandbox, or a folder with all that is in it, to this machine.

        Names of files are the sandbox's: one that would lead out of the folder is left out, and hidden files of a
        folder stay where they are, since some of them would be run on this machine (`.bashrc`, `.git`).

        Args:
            remote: The file or folder.
            local: For a file, its new path or an existing folder; for a folder, the path of its copy.
            overwrite: Replace what is there. A file whose new path was given in full is always replaced.
            max_bytes: Bytes of all files together.

        Returns:
            The files that were written.

        Raises:
            PathNotFoundError: There is no such file.
            DownloadError: Not all of it could be written; the error names what is missing and why.
        """
        return call(self._async.download, remote, local, overwrite=overwrite, max_bytes=max_bytes)

    def screenshot(self) -> bytes:
        """Return what the display of the sandbox shows, as a PNG; its template was built with `display=True`.

        Raises:
            ScreenshotError: It has no display.
        """
        return call(self._async.screenshot)

    def install(self, *packages: str | Sequence[str], timeout: float = 300.0) -> None:
        """Install packages of Python into the sandbox with pip; they can be imported at once.

        The sandbox must reach an index, as with `network="pip"`.

        Args:
            packages: Names, one by one or as one list, with versions where needed: `polars>=1`.
            timeout: Seconds after which pip is ended.

        Raises:
            InvalidArgumentError: There is no package, one is no requirement of pip, or the sandbox has no network.
            CommandExitError: pip failed; its last lines are in the error.
            CommandTimeoutError: Its time was over.
        """
        call(self._async.install, *packages, timeout=timeout)

    def get_url(self, port: int, *, wait: bool | float = False) -> str:
        """Return an address by which a server inside is reached, in a browser for example.

        It works as soon as something listens on that port of the sandbox, on 127.0.0.1 or 0.0.0.0. Of a sandbox
        in this process it is a port of this machine's loopback, of one at a server an address of that server.

        Args:
            port: The port inside.
            wait: Return when something listens there: True waits for up to 30 seconds, a number for so many.

        Raises:
            PortClosedError: Nothing listens there after that time.
        """
        return call(self._async.get_url, port, wait=wait)

    def get_host(self, port: int) -> str:
        """Return the host name, with a port where it needs one, of a server inside.

        Raises:
            NoHostNameError: The server of the sandbox has no domain; `get_url` works there as well.
        """
        return call(self._async.get_host, port)

    def is_running(self) -> bool:
        """Return whether the sandbox lives, paused or not."""
        return call(self._async.is_running)

    def set_timeout(self, timeout: float | None) -> None:
        """Set the rest of the sandbox's life to so many seconds from now on; None: until it is killed.

        For a paused sandbox this is the time that it has after it is resumed.
        """
        call(self._async.set_timeout, timeout)

    def set_metadata(self, changes: Mapping[str, str | None]) -> None:
        """Change labels of the sandbox: those of these names; None takes one away, others stay as they are.

        Args:
            changes: New values by name. A sandbox has at most 64 labels, names of up to 128 characters, and 16 KiB of
                UTF-8 in all.
        """
        call(self._async.set_metadata, changes)

    def set_network(self, network: NetworkChoice) -> None:
        """Change what the sandbox may reach; connections that the new rules forbid are closed.

        Secrets without a value, as `get_info().network` shows them, keep the value that they have.
        """
        call(self._async.set_network, network)

    def egress_log(self) -> EgressRecords:
        """Return the connections that the sandbox made, and tried to make: the last 1000 of each, the oldest first."""
        return call(self._async.egress_log)

    def pause(self, *, files_only: bool = False) -> bool:
        """Freeze the sandbox; False if it was paused.

        Nothing in it runs any more, and it uses no CPU time; processes and memory stay as they are. All of its
        clocks stand still: the `timeout`, the `idle_timeout`, and the time limits of what runs. It stays so
        until `resume` or `kill`.

        Args:
            files_only: Whether to keep files and settings only: its processes end, its contexts start afresh
                afterwards.
        """
        return call(self._async.pause, files_only=files_only)

    def resume(self, *, files_only: bool = False) -> bool:
        """Resume the paused sandbox, with the time that it had left; False if it was running.

        One that was paused because its time was over gets all of it again. `files_only` drops the processes kept.
        """
        return call(self._async.resume, files_only=files_only)

    def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox, paused or not, with everything in it; False if it had ended before.

        Args:
            wait: Return when nothing is left of it; otherwise as soon as its end is certain.
        """
        return call(self._async.kill, wait=wait)

    def audit_log(self) -> AuditLog:
        """Return the audit record of the sandbox: a hash chain, in which a later change can be detected.

        It has the newest entries, up to 4,096 and 2 MiB; `dropped` counts those before. For a while it can be read
        after the sandbox has ended. `log.fault(execution.audit_head)` checks it against a head that was kept.
        """
        return call(self._async.audit_log)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Of a fork: what could not be forked from its parent, in words; empty for a sandbox that is no fork."""
        return self._async.left_behind

    def fork(
        self,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a sandbox that continues from the state of this one; this one continues as well.

        `forks`, which makes several at once, describes what a fork is.

        Args:
            checkpoint: Continue from there: the result of `checkpoint()`, its id, or its name. None: from now on.
            reseed: Let randomness diverge: it draws numbers of its own. False: it draws the same.
            timeout: Seconds after which it is killed, or paused, as its parent; None: it lives until it is killed;
                "inherit": as many as its parent was given, counted from now on.
            metadata: Its labels; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: There is no checkpoint of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it.
            ForkDepthError: This one is a fork of a fork of ... already.
            ForkError: It could not be made; the sandbox is as it was.
        """
        return self._around(
            call(self._async.fork, checkpoint=checkpoint, reseed=reseed, timeout=timeout, metadata=metadata)
        )

    def forks(
        self,
        count: int,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> builtins.list[Self]:
        """Make sandboxes that continue from the state of this one, each on its own; this one continues as well.

        A fork has the variables, modules, open files, working directory, environment and record of the default context,
        and all files, as they are now or were at a checkpoint; limits, network and labels are those of its parent. It
        is a sandbox like any other: it sees no changes of its parent and of other forks, survives their end, and ends
        when it is killed or its `with` is left. What cannot come along is named in its `left_behind`: other contexts,
        running commands, threads, child processes, sockets.

        Args:
            count: How many, up to 64; all of them are made, or none.
            checkpoint: Continue from there: the result of `checkpoint()`, its id, or its name. None: from now on.
            reseed: Let randomness diverge: each draws numbers of its own. False: all draw the same.
            timeout: Seconds after which each is killed, or paused, as its parent; None: it lives until it is killed;
                "inherit": as many as its parent was given, counted from now on.
            metadata: Labels of each; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: There is no checkpoint of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it.
            ForkDepthError: This one is a fork of a fork of ... already.
            ForkError: They could not be made; the sandbox is as it was.
        """
        return [
            self._around(child)
            for child in call(
                self._async.forks,
                count,
                checkpoint=checkpoint,
                reseed=reseed,
                timeout=timeout,
                metadata=metadata,
            )
        ]

    def adopt(self, child: Self) -> None:
        """Continue as a fork of this sandbox: its state under this one's id; what was here before is killed.

        The fork's object is of no use afterwards, and its id has ended with the reason `adopted`.

        Args:
            child: A fork that `fork` or `forks` has returned.

        Raises:
            InvalidArgumentError: `child` is not a fork of this sandbox.
            ForkError: It could not be done; both are as they were.
        """
        check_child(child, Sandbox)
        call(self._async.adopt, child._async)

    @property
    def load_report(self) -> LoadReport | None:
        """The report of a sandbox that was loaded from a saved state; None of any other."""
        return self._async.load_report

    def save(self, place: StatePlace) -> SaveReport:
        """Write the lasting parts of the sandbox to a file, from which `load` makes a new sandbox.

        Kept are the files of the writable places, the environment, the record of what ran, and of each context of
        Python the working directory, the imported modules and those variables that serialise; what they share stays
        shared. Processes, open files, threads and connections are not. The sandbox continues. The file holds all that
        the sandbox knew, secrets in its environment too, and is for its owner alone.

        Args:
            place: A path, which is replaced when all is written, or `s3://BUCKET/NAME`, `az://CONTAINER/NAME`,
                `gs://BUCKET/NAME`, which need `fumehood[blobs]`.

        Returns:
            A report on the saved parts, and on the parts that were left out and why.

        Raises:
            SaveError: It cannot be written, or a context does not answer; the sandbox is as it was.
        """
        return call(self._async.save, place)

    @property
    def restored(self) -> int:
        """How often it was made again from its last save because its machine was lost; see `on_host_loss`."""
        return self._async.restored

    @classmethod
    def load(
        cls,
        place: StatePlace,
        *,
        template: str | Template | None = None,
        limits: LimitsChoice | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        on_host_loss: HostLossAction = "raise",
        auto_resume: bool = False,
        strict: bool = False,
        network: NetworkChoice = "none",
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Self:
        """Start a sandbox from a file that `save` has written; `load_report` lists what was restored.

        Load only what you trust with a sandbox: its variables are unpickled, inside the sandbox and nowhere else.

        Args:
            place: Where it lies, as for `save`.
            template: Its template, in place of the template of the same name as when it was saved.
            limits: See `Sandbox`, also for the other arguments.
            envs: Environment variables, which override those that were saved.
            metadata: Labels.
            timeout: Seconds after which it is killed, or paused.
            idle_timeout: Seconds without a call after which it is killed.
            on_timeout: What happens when the `timeout` is over.
            on_host_loss: As for `Sandbox`; `place` counts as its last save.
            auto_resume: Whether a call resumes it.
            strict: Refuse to start when a layer of isolation is missing.
            network: The network that it may reach.
            url: The server that will host it.
            api_key: The token of that server.
            backend: An existing backend to use, instead of `url` and `api_key`.

        Raises:
            SavedStateDamagedError: The file was changed after it was saved, or is not a saved state; the error names
                the part.
            SavedStateVersionError: It was written by a newer fumehood.
            LoadError: It cannot be loaded; no sandbox is left.
            SandboxStartError: It did not start.
        """
        return cls._around(
            call(
                AsyncSandbox.load,
                place,
                template=template,
                limits=limits,
                envs=envs,
                metadata=metadata,
                timeout=timeout,
                idle_timeout=idle_timeout,
                on_timeout=on_timeout,
                on_host_loss=on_host_loss,
                auto_resume=auto_resume,
                strict=strict,
                network=network,
                url=url,
                api_key=api_key,
                backend=backend,
            )
        )

    @property
    def id(self) -> str:
        """Its name, for `connect`."""
        return self._async.id

    def run_code(
        self,
        code: str,
        *,
        language: Language | str = "python",
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

        Callbacks run in the caller's thread. Ctrl-C, or an error in a callback, interrupts the code; its state is kept.

        Args:
            code: The code to run, as in a notebook's cell.
            language: Its language, by a name of the guide to languages.
            context: Where its variables live; the default context unless given.
            envs: Environment variables for this execution only.
            timeout: Seconds until it is interrupted; `limits.wall_seconds` unless given.
            stdin: What `input()` and the standard input give, up to its end; empty unless given.
            on_stdout: Called with each piece of standard output as it comes.
            on_stderr: The same for standard error.
            on_result: Called with each result as it comes.
            on_error: Called with the error, if there is one.
            on_input: Called with the text of its question when the code asks for input; returns the line, or None for
                the end of input. `question.is_password` says that the answer should not be shown.
                Without it, and without `stdin`, `input()` fails with EOFError.
            tools: Functions of yours that the code may call while it runs, by the names that it calls them by; plain
                ones run in this thread, an `async def` is awaited inside and runs on a loop of its own.
            on_tool_call: Asked before each call of a tool; False or a text denies it, and the code sees the text.
            transactional: Keep what it changes only if it ends normally: after an error, a timeout, a
                kill or a lack of memory, variables and files are as they were before; see `execution.transaction`.
            on_commit: Of a transactional one, called with what it has changed; anything but True undoes it. The context
                waits meanwhile: code that is run in it from there would wait as well.
            changes: Report in `execution.changes` which variables and files it changed.
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
        language: Language | str = "python",
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
        """Run code and yield events as they happen; the last event is `ExecutionFinished`.

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
        """Interrupt the code of a context, from another thread or a callback; False if none runs.

        Code that does not stop within `limits.grace_seconds` is killed and its context replaced; the execution's error
        and `state_lost` say which of the two happened.
        """
        return call(self._async.interrupt, context)

    def create_code_context(
        self, *, cwd: str | None = None, language: Language | str = "python"
    ) -> ContextInfo:
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

    def get_record(self, context: Context | None = None) -> Record:
        """Return the executions of a context, the default one unless given, with their results.

        Silent executions are not in it. The records of a sandbox take 16 MiB at most; the oldest outputs are dropped
        first, then the oldest cells, and both are counted.
        """
        return call(self._async.get_record, context)

    def to_notebook(self, path: str | os.PathLike[str] | None = None, context: Context | None = None) -> str:
        """Write the record of a context as a notebook, a script or a report, and return its text.

        Args:
            path: The file, which is replaced. Its suffix determines the format: `.ipynb` (nbformat 4.5, with all
                outputs), `.py` (the cells), `.html` (a page of its own, in which nothing of the sandbox can run). None:
                the text of the notebook is returned and no file written.
            context: The context; the default one unless given.
        """
        return call(self._async.to_notebook, path, context)

    def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Keep the state of a context and the files, as they are now, to go back to.

        Every live object of the context is kept as it is: variables, modules, generators half-way, open files,
        random states. It takes a few milliseconds, and memory only for what changes afterwards. What cannot be kept
        (other threads, child processes, sockets) is named in `left_behind`. At most 16 are kept; the oldest goes.

        Args:
            name: A name of yours; `rollback` takes it as well.
            context: The context whose state is kept; None for the default one. Not every language has checkpoints.
            strict: Refuse when anything could not be kept.

        Raises:
            CheckpointError: It cannot be made; the sandbox is as it was.
        """
        return call(self._async.checkpoint, name, context=context, strict=strict)

    def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint: state and files are what they were then; the checkpoint stays.

        Other contexts, and commands that run, continue.

        Args:
            checkpoint: The result of `checkpoint`, its id, or its name.

        Raises:
            CheckpointNotFoundError: There is none of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it; the sandbox is as it was.
            CheckpointError: There is no room to go back; the sandbox is as it was.
        """
        return call(self._async.rollback, checkpoint)

    def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints, the oldest first."""
        return call(self._async.list_checkpoints)

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint, and free its memory."""
        call(self._async.drop_checkpoint, checkpoint)

    def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        language: Language = "python",
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program once for each case, and compare its output with the expected output.

        What the program imports at its top is imported once, or it is compiled once; each case is a fork of that,
        with its own memory, standard input and limits, so that a thousand cases take seconds. Variables of the sandbox
        are not seen by it; its files are, and are as before afterwards. What should be printed never enters it.

        Args:
            code: The program; one in Python runs as `__main__`.
            cases: For each case, its input and its expected output; lines are compared without the space at their
                ends, and output beyond `limits.stdout_bytes` is not accepted.
            language: The language of the program.
            timeout: Seconds of each run.
            memory_bytes: Memory of each run beyond interpreter and imports; in another language, all of it.
            concurrency: How many run at once; as many as there are processors unless given.

        Raises:
            CheckpointError: The program could not be prepared.
            LanguageUnavailableError: The template lacks the language.
        """
        return call(
            self._async.judge,
            code,
            cases,
            language=language,
            timeout=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
        )


class Filesystem:
    """The files of a `Sandbox`. Every verb raises a `FileError` whose class says what is wrong."""

    def __init__(self, async_impl: AsyncFilesystem) -> None:
        self._async = async_impl

    @overload
    def read(self, path: InsidePath, *, format: Literal["text"] = "text", max_bytes: int = ...) -> str: ...

    @overload
    def read(self, path: InsidePath, *, format: Literal["bytes"], max_bytes: int = ...) -> bytes: ...

    @overload
    def read(
        self, path: InsidePath, *, format: Literal["stream"], max_bytes: int = ...
    ) -> Iterator[bytes]: ...

    def read(
        self, path: InsidePath, *, format: ReadFormat = "text", max_bytes: int = DEFAULT_MAX_BYTES
    ) -> str | bytes | Iterator[bytes]:
        """Read a file.

        Args:
            path: The file.
            format: text (UTF-8), bytes, or stream: an iterator of pieces of at most 1 MiB.
            max_bytes: A larger file is refused with FileTooLargeError; `stream` has no such bound.
        """
        turn = Turn()
        answer = turn.call(
            cast("Callable[..., Awaitable[Any]]", self._async.read), path, format=format, max_bytes=max_bytes
        )
        return turn.iterate(answer) if isinstance(answer, AsyncGenerator) else answer

    def write(self, path: InsidePath, data: Content) -> FileInfo:
        """Write a file, parents made; what was there is replaced when all is written.

        Args:
            path: The file.
            data: Text (written as UTF-8), bytes, or an open file, which is read in pieces.
        """
        return call(self._async.write, path, data)

    def write_files(self, files: Iterable[WriteEntry]) -> FileInfos:
        """Write several files, one after the other; the first that fails ends it."""
        return call(self._async.write_files, files)

    def list(self, path: InsidePath = ".", *, depth: int = 1) -> FileInfos:
        """List a directory, `depth` levels deep, sorted by path."""
        return call(self._async.list, path, depth=depth)

    def exists(self, path: InsidePath) -> bool:
        """Return whether something is at a path."""
        return call(self._async.exists, path)

    def get_info(self, path: InsidePath) -> FileInfo:
        """Describe a file or directory; links are followed."""
        return call(self._async.get_info, path)

    def make_dir(self, path: InsidePath) -> bool:
        """Make a directory and its parents; False if something was already there."""
        return call(self._async.make_dir, path)

    def remove(self, path: InsidePath) -> None:
        """Remove a file, or a directory with all that is in it."""
        call(self._async.remove, path)

    def rename(self, source: InsidePath, destination: InsidePath) -> FileInfo:
        """Move a file or directory within the sandbox, parents made; return it at its new place."""
        return call(self._async.rename, source, destination)

    def watch(self, path: InsidePath, *, recursive: bool = False) -> Watch:
        """Watch a directory; changes are kept from the moment this returns."""
        return Watch(call(self._async.watch, path, recursive=recursive))


class Watch:
    """Changes below a directory, as they happen: iterate over it, and close it or use it in a `with`."""

    def __init__(self, async_impl: AsyncWatch) -> None:
        self._async = async_impl

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> FileChange:
        try:
            return call(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the watch."""
        call(self._async.close)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        call(self._async.__aexit__, kind, error, where)


class Commands:
    """The commands of a `Sandbox`: processes inside it."""

    def __init__(self, async_impl: AsyncCommands) -> None:
        self._async = async_impl

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandHandle: ...

    def run(
        self,
        command: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult | CommandHandle:
        """Run a command and wait for its end, or start it in the background.

        Args:
            command: A line for bash, or a program and its arguments, which no shell touches.
            background: Return a handle at once.
            cwd: Where; /home/user unless given.
            envs: Added to the sandbox's environment.
            stdin: Text or bytes to feed it; True to keep its input open for `send_stdin`; False for none.
            on_stdout: Called with each piece of output while this call or `handle.wait()` waits.
            on_stderr: The same for standard error.
            timeout: Seconds after which it is killed; None means `limits.wall_seconds`, in the background
                no end.

        Raises:
            CommandExitError: It ended with a code other than 0.
            CommandTimeoutError: Its time was over.
            CommandStartError: There is no such program or directory.
        """
        turn = Turn()
        answer = turn.call(
            cast("Callable[..., Awaitable[Any]]", self._async.run),
            command,
            background=background,
            cwd=cwd,
            envs=envs,
            stdin=stdin,
            on_stdout=turn.relay(on_stdout, "on_stdout"),
            on_stderr=turn.relay(on_stderr, "on_stderr"),
            timeout=timeout,
        )
        return CommandHandle(answer, turn) if isinstance(answer, AsyncCommandHandle) else answer

    def list(self) -> ProcessInfos:
        """List the running commands."""
        return call(self._async.list)

    def connect(
        self, pid: int, *, on_stdout: TextCallback | None = None, on_stderr: TextCallback | None = None
    ) -> CommandHandle:
        """Connect to a running command, or to one that ended less than 30 s ago.

        Raises:
            ProcessNotFoundError: No command has this pid.
        """
        turn = Turn()
        return CommandHandle(
            turn.call(
                self._async.connect,
                pid,
                on_stdout=turn.relay(on_stdout, "on_stdout"),
                on_stderr=turn.relay(on_stderr, "on_stderr"),
            ),
            turn,
        )

    def kill(self, pid: int) -> bool:
        """Kill a command and everything that it started; False if it had ended."""
        return call(self._async.kill, pid)

    def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Write to a command's standard input, which `stdin=True` keeps open."""
        call(self._async.send_stdin, pid, data)

    def close_stdin(self, pid: int) -> None:
        """End a command's standard input."""
        call(self._async.close_stdin, pid)


class CommandHandle:
    """A running command of a `Sandbox`, started in the background or connected to.

    Attributes:
        pid: Its number inside the sandbox.
    """

    def __init__(self, async_impl: AsyncCommandHandle, turn: Turn) -> None:
        self._async = async_impl
        self._turn = turn

    @property
    def pid(self) -> int:
        """Its number inside the sandbox."""
        return self._async.pid

    def wait(self) -> CommandResult:
        """Wait for the end, calling the callbacks meanwhile; later calls give the same answer.

        Raises:
            CommandExitError: It ended with a code other than 0.
            CommandTimeoutError: Its time was over.
        """
        return self._turn.call(self._async.wait)

    def kill(self) -> bool:
        """Kill the command and everything that it started; False if it had ended."""
        return call(self._async.kill)

    def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input, which `stdin=True` keeps open; returns when it was taken."""
        call(self._async.send_stdin, data)

    def close_stdin(self) -> None:
        """End its standard input."""
        call(self._async.close_stdin)


class Pty:
    """The terminals of a `Sandbox`."""

    def __init__(self, async_impl: AsyncPty) -> None:
        self._async = async_impl

    def create(
        self,
        command: Sequence[str] = DEFAULT_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> PtyHandle:
        """Start a shell, or another program, on a terminal.

        Args:
            command: Program and arguments; an interactive bash unless given.
            cols: Width in characters.
            rows: Height in characters.
            cwd: Where; /home/user unless given.
            envs: Added to the sandbox's environment.
            timeout: Seconds after which it is killed; None means never.
        """
        return PtyHandle(
            call(self._async.create, command, cols=cols, rows=rows, cwd=cwd, envs=envs, timeout=timeout)
        )

    def connect(self, pid: int, *, after: int | None = None) -> PtyHandle:
        """Attach to a terminal, which no handle that is left ends; several may be attached to one.

        Args:
            pid: The pid, inside the sandbox, of the program on the terminal.
            after: How many bytes of all that it has written come before the first that is wanted: 0 for all that is
                kept, which are the last 256 KiB of what was read, and the `position` of an earlier handle to go on
                there. None means what has not been read by any.

        Raises:
            ProcessNotFoundError: No command has this pid.
        """
        return PtyHandle(call(self._async.connect, pid, after=after))

    def send(self, pid: int, data: str | bytes) -> None:
        """Type into a terminal; text is sent as UTF-8."""
        call(self._async.send, pid, data)

    def resize(self, pid: int, *, cols: int, rows: int) -> None:
        """Change the size of a terminal."""
        call(self._async.resize, pid, cols=cols, rows=rows)

    def kill(self, pid: int) -> bool:
        """Kill what runs on a terminal; False if it had ended."""
        return call(self._async.kill, pid)


class PtyHandle:
    """A terminal of a `Sandbox`: iterate over it for its output, as bytes, until the end."""

    def __init__(self, async_impl: AsyncPtyHandle) -> None:
        self._async = async_impl

    @property
    def pid(self) -> int:
        """The pid, inside the sandbox, of the program on the terminal."""
        return self._async.pid

    @property
    def position(self) -> int:
        """How many bytes the terminal had written after the last piece, if it was made or attached to with `after`."""
        return self._async.position

    @property
    def exit_code(self) -> int | None:
        """The code that it ended with, once the iteration or `wait` has reached the end."""
        return self._async.exit_code

    def __iter__(self) -> PtyHandle:
        return self

    def __next__(self) -> bytes:
        try:
            return call(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def wait(self) -> int:
        """Wait for the end, dropping what it still writes, and return the exit code."""
        return call(self._async.wait)

    def send(self, data: str | bytes) -> None:
        """Type into the terminal; text is sent as UTF-8."""
        call(self._async.send, data)

    def resize(self, *, cols: int, rows: int) -> None:
        """Change its size."""
        call(self._async.resize, cols=cols, rows=rows)

    def kill(self) -> bool:
        """Kill what runs on it; False if it had ended."""
        return call(self._async.kill)


class Activity:
    """The past and running executions of a `Sandbox`, whichever caller began them."""

    def __init__(self, async_impl: AsyncActivity) -> None:
        self._async = async_impl

    def executions(
        self,
        *,
        context: str | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        whole: bool = False,
    ) -> CellPage:
        """Return some of the executions of a context, in order, the running one included.

        Args:
            context: The context; the default one unless given.
            before: Only those before this position.
            after: Only those after this position. Without either, the newest are returned.
            limit: How many at most.
            whole: Whether each has its whole `execution`, with its outputs.

        Raises:
            ContextNotFoundError: The context does not live.
        """
        return call(
            self._async.executions, context=context, before=before, after=after, limit=limit, whole=whole
        )

    def execution(self, execution_id: str) -> Cell:
        """Return one execution with its outputs; of one that runs, its outputs so far.

        Args:
            execution_id: Its id.

        Raises:
            ExecutionNotFoundError: No execution has this id, or it is not kept any more.
        """
        return call(self._async.execution, execution_id)

    def result_bytes(self, execution_id: str, number: int, mime: str) -> bytes:
        """Return one format of one result as bytes.

        Args:
            execution_id: The execution.
            number: The number of the result, from 0.
            mime: The format, such as `image/png`.

        Raises:
            ExecutionNotFoundError: The execution is not known, or no longer.
        """
        return call(self._async.result_bytes, execution_id, number, mime)

    def variables(
        self,
        *,
        context: str | None = None,
        text: str = "",
        after: str | None = None,
        limit: int = 200,
        at: str | None = None,
    ) -> VariablePage:
        """Return the variables of a context by name, without running code of their classes.

        While the context runs code, or is paused, those that were seen last are returned; nothing waits.

        Args:
            context: The context; the default one unless given.
            text: Only those with this text in the name, the type or the summary.
            after: `next_cursor` of the page before.
            limit: How many at most.
            at: The checkpoint whose variables are meant, by its id or its name; those of now unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: There is no such checkpoint.
            InvalidArgumentError: The checkpoint is of another context.
        """
        return call(self._async.variables, context=context, text=text, after=after, limit=limit, at=at)

    def variable(self, name: str, *, context: str | None = None, at: str | None = None) -> VariablePage:
        """Return one variable in detail, as the one item of a page; no item if there is no such variable.

        Args:
            name: Its name.
            context: The context; the default one unless given.
            at: The checkpoint whose variable is meant, by its id or its name; that of now unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: There is no such checkpoint.
            InvalidArgumentError: The checkpoint is of another context.
        """
        return call(self._async.variable, name, context=context, at=at)

    def compare(self, before: str, after: str = "now") -> Comparison:
        """Return in what two moments of the sandbox differ: variables of a context, and files.

        Args:
            before: The earlier one: a checkpoint, by its id or its name.
            after: The later one: a checkpoint of the same context, or `now`.

        Raises:
            CheckpointNotFoundError: There is no such checkpoint.
            CheckpointLostError: Code in the sandbox has ended it.
        """
        return call(self._async.compare, before, after)

    def kept_file(self, checkpoint: str, path: str) -> bytes:
        """Return the first 1 MiB of a file as it was at a checkpoint.

        Args:
            checkpoint: The checkpoint, by its id or its name.
            path: Absolute path of the file, as `compare` names it.

        Raises:
            CheckpointNotFoundError: There is no such checkpoint.
            FileError: There was no such file then.
        """
        return call(self._async.kept_file, checkpoint, path)

    def family(self) -> Family:
        """Return the sandbox, its ancestors and all their forks, those that have ended lately too."""
        return call(self._async.family)

    def commands(self, *, after: int | None = None, limit: int = 200) -> CommandPage:
        """Return the commands of the sandbox, those that run and those that have ended, with the ends of their output.

        Args:
            after: Only those after this number.
            limit: How many at most; the newest are returned.
        """
        return call(self._async.commands, after=after, limit=limit)

    def ports(self) -> PortList:
        """Return the TCP ports on which programs of the sandbox listen, each with its program; at most a second old."""
        return call(self._async.ports)

    def use(self) -> SandboxUse:
        """Return what the sandbox uses and does now, as far as the host knows it without asking the sandbox."""
        return call(self._async.use)

    def events(self, *, after: int | None = None) -> Iterator[WatchEvent]:
        """Yield the events of the sandbox, whichever caller causes them: `here` first, `ended` last.

        Args:
            after: The `seq` of an event: later events that are kept come first, or a `gap` in place of those that are
                not. Unless given, only new events are yielded.
        """
        turn = Turn()
        return turn.iterate(self._async.events(after=after))


class Shares:
    """The shares of a `Sandbox` of a server: read-only views of it, for people without an account."""

    def __init__(self, async_impl: AsyncShares) -> None:
        self._async = async_impl

    def create(
        self,
        shows: SharedParts = ("record",),
        *,
        context: ContextInfo | str = DEFAULT_CONTEXT_ID,
        seconds: int = DAY_SECONDS,
        from_at: datetime | None = None,
        until_at: datetime | None = None,
    ) -> Share:
        """Share the sandbox, and return the share with its address in `url`.

        A browser shows the page of that address to everyone with it, live and without an account. Looking on
        changes nothing: it resumes no sandbox and extends no lifetime.

        Args:
            shows: The parts that it shows: `record` (code and outputs), `variables`, `files`, `audit`, `network`.
            context: The one context that it shows. The network is of the whole sandbox: only with the default one.
            seconds: After how long it ends by itself: from a minute to 30 days, a day unless given.
            from_at: Anything that began earlier is hidden; None hides nothing. A time with its zone.
            until_at: Anything that ended later is hidden; None shows the sandbox live. Not for `variables` and `files`.

        Raises:
            InvalidArgumentError: An argument is refused, or the sandbox does not live at a server.
            ForbiddenError: The server has no shares, or the key may make none.
            QuotaError: The key has 200 of them.
        """
        return call(
            self._async.create, shows, context=context, seconds=seconds, from_at=from_at, until_at=until_at
        )

    def list(self) -> ShareList:
        """Return the shares of the sandbox that have not ended, the newest first; their `url` is empty.

        Raises:
            InvalidArgumentError: The sandbox does not live at a server.
        """
        return call(self._async.list)

    def revoke(self, share: Share | str) -> None:
        """End a share, and within two seconds what its readers have open; does nothing if it has ended.

        Args:
            share: The share, or its id.

        Raises:
            InvalidArgumentError: The sandbox does not live at a server.
        """
        call(self._async.revoke, share)


class Records:
    """The records of sandboxes that have ended: what ran in each, its audit record, and why it ended.

    Records are kept only where the setting `records` is `keep`: a server's is `--records keep`, in this process it is
    `FUMEHOOD_RECORDS`. A living sandbox has its own: `Sandbox.get_record()`.

    Args:
        url: Address of the server; None: FUMEHOOD_URL, or in this process.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        backend: Where the sandboxes lived, in place of both.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, backend: Backend | None = None
    ) -> None:
        self._async = AsyncRecords(url=url, api_key=api_key, backend=backend)

    def list(self, text: str = "", *, limit: int = 100) -> EndedSandboxes:
        """Describe sandboxes that have ended and whose records are kept, the latest end first.

        Args:
            text: Only those with this text in id, template, key, reason or a label.
            limit: How many at most, up to 500.
        """
        return call(self._async.list, text, limit=limit)

    def get(self, sandbox_id: str, context: ContextInfo | str = DEFAULT_CONTEXT_ID) -> Record:
        """Return what ran in a sandbox that has ended, with its results; `replay` runs it again and compares.

        What ran when the sandbox ended is the last cell, with its output until then.

        Args:
            sandbox_id: The id that it had.
            context: The context.

        Raises:
            RecordNotFoundError: No record of it is kept, or no longer.
            ContextNotFoundError: The context has no record.
        """
        return call(self._async.get, sandbox_id, context)

    def audit_log(self, sandbox_id: str) -> AuditLog:
        """Return the audit record of a sandbox that has ended, to its last entry.

        Raises:
            RecordNotFoundError: No record of it is kept, or no longer.
        """
        return call(self._async.audit_log, sandbox_id)

    def delete(self, sandbox_id: str) -> None:
        """Delete the record of a sandbox that has ended, for good.

        Raises:
            RecordNotFoundError: No record of it is kept, or no longer.
        """
        call(self._async.delete, sandbox_id)
