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
from fumehood.tracebacks import PlainErrors
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

    It lives from its creation until it is killed, its lifetime is over, or this process ends; use it in a `with`.

    Attributes:
        files: Its files.
        commands: Its processes.
        pty: Its terminals.
        activity: Past and running executions.
        shares: Read-only views of it for other people; only for a sandbox at a server.

    Args:
        template: Its interpreter, packages and preloaded modules: a `Template`, or the name of one that was used
            before; `default` is the environment of this process.
        limits: Its limits: `Limits(memory="2G")`, or a mapping such as `{"memory": "2G"}`.
        envs: Environment variables of all programs in it.
        metadata: Names and values of your own, returned by `get_info()` and `list()`.
        labels: Labels of the machine that it must be on, such as `{"zone": "a"}`; only machines of a cluster have
            labels. What describes the sandbox itself is `metadata`.
        timeout: Seconds after which it is killed, or paused; None: it lives until it is killed.
        idle_timeout: Seconds without a call after which it is killed; None: no limit.
        on_timeout: What happens when the `timeout` is over: kill, pause, or pause_files (`pause(files_only=True)`).
        on_host_loss: What a call does if the sandbox is lost because its machine or host daemon is gone: `raise`
            SandboxClosedError, or `restore` the sandbox from its last `save`, which may be in a bucket, and continue. A
            call that may have been carried out raises in both cases, and the next call continues.
        auto_resume: Whether a call to the paused sandbox resumes it, instead of raising SandboxPausedError.
        strict: Whether to refuse to start if a layer of isolation is missing, instead of listing the layer as degraded.
        isolation: The weakest level of isolation that is accepted, such as `namespaces` or `landlock-only`; without it
            the sandbox does not start. None: the level in the settings, by default `namespaces`.
        network: The network that it may reach: `none`, `pip` for the package index only, `internet` for all public
            addresses, a list such as `["api.example.com"]`, or a `Network(allow=[...])`.
        security_policy: The reactions to security events: `SecurityRule(kind=..., action=..., count=...)`.
        on_security_event: Called with each security event, in a thread of its own, one after the other.
        telemetry: Whether its interpreters report calls of the code, as security events that are only advice.
        url: Address of the server on which it lives; None: FUMEHOOD_URL, or else this process.
        api_key: The token of that server; None: FUMEHOOD_API_KEY.
        backend: An existing backend to use, instead of `url` and `api_key`.
        limit_fields: Single limits, which replace those in `limits`: `Sandbox(memory="2G", cpu_cores=1)`.

    Raises:
        InvalidArgumentError: An argument is refused.
        SandboxStartError: The sandbox did not start; the class and the hint of the error say why.
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

        As with `run_code`, code that fails raises no exception: see `get_record().cells[-1].execution.error`.

        `notebook` is a path, or the notebook as JSON holds it; `parameters` are variables that are set after the cell
        with the tag `parameters`, or before all cells. The other arguments are those of `Sandbox`.

        Raises:
            InvalidArgumentError: The notebook is not a Python notebook, or a parameter cannot be set.
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
        """Connect to a living sandbox by its id; leaving its `with` kills the sandbox like any other.

        Raises:
            SandboxNotFoundError: No sandbox with this id has lived here.
            SandboxClosedError: The sandbox has ended.
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
            metadata: Only sandboxes that have all of these labels.
            url: Address of the server; None: FUMEHOOD_URL, or else this process.
            api_key: The token of the server; None: FUMEHOOD_API_KEY.
            backend: The backend of the sandboxes, in place of `url` and `api_key`.
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
        """Describe the sandbox: times, labels, limits and isolation.

        Raises:
            SandboxClosedError: The sandbox has ended; every other method except `kill` and `is_running` raises it too.
        """
        return call(self._async.get_info)

    def get_metrics(self) -> Metrics:
        """Return the current resource use of the sandbox, paused or not."""
        return call(self._async.get_metrics)

    def upload(self, local: LocalPath, remote: InsidePath | None = None) -> FileInfos:
        """Write a file of this machine, or a folder with all files in it, into the sandbox.

        Args:
            local: The file or folder.
            remote: Its path in the sandbox; None: its own name in the home directory, where code can open it by this
                name.

        Returns:
            The files that were written.

        Raises:
            OSError: A local file cannot be read.
            InvalidArgumentError: A local file is a FIFO, a socket or a device.
            FileError: A file cannot be written in the sandbox.
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
        """Copy a file of the sandbox, or a folder with its content, to this machine.

        The sandbox chooses the names of files: a name that would lead out of the folder is left out. Hidden files of a
        folder are not copied, since this machine would run some of them (`.bashrc`, `.git`).

        Args:
            remote: The file or folder.
            local: For a file, its new path or an existing folder; for a folder, the path of its copy.
            overwrite: Whether to replace existing files. A file whose new path is given in full is always replaced.
            max_bytes: The most bytes of all files together.

        Returns:
            The files that were written.

        Raises:
            PathNotFoundError: The path does not exist in the sandbox.
            DownloadError: Some files could not be written; the error names them, each with the reason.
        """
        return call(self._async.download, remote, local, overwrite=overwrite, max_bytes=max_bytes)

    def screenshot(self) -> bytes:
        """Return the screen of the sandbox's display as a PNG; its template must have been built with `display=True`.

        Raises:
            ScreenshotError: The sandbox has no display.
        """
        return call(self._async.screenshot)

    def install(self, *packages: str | Sequence[str], timeout: float = 300.0) -> None:
        """Install Python packages into the sandbox with pip; they can be imported at once.

        The sandbox must reach an index, as with `network="pip"`.

        Args:
            packages: Names as separate arguments or as one list, with versions if needed: `polars>=1`.
            timeout: Seconds after which pip is ended.

        Raises:
            InvalidArgumentError: No package is given, one is not a requirement of pip, or the sandbox has no network.
            CommandExitError: pip failed; its last lines are in the error.
            CommandTimeoutError: pip exceeded the `timeout`.
        """
        call(self._async.install, *packages, timeout=timeout)

    def get_url(self, port: int, *, wait: bool | float = False) -> str:
        """Return the address of a server in the sandbox, for example for a browser.

        The address works as soon as a program listens on that port of the sandbox, on 127.0.0.1 or 0.0.0.0. For a
        sandbox in this process it is a port of this machine's loopback, for a sandbox at a server an address of that
        server.

        Args:
            port: The port in the sandbox.
            wait: Whether to wait until a program listens there: True waits for up to 30 seconds, a number for so many
                seconds.

        Raises:
            PortClosedError: No program listens on the port after that time.
        """
        return call(self._async.get_url, port, wait=wait)

    def get_host(self, port: int) -> str:
        """Return the host name of a server in the sandbox, with a port if needed.

        Raises:
            NoHostNameError: The server of the sandbox has no domain; `get_url` works there as well.
        """
        return call(self._async.get_host, port)

    def is_running(self) -> bool:
        """Return whether the sandbox lives, paused or not."""
        return call(self._async.is_running)

    def set_timeout(self, timeout: float | None) -> None:
        """Set the remaining lifetime of the sandbox, in seconds from now; None: it lives until it is killed.

        For a paused sandbox this is the time that it has after it is resumed.
        """
        call(self._async.set_timeout, timeout)

    def set_metadata(self, changes: Mapping[str, str | None]) -> None:
        """Change the named labels of the sandbox; the value None removes a label, other labels do not change.

        Args:
            changes: New values by name. A sandbox has at most 64 labels, names of up to 128 characters, and 16 KiB of
                UTF-8 in all.
        """
        call(self._async.set_metadata, changes)

    def set_network(self, network: NetworkChoice) -> None:
        """Change the network that the sandbox may reach; connections that the new rules forbid are closed.

        Secrets without a value, as `get_info().network` shows them, keep their present value.
        """
        call(self._async.set_network, network)

    def egress_log(self) -> EgressRecords:
        """Return the allowed and denied connections of the sandbox: the last 1000 of each kind, the oldest first."""
        return call(self._async.egress_log)

    def pause(self, *, files_only: bool = False) -> bool:
        """Freeze the sandbox; False if it was paused already.

        No process in it runs, and it uses no CPU time; processes and memory stay as they are. All of its clocks are
        stopped: the `timeout`, the `idle_timeout`, and the time limits of running code. It stays paused until `resume`
        or `kill`.

        Args:
            files_only: Whether to keep only files and settings: its processes end, and its contexts start afresh after
                `resume`.
        """
        return call(self._async.pause, files_only=files_only)

    def resume(self, *, files_only: bool = False) -> bool:
        """Resume the paused sandbox, with the lifetime that it had left; False if it was running.

        A sandbox that was paused because its time was over gets its whole `timeout` again. `files_only` ends the
        processes that the pause has kept.
        """
        return call(self._async.resume, files_only=files_only)

    def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox, paused or not, with everything in it; False if it had ended before.

        Args:
            wait: Whether to return only when no process of it is left; otherwise as soon as its end is certain.
        """
        return call(self._async.kill, wait=wait)

    def audit_log(self) -> AuditLog:
        """Return the audit record of the sandbox: a hash chain, in which a later change can be detected.

        It has the newest entries, at most 4,096 and 2 MiB; `dropped` counts the older ones. It can be read for a while
        after the sandbox has ended. `log.fault(execution.audit_head)` checks it against a head from an earlier
        execution.
        """
        return call(self._async.audit_log)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Descriptions of the parts of its parent that could not be forked; empty for a sandbox that is not a fork."""
        return self._async.left_behind

    def fork(
        self,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a new sandbox that continues from the state of this one, which continues as well.

        See `forks`, which makes several at once, for a description of forks.

        Args:
            checkpoint: The checkpoint to continue from: the result of `checkpoint()`, its id, or its name. None: the
                present state.
            reseed: Whether the fork gets a random state of its own. False: it draws the same random numbers as its
                parent.
            timeout: Seconds after which the fork is killed or paused, depending on its parent's `on_timeout`; None: it
                lives until it is killed; "inherit": its parent's `timeout`, counted from now.
            metadata: The labels of the fork; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: No checkpoint has this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended the checkpoint.
            ForkDepthError: This sandbox is already nested too deeply as a fork of forks.
            ForkError: The fork could not be made; the sandbox is unchanged.
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
        """Make new sandboxes that continue independently from the state of this one, which continues as well.

        A fork has the variables, modules, open files, working directory, environment and record of the default context,
        and all files, as they are now or were at a checkpoint; limits, network and labels are those of its parent. It
        is a sandbox like any other: it sees no changes in its parent or in other forks, survives their end, and ends
        when it is killed or its `with` is left. Its `left_behind` lists the parts that cannot be forked: other
        contexts, running commands, threads, child processes, sockets.

        Args:
            count: The number of forks, up to 64; either all are made, or none.
            checkpoint: The checkpoint to continue from: the result of `checkpoint()`, its id, or its name. None: the
                present state.
            reseed: Whether each fork gets a random state of its own. False: all draw the same random numbers.
            timeout: Seconds after which each fork is killed or paused, depending on its parent's `on_timeout`; None: it
                lives until it is killed; "inherit": its parent's `timeout`, counted from now.
            metadata: The labels of each fork; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: No checkpoint has this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended the checkpoint.
            ForkDepthError: This sandbox is already nested too deeply as a fork of forks.
            ForkError: The forks could not be made; the sandbox is unchanged.
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
        """Replace this sandbox by one of its forks, which continues under this sandbox's id.

        The replaced sandbox is killed.

        The fork's object cannot be used afterwards; its id counts as ended, with the reason `adopted`.

        Args:
            child: A fork that `fork` or `forks` has returned.

        Raises:
            InvalidArgumentError: `child` is not a fork of this sandbox.
            ForkError: The replacement failed; both sandboxes are unchanged.
        """
        check_child(child, Sandbox)
        call(self._async.adopt, child._async)

    @property
    def load_report(self) -> LoadReport | None:
        """The load report of a sandbox that was loaded from a saved state; None for any other sandbox."""
        return self._async.load_report

    def save(self, place: StatePlace) -> SaveReport:
        """Write the lasting parts of the sandbox to a file, from which `load` makes a new sandbox.

        It keeps the files of the writable folders, the environment and the record, and of each Python context the
        working directory, the imported modules and the variables that can be serialised; objects that variables share
        stay shared. Processes, open files, threads and connections are not kept. The sandbox continues. The file
        contains all data of the sandbox, including secrets in its environment, so only its owner should be able to read
        it.

        Args:
            place: A path of a file, which is replaced only when all is written, or `s3://BUCKET/NAME`,
                `az://CONTAINER/NAME`, `gs://BUCKET/NAME`, which need `fumehood[blobs]`.

        Returns:
            A report on the saved parts, and on the parts that were left out and why.

        Raises:
            SaveError: The file cannot be written, or a context does not answer; the sandbox is unchanged.
        """
        return call(self._async.save, place)

    @property
    def restored(self) -> int:
        """How often the sandbox was restored from its last save because its machine was lost; see `on_host_loss`."""
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

        Load only files whose code you would run in a sandbox: variables are unpickled, though only inside the sandbox.

        Args:
            place: The path or URL of the file, as for `save`.
            template: Its template, in place of the one whose name is in the saved state.
            limits: See `Sandbox`, also for the other arguments.
            envs: Environment variables, which override those that were saved.
            metadata: Labels.
            timeout: Seconds after which it is killed, or paused.
            idle_timeout: Seconds without a call after which it is killed.
            on_timeout: What happens when the `timeout` is over.
            on_host_loss: As for `Sandbox`; `place` counts as its last save.
            auto_resume: Whether a call to the paused sandbox resumes it.
            strict: Whether to refuse to start if a layer of isolation is missing.
            network: The network that it may reach.
            url: The server that will host it.
            api_key: The token of that server.
            backend: An existing backend to use, instead of `url` and `api_key`.

        Raises:
            SavedStateDamagedError: The file was changed after it was saved, or is not a saved state; the error names
                the part.
            SavedStateVersionError: The file was written by a newer fumehood.
            LoadError: The state cannot be loaded; no sandbox is left.
            SandboxStartError: The sandbox did not start.
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
        """The id of the sandbox, for `connect`."""
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
        """Run code and wait for its end. Code that fails raises no exception: its `Execution` has an `error`.

        Callbacks run in the caller's thread. Ctrl-C, or an error in a callback, interrupts the code; its state is kept.

        Args:
            code: The code to run, as in a notebook's cell.
            language: The name of its language, as in the guide to languages.
            context: The context to run it in; the default context unless given.
            envs: Environment variables for this execution only.
            timeout: Seconds until it is interrupted; `limits.wall_seconds` unless given.
            stdin: The whole standard input, which `input()` reads too; empty unless given.
            on_stdout: Called with each piece of standard output when it arrives.
            on_stderr: The same as `on_stdout`, for standard error.
            on_result: Called with each result when it arrives.
            on_error: Called with the error, if there is one.
            on_input: Called with the prompt when the code asks for input; returns the line, or None for the end of
                input. `question.is_password` is True if the answer should not be shown. Without it, and without
                `stdin`, `input()` fails with EOFError.
            tools: Your functions that the code may call while it runs, by their names in the code. Plain functions run
                in this thread; an `async def` runs on a loop of its own, and the code awaits it.
            on_tool_call: Called before each call of a tool; if it returns False or a text, the call is denied, and the
                code sees the text.
            transactional: Whether to keep changes only if the code ends normally: after an error, a timeout, a kill or
                a lack of memory, variables and files are restored; see `execution.transaction`.
            on_commit: For transactional code: called with its changes, which are undone unless it returns True. The
                context waits meanwhile: the callback must not run code in it.
            changes: Whether to report in `execution.changes` which variables and files the code changed.
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
        """Interrupt the running code of a context, from another thread or a callback; False if no code runs.

        Code that does not stop within `limits.grace_seconds` is killed and its context replaced; the execution's
        `error` and `state_lost` show whether that happened.
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
        """Replace a context by a fresh one of the same id; code that runs in it is killed."""
        return call(self._async.restart_code_context, context)

    def remove_code_context(self, context: Context) -> None:
        """Kill a context; the default context is created afresh when it is used again."""
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
                outputs), `.py` (the cells), `.html` (a standalone page, in which no content of the sandbox can run).
                None: the text of the notebook is returned, and no file is written.
            context: The context; the default one unless given.
        """
        return call(self._async.to_notebook, path, context)

    def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Save the present state of a context and of the files, for a later `rollback`.

        Every live object of the context is kept as it is: variables, modules, suspended generators, open files, random
        states. It takes a few milliseconds, and memory only for later changes. `left_behind` lists the parts that
        cannot be kept (other threads, child processes, sockets). At most 16 checkpoints are kept; then the oldest is
        dropped.

        Args:
            name: A name of yours; `rollback` takes it as well. A name that is given again is the new one's: the older
                checkpoint keeps its id.
            context: The context whose state is kept; None for the default one. Not every language has checkpoints.
            strict: Whether to refuse if a part cannot be kept.

        Raises:
            CheckpointError: The checkpoint cannot be made; the sandbox is unchanged.
        """
        return call(self._async.checkpoint, name, context=context, strict=strict)

    def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint: the context's state and the files are restored; the checkpoint is kept.

        Other contexts and running commands continue.

        Args:
            checkpoint: The result of `checkpoint`, its id, or its name, which is the newest's if several have it.

        Raises:
            CheckpointNotFoundError: No checkpoint has this id or name; a fork has none of its parent's.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended the checkpoint; the sandbox is
                unchanged.
            CheckpointError: The state cannot be restored, for example for lack of disk space; the sandbox is unchanged.
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

        The program's top-level imports are made once, or it is compiled once; each case is a fork of that process, with
        its own memory, standard input and limits, so that a thousand cases take seconds. The program does not see
        variables of the sandbox. It sees the files, which are restored afterwards. The expected output never enters the
        sandbox.

        Args:
            code: The program; one in Python runs as `__main__`.
            cases: For each case, its input and its expected output; lines are compared without trailing white space,
                and output beyond `limits.stdout_bytes` is not accepted.
            language: The language of the program.
            timeout: The time limit of each run, in seconds.
            memory_bytes: The memory of each run beyond interpreter and imports; for a language other than Python, its
                whole memory.
            concurrency: How many runs may be active at once; as many as there are processors unless given.

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


class Filesystem(PlainErrors):
    """The files of a `Sandbox`. Every method raises a `FileError`, whose subclass names the reason."""

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
            max_bytes: The maximum size; a larger file raises FileTooLargeError. It does not apply to `stream`.
        """
        turn = Turn()
        answer = turn.call(
            cast("Callable[..., Awaitable[Any]]", self._async.read), path, format=format, max_bytes=max_bytes
        )
        return turn.iterate(answer) if isinstance(answer, AsyncGenerator) else answer

    def write(self, path: InsidePath, data: Content) -> FileInfo:
        """Write a file, and make its parent folders; an existing file is replaced only when all is written.

        Args:
            path: The file.
            data: Text (written as UTF-8), bytes, or an open file, which is read in pieces.
        """
        return call(self._async.write, path, data)

    def write_files(self, files: Iterable[WriteEntry]) -> FileInfos:
        """Write several files, one after the other; the first error ends it."""
        return call(self._async.write_files, files)

    def list(self, path: InsidePath = ".", *, depth: int = 1) -> FileInfos:
        """List a directory, `depth` levels deep, sorted by path."""
        return call(self._async.list, path, depth=depth)

    def exists(self, path: InsidePath) -> bool:
        """Return whether a path exists."""
        return call(self._async.exists, path)

    def get_info(self, path: InsidePath) -> FileInfo:
        """Describe a file or directory; links are followed."""
        return call(self._async.get_info, path)

    def make_dir(self, path: InsidePath) -> bool:
        """Make a directory and its parents; False if the path existed already."""
        return call(self._async.make_dir, path)

    def remove(self, path: InsidePath) -> None:
        """Remove a file, or a directory with its content."""
        call(self._async.remove, path)

    def rename(self, source: InsidePath, destination: InsidePath) -> FileInfo:
        """Move a file or directory within the sandbox, and make the new parent folders; return its new description."""
        return call(self._async.rename, source, destination)

    def watch(self, path: InsidePath, *, recursive: bool = False) -> Watch:
        """Watch a directory; changes are kept from the moment this returns."""
        return Watch(call(self._async.watch, path, recursive=recursive))


class Watch(PlainErrors):
    """The changes below a directory as they happen: iterate over this object, and close it or use it in a `with`."""

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


class Commands(PlainErrors):
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
            background: Whether to return a handle at once.
            cwd: The folder to start in; /home/user unless given.
            envs: Environment variables in addition to those of the sandbox.
            stdin: Text or bytes for its standard input; True to keep it open for `send_stdin`; False for an empty one.
            on_stdout: Called with each piece of output while this call or `handle.wait()` waits.
            on_stderr: The same as `on_stdout`, for standard error.
            timeout: Seconds after which it is killed; None means `limits.wall_seconds`, or no limit for a command in
                the background.

        Raises:
            CommandExitError: The command ended with an exit code other than 0.
            CommandTimeoutError: The command exceeded the `timeout` and was killed.
            CommandStartError: The program or the directory does not exist.
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


class CommandHandle(PlainErrors):
    """A running command of a `Sandbox`, started in the background or connected to.

    Attributes:
        pid: Its pid inside the sandbox.
    """

    def __init__(self, async_impl: AsyncCommandHandle, turn: Turn) -> None:
        self._async = async_impl
        self._turn = turn

    @property
    def pid(self) -> int:
        """The pid of the command inside the sandbox."""
        return self._async.pid

    def wait(self) -> CommandResult:
        """Wait for the end of the command, and call the callbacks meanwhile; later calls return the same result.

        Raises:
            CommandExitError: The command ended with an exit code other than 0.
            CommandTimeoutError: The command exceeded its `timeout` and was killed.
        """
        return self._turn.call(self._async.wait)

    def kill(self) -> bool:
        """Kill the command and everything that it started; False if it had ended."""
        return call(self._async.kill)

    def send_stdin(self, data: str | bytes) -> None:
        """Write to the command's standard input, which `stdin=True` keeps open; return when all bytes were accepted."""
        call(self._async.send_stdin, data)

    def close_stdin(self) -> None:
        """Close the command's standard input."""
        call(self._async.close_stdin)


class Pty(PlainErrors):
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
            cwd: The folder to start in; /home/user unless given.
            envs: Environment variables in addition to those of the sandbox.
            timeout: Seconds after which it is killed; None means never.
        """
        return PtyHandle(
            call(self._async.create, command, cols=cols, rows=rows, cwd=cwd, envs=envs, timeout=timeout)
        )

    def connect(self, pid: int, *, after: int | None = None) -> PtyHandle:
        """Attach to a terminal. Several handles may be attached to one terminal; closing a handle does not end it.

        Args:
            pid: The pid, inside the sandbox, of the program on the terminal.
            after: The position, in bytes of all its output, at which to start: 0 for all kept output, which is the last
                256 KiB of the output that was read, or the `position` of an earlier handle to continue there. None
                means the output that no handle has read.

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
        """Kill the program on a terminal; False if it had ended."""
        return call(self._async.kill, pid)


class PtyHandle(PlainErrors):
    """A terminal of a `Sandbox`: iterate over it for its output, as bytes, until the end."""

    def __init__(self, async_impl: AsyncPtyHandle) -> None:
        self._async = async_impl

    @property
    def pid(self) -> int:
        """The pid, inside the sandbox, of the program on the terminal."""
        return self._async.pid

    @property
    def position(self) -> int:
        """The number of bytes of the terminal's output up to the last piece, if made or attached with `after`."""
        return self._async.position

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program, once the iteration or `wait` has reached the end."""
        return self._async.exit_code

    def __iter__(self) -> PtyHandle:
        return self

    def __next__(self) -> bytes:
        try:
            return call(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def wait(self) -> int:
        """Wait for the end of the program, discarding its remaining output, and return the exit code."""
        return call(self._async.wait)

    def send(self, data: str | bytes) -> None:
        """Type into the terminal; text is sent as UTF-8."""
        call(self._async.send, data)

    def resize(self, *, cols: int, rows: int) -> None:
        """Change the size of the terminal."""
        call(self._async.resize, cols=cols, rows=rows)

    def kill(self) -> bool:
        """Kill the program on the terminal; False if it had ended."""
        return call(self._async.kill)


class Activity(PlainErrors):
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
            before: Only executions before this position.
            after: Only executions after this position. Without `before` and `after`, the newest are returned.
            limit: The most executions to return.
            whole: Whether each item includes its whole `execution`, with its outputs.

        Raises:
            ContextNotFoundError: The context does not live.
        """
        return call(
            self._async.executions, context=context, before=before, after=after, limit=limit, whole=whole
        )

    def execution(self, execution_id: str) -> Cell:
        """Return one execution with its outputs; if it is still running, with its outputs so far.

        Args:
            execution_id: The id of the execution.

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
            ExecutionNotFoundError: The execution is not known, or not kept any more.
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

        If the context runs code or is paused, the last known variables are returned, so that the call does not wait.

        Args:
            context: The context; the default one unless given.
            text: Only variables with this text in the name, the type or the summary.
            after: `next_cursor` of the previous page.
            limit: The most variables to return.
            at: The id or name of a checkpoint whose variables to return; the present variables unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: The checkpoint does not exist.
            InvalidArgumentError: The checkpoint belongs to another context.
        """
        return call(self._async.variables, context=context, text=text, after=after, limit=limit, at=at)

    def variable(self, name: str, *, context: str | None = None, at: str | None = None) -> VariablePage:
        """Return one variable in detail, as the only item of a page; the page is empty if the variable does not exist.

        Args:
            name: The name of the variable.
            context: The context; the default one unless given.
            at: The id or name of a checkpoint whose variable to return; the present variable unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: The checkpoint does not exist.
            InvalidArgumentError: The checkpoint belongs to another context.
        """
        return call(self._async.variable, name, context=context, at=at)

    def compare(self, before: str, after: str = "now") -> Comparison:
        """Return the differences between two moments of the sandbox: variables of a context, and files.

        Args:
            before: The earlier moment: a checkpoint, by its id or its name.
            after: The later moment: a checkpoint of the same context, or `now`.

        Raises:
            CheckpointNotFoundError: A checkpoint does not exist.
            CheckpointLostError: Code in the sandbox has ended a checkpoint.
        """
        return call(self._async.compare, before, after)

    def kept_file(self, checkpoint: str, path: str) -> bytes:
        """Return the first 1 MiB of a file as it was at a checkpoint.

        Args:
            checkpoint: The checkpoint, by its id or its name.
            path: Absolute path of the file, as `compare` names it.

        Raises:
            CheckpointNotFoundError: The checkpoint does not exist.
            FileError: The file did not exist at the checkpoint.
        """
        return call(self._async.kept_file, checkpoint, path)

    def family(self) -> Family:
        """Return the sandbox, its ancestors and all their forks, including those that have ended recently."""
        return call(self._async.family)

    def commands(self, *, after: int | None = None, limit: int = 200) -> CommandPage:
        """Return the commands of the sandbox, those that run and those that have ended, with the ends of their output.

        Args:
            after: Only those after this number: `next_cursor` of the previous page; unless given, from the oldest on.
            limit: How many at most; a page with much output has fewer.
        """
        return call(self._async.commands, after=after, limit=limit)

    def ports(self) -> PortList:
        """Return the TCP ports on which programs of the sandbox listen, each with its program; at most a second old."""
        return call(self._async.ports)

    def use(self) -> SandboxUse:
        """Return the current usage and activity of the sandbox, as known to the host without asking the sandbox."""
        return call(self._async.use)

    def events(self, *, after: int | None = None) -> Iterator[WatchEvent]:
        """Yield the events of the sandbox, whichever caller causes them: `here` first, `ended` last.

        Args:
            after: The `seq` of an event: kept events after it come first, with a `gap` in place of events that are not
                kept any more. Unless given, only new events are yielded.
        """
        turn = Turn()
        return turn.iterate(self._async.events(after=after))


class Shares(PlainErrors):
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

        Everyone with that address can open it in a browser, live and without an account. Viewing changes nothing: it
        resumes no sandbox and extends no lifetime.

        Args:
            shows: The parts that it shows: `record` (code and outputs), `variables`, `files`, `audit`, `network`.
            context: The only context that it shows. `network`, which concerns the whole sandbox, is allowed only with
                the default context.
            seconds: How long the share lasts, from a minute to 30 days; a day unless given.
            from_at: Executions that began before this time are hidden; None hides none. It must have a time zone.
            until_at: Executions that ended after this time are hidden; None shows the sandbox live. Not for `variables`
                and `files`.

        Raises:
            InvalidArgumentError: An argument is refused, or the sandbox does not live at a server.
            ForbiddenError: The server has shares switched off, or the key may make none.
            QuotaError: The key already has 200 shares.
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
        """End a share, and its readers' connections within two seconds; does nothing if it has ended.

        Args:
            share: The share, or its id.

        Raises:
            InvalidArgumentError: The sandbox does not live at a server.
        """
        call(self._async.revoke, share)


class Records(PlainErrors):
    """The records of sandboxes that have ended: the code that ran in each, its audit record, and why it ended.

    Records are kept only where the setting `records` is `keep`: a server's is `--records keep`, in this process it is
    `FUMEHOOD_RECORDS`. For a living sandbox, use `Sandbox.get_record()`.

    Args:
        url: Address of the server; None: FUMEHOOD_URL, or else this process.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        backend: The backend of the sandboxes, in place of `url` and `api_key`.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, backend: Backend | None = None
    ) -> None:
        self._async = AsyncRecords(url=url, api_key=api_key, backend=backend)

    def list(self, text: str = "", *, limit: int = 100) -> EndedSandboxes:
        """Describe sandboxes that have ended and whose records are kept, the one that ended last comes first.

        Args:
            text: Only sandboxes with this text in id, template, key, reason or a label.
            limit: The most sandboxes to return, up to 500.
        """
        return call(self._async.list, text, limit=limit)

    def get(self, sandbox_id: str, context: ContextInfo | str = DEFAULT_CONTEXT_ID) -> Record:
        """Return the executions of a sandbox that has ended, with their results; `replay` runs them again and compares.

        Code that ran when the sandbox ended is the last cell, with its output until then.

        Args:
            sandbox_id: The id that it had.
            context: The context.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
            ContextNotFoundError: The context has no record.
        """
        return call(self._async.get, sandbox_id, context)

    def commands(self, sandbox_id: str, *, after: int | None = None, limit: int = 200) -> CommandPage:
        """Return the commands of a sandbox that has ended; those that ran until its end have no exit code.

        Args:
            sandbox_id: The id that it had.
            after: Only those after this number: `next_cursor` of the previous page; unless given, from the oldest on.
            limit: How many at most; a page with much output has fewer.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        return call(self._async.commands, sandbox_id, after=after, limit=limit)

    def audit_log(self, sandbox_id: str) -> AuditLog:
        """Return the audit record of a sandbox that has ended, up to its last entry.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        return call(self._async.audit_log, sandbox_id)

    def delete(self, sandbox_id: str) -> None:
        """Delete the record of a sandbox that has ended, for good.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        call(self._async.delete, sandbox_id)
