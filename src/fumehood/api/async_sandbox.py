"""`AsyncSandbox`: the class of a sandbox, for asyncio.

This module has the methods for a sandbox as a whole: start, network, pause, fork, save and end. The methods that run
code are in its base class (`contexts.py`). Each turns its arguments into calls of the backend port and nothing else.
`Sandbox` is generated from both by `make sync-api`, docstrings included: a paragraph that begins with "Asynchronous:"
stays here.
"""

from __future__ import annotations

import asyncio
import builtins
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from fumehood.api.activity import AsyncActivity
from fumehood.api.callbacks import AsyncSecurityCallback
from fumehood.api.commands import AsyncCommands
from fumehood.api.contexts import AsyncContexts
from fumehood.api.files import AsyncFilesystem, FileInfos, InsidePath
from fumehood.api.handle import SandboxHandle, check_child, default_backend, named_backend
from fumehood.api.packages import check_installable, explain_denial, install_command
from fumehood.api.ports import wait_for_port
from fumehood.api.pty import AsyncPty
from fumehood.api.restoring import RestoringBackend, restoring
from fumehood.api.saved_states import StatePlace
from fumehood.api.screenshots import take_screenshot
from fumehood.api.security_events import follow_security_events
from fumehood.api.shares import AsyncShares
from fumehood.api.transfers import MAX_DOWNLOAD_BYTES, LocalPath, download, upload
from fumehood.errors import (
    CommandExitError,
    NoHostNameError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.port.backend import Backend
from fumehood.portal import check_callbacks
from fumehood.values.audit import AuditLog
from fumehood.values.checks import check_labels, check_strings, check_text
from fumehood.values.limits import LimitFields, LimitsChoice, check_seconds, read_limits
from fumehood.values.network import EgressRecord, NetworkChoice, read_network
from fumehood.values.requests import (
    ForkRequest,
    ForkSeconds,
    Loaded,
    LoadRequest,
    SandboxSpec,
)
from fumehood.values.sandbox import (
    CheckpointInfo,
    HostLossAction,
    IsolationLevel,
    Metrics,
    SandboxInfo,
    TimeoutAction,
)
from fumehood.values.saved_state import LoadReport, SaveReport
from fumehood.values.security import SecurityRule, SecuritySettings
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.notebook.ipynb import NotebookSource

SandboxInfos: TypeAlias = list[SandboxInfo]
EgressRecords: TypeAlias = list[EgressRecord]
DownloadedPaths: TypeAlias = list[Path]


class AsyncSandbox(AsyncContexts):
    """An isolated machine with files and state, for untrusted code.

    It lives from its creation until it is killed, its lifetime is over, or this process ends; use it in a `with`.

    Asynchronous: it starts when it is entered (`async with AsyncSandbox() as sandbox:`) or made by
    `await AsyncSandbox.create()`.

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
        on_security_event: AsyncSecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
        **limit_fields: Unpack[LimitFields],
    ) -> None:
        self._spec = SandboxSpec(
            template=template,
            limits=read_limits(limits, limit_fields, called=AsyncSandbox.__init__),
            envs={} if envs is None else envs,
            metadata={} if metadata is None else metadata,
            labels={} if labels is None else labels,
            timeout_seconds=timeout,
            idle_timeout_seconds=idle_timeout,
            on_timeout=on_timeout,
            on_host_loss=on_host_loss,
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
        self._left_behind: tuple[str, ...] = ()
        self._load_report: LoadReport | None = None
        self._restored = 0

        if on_host_loss == "restore":
            request = LoadRequest(spec=self._spec, keep_template=template == "default")
            self._sandbox_handle.wrap(lambda plain: restoring(plain, request, self._note_restored))

        self.files = AsyncFilesystem(self._sandbox_handle)
        self.commands = AsyncCommands(self._sandbox_handle)
        self.pty = AsyncPty(self._sandbox_handle)
        self.activity = AsyncActivity(self._sandbox_handle)
        self.shares = AsyncShares(self._sandbox_handle)

    @classmethod
    async def create(
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
        on_security_event: AsyncSecurityCallback | None = None,
        telemetry: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
        **limit_fields: Unpack[LimitFields],
    ) -> AsyncSandbox:
        """Start a sandbox, as `Sandbox(...)` does."""
        sandbox = cls(
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
        return await sandbox.__aenter__()

    @classmethod
    async def from_notebook(
        cls,
        notebook: NotebookSource,
        *,
        parameters: Mapping[str, Any] | None = None,
        template: str | Template = "default",
        limits: LimitsChoice | None = None,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> AsyncSandbox:
        """Start a sandbox and run the code cells of a notebook in it, up to the first that fails.

        As with `run_code`, code that fails raises no exception: see `get_record().cells[-1].execution.error`.

        `notebook` is a path, or the notebook as JSON holds it; `parameters` are variables that are set after the cell
        with the tag `parameters`, or before all cells. The other arguments are those of `Sandbox`.

        Raises:
            InvalidArgumentError: The notebook is not a Python notebook, or a parameter cannot be set.
        """
        # Imported late: only notebooks need the reader. An error is raised before a sandbox starts.
        from fumehood.notebook.cell_runs import run_cells
        from fumehood.notebook.ipynb import read_notebook, set_parameters

        ready = await asyncio.to_thread(read_notebook, notebook)
        set_parameters(ready, parameters or {})
        sandbox = await cls.create(template, limits=limits, url=url, api_key=api_key, backend=backend)

        try:
            await run_cells(ready, sandbox.run_code, stop_on_error=True)
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
        """Connect to a living sandbox by its id; leaving its `with` kills the sandbox like any other.

        Raises:
            SandboxNotFoundError: No sandbox with this id has lived here.
            SandboxClosedError: The sandbox has ended.
        """
        check_text("sandbox_id", sandbox_id, max_bytes=255)
        sandbox = cls(url=url, api_key=api_key, backend=backend)
        sandbox._sandbox_handle.grant(await sandbox._sandbox_handle.backend.info(sandbox_id))
        return sandbox

    @classmethod
    async def list(
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
        check_strings("metadata", metadata or {})
        wanted = (metadata or {}).items()
        found = await (named_backend(url, api_key, backend) or default_backend()).list()
        return [info for info in found if wanted <= info.metadata.items()]

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
        # A warning imports modules; while the interpreter ends, a thread that is gone may hold the import lock.
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

    async def get_info(self) -> SandboxInfo:
        """Describe the sandbox: times, labels, limits and isolation.

        Raises:
            SandboxClosedError: The sandbox has ended; every other method except `kill` and `is_running` raises it too.
        """
        return await self._sandbox_handle.backend.info(self.id)

    async def get_metrics(self) -> Metrics:
        """Return the current resource use of the sandbox, paused or not."""
        return await self._sandbox_handle.backend.metrics(self.id)

    async def upload(self, local: LocalPath, remote: InsidePath | None = None) -> FileInfos:
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
        return await upload(self.files, local, remote)

    async def download(
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
        return await download(self.files, remote, local, overwrite=overwrite, max_bytes=max_bytes)

    async def screenshot(self) -> bytes:
        """Return the screen of the sandbox's display as a PNG; its template must have been built with `display=True`.

        Raises:
            ScreenshotError: The sandbox has no display.
        """
        return await take_screenshot(self._sandbox_handle.backend, self.id)

    async def install(self, *packages: str | Sequence[str], timeout: float = 300.0) -> None:
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
        command = install_command(packages)

        check_installable((await self.get_info()).network)

        try:
            await self.commands.run(command, timeout=timeout)
        except CommandExitError as error:
            explain_denial(error, await self.egress_log())
            raise

    async def get_url(self, port: int, *, wait: bool | float = False) -> str:
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
        if wait:
            await wait_for_port(self._sandbox_handle.backend, self.id, port, 30.0 if wait is True else wait)

        return (await self._sandbox_handle.backend.port_address(self.id, port)).url

    async def get_host(self, port: int) -> str:
        """Return the host name of a server in the sandbox, with a port if needed.

        Raises:
            NoHostNameError: The server of the sandbox has no domain; `get_url` works there as well.
        """
        host = (await self._sandbox_handle.backend.port_address(self.id, port)).host

        if host is None:
            raise NoHostNameError(port=port)

        return host

    async def is_running(self) -> bool:
        """Return whether the sandbox lives, paused or not."""
        try:
            await self.get_info()
        except (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError):
            return False

        return True

    async def set_timeout(self, timeout: float | None) -> None:
        """Set the remaining lifetime of the sandbox, in seconds from now; None: it lives until it is killed.

        For a paused sandbox this is the time that it has after it is resumed.
        """
        check_seconds("timeout", timeout)
        await self._sandbox_handle.backend.set_timeout(self.id, timeout)

    async def set_metadata(self, changes: Mapping[str, str | None]) -> None:
        """Change the named labels of the sandbox; the value None removes a label, other labels do not change.

        Args:
            changes: New values by name. A sandbox has at most 64 labels, names of up to 128 characters, and 16 KiB of
                UTF-8 in all.
        """
        check_labels({name: text or "" for name, text in changes.items()})
        await self._sandbox_handle.backend.set_labels(self.id, dict(changes))

    async def set_network(self, network: NetworkChoice) -> None:
        """Change the network that the sandbox may reach; connections that the new rules forbid are closed.

        Secrets without a value, as `get_info().network` shows them, keep their present value.
        """
        await self._sandbox_handle.backend.set_network(self.id, read_network(network))

    async def egress_log(self) -> EgressRecords:
        """Return the allowed and denied connections of the sandbox: the last 1000 of each kind, the oldest first."""
        return [*await self._sandbox_handle.backend.egress_log(self.id)]

    async def pause(self, *, files_only: bool = False) -> bool:
        """Freeze the sandbox; False if it was paused already.

        No process in it runs, and it uses no CPU time; processes and memory stay as they are. All of its clocks are
        stopped: the `timeout`, the `idle_timeout`, and the time limits of running code. It stays paused until `resume`
        or `kill`.

        Args:
            files_only: Whether to keep only files and settings: its processes end, and its contexts start afresh after
                `resume`.
        """
        return await self._sandbox_handle.backend.pause(self.id, files_only=files_only)

    async def resume(self, *, files_only: bool = False) -> bool:
        """Resume the paused sandbox, with the lifetime that it had left; False if it was running.

        A sandbox that was paused because its time was over gets its whole `timeout` again. `files_only` ends the
        processes that the pause has kept.
        """
        return await self._sandbox_handle.backend.resume(self.id, files_only=files_only)

    async def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox, paused or not, with everything in it; False if it had ended before.

        Args:
            wait: Whether to return only when no process of it is left; otherwise as soon as its end is certain.
        """
        self._is_open = False
        return await self._sandbox_handle.backend.kill(self.id, wait=wait)

    async def audit_log(self) -> AuditLog:
        """Return the audit record of the sandbox: a hash chain, in which a later change can be detected.

        It has the newest entries, at most 4,096 and 2 MiB; `dropped` counts the older ones. It can be read for a while
        after the sandbox has ended. `log.fault(execution.audit_head)` checks it against a head from an earlier
        execution.
        """
        return await self._sandbox_handle.backend.audit_log(self._sandbox_handle.id)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Descriptions of the parts of its parent that could not be forked; empty for a sandbox that is not a fork."""
        return self._left_behind

    async def fork(
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
        children = await self.forks(
            1, checkpoint=checkpoint, reseed=reseed, timeout=timeout, metadata=metadata
        )
        return children[0]

    async def forks(
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
        request = ForkRequest(
            count=count,
            checkpoint_id=checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint,
            reseed=reseed,
            timeout_seconds=timeout,
            metadata=metadata,
        )
        forked = await self._sandbox_handle.backend.fork(self._sandbox_handle.id, request)
        children = []

        for info in forked.items:
            child = type(self)(backend=self._sandbox_handle.backend)
            child._sandbox_handle.grant(info)
            child._is_open = True
            child._left_behind = forked.left_behind
            children.append(child)

        return children

    async def adopt(self, child: Self) -> None:
        """Replace this sandbox by one of its forks, which continues under this sandbox's id.

        The replaced sandbox is killed.

        The fork's object cannot be used afterwards; its id counts as ended, with the reason `adopted`.

        Args:
            child: A fork that `fork` or `forks` has returned.

        Raises:
            InvalidArgumentError: `child` is not a fork of this sandbox.
            ForkError: The replacement failed; both sandboxes are unchanged.
        """
        check_child(child, AsyncSandbox)
        info = await self._sandbox_handle.backend.adopt(self._sandbox_handle.id, child._sandbox_handle.id)
        child._is_open = False
        self._sandbox_handle.grant(info)
        self._left_behind = child._left_behind

    @property
    def load_report(self) -> LoadReport | None:
        """The load report of a sandbox that was loaded from a saved state; None for any other sandbox."""
        return self._load_report

    async def save(self, place: StatePlace) -> SaveReport:
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
        # Imported late, as below: only saving needs the archive writer.
        from fumehood.saved.places import save_to

        report = await save_to(self._sandbox_handle.backend, self._sandbox_handle.id, place)
        self._note_saved(place)
        return report

    def _note_saved(self, place: StatePlace) -> None:
        backend = self._sandbox_handle.backend

        if isinstance(backend, RestoringBackend):
            backend.place = place

    @property
    def restored(self) -> int:
        """How often the sandbox was restored from its last save because its machine was lost; see `on_host_loss`."""
        return self._restored

    def _note_restored(self, loaded: Loaded) -> None:
        self._sandbox_handle.grant(loaded.sandbox)
        self._load_report = loaded.report
        self._restored += 1

        if self._on_security_event is not None:
            follow_security_events(
                self._sandbox_handle.plain_backend, loaded.sandbox.id, self._on_security_event
            )

    @classmethod
    async def load(
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
        from fumehood.saved.places import load_from

        sandbox = cls(
            "default" if template is None else template,
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
        request = LoadRequest(spec=sandbox._spec, keep_template=template is None)
        loaded = await load_from(sandbox._sandbox_handle.backend, request, place)
        sandbox._sandbox_handle.grant(loaded.sandbox)
        sandbox._is_open = True
        sandbox._load_report = loaded.report
        sandbox._note_saved(place)
        return sandbox
