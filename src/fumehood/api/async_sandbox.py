"""`AsyncSandbox`: the class of a sandbox, for asyncio.

Here are the methods of a sandbox as a whole: how it starts, what it may reach, how it is paused, forked, saved and
ended. Those that run code are in its base class (`contexts.py`). Each turns its arguments into calls of the backend
port and nothing else. `Sandbox` is generated from both by `make sync-api`, docstrings included: a paragraph that begins
with "Asynchronous:" stays here.
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

    It runs from the moment it is made until it is killed, its time is over, or this process ends; use it in
    a `with`.

    Asynchronous: it starts when it is entered (`async with AsyncSandbox() as sandbox:`) or made by
    `await AsyncSandbox.create()`.

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

        As with `run_code`, code that fails is no exception: `get_record().cells[-1].execution.error` tells.

        `notebook` is a path, or the notebook as JSON holds it; `parameters` are variables that are set behind the cell
        with the tag `parameters`, or before all cells. The others are those of `Sandbox`.

        Raises:
            InvalidArgumentError: The notebook is not one of Python, or a parameter cannot be set.
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
        """Connect to a living sandbox by its id; leaving its `with` kills it like any other.

        Raises:
            SandboxNotFoundError: It never lived here.
            SandboxClosedError: It has ended.
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
            metadata: Only those with each of these labels.
            url: Address of the server; None: FUMEHOOD_URL, or in this process.
            api_key: The token of the server; None: FUMEHOOD_API_KEY.
            backend: Where they live, in place of both.
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
        """Describe the sandbox: times, labels, limits, and what isolates it.

        Raises:
            SandboxClosedError: It has ended; so from every other verb but `kill` and `is_running`.
        """
        return await self._sandbox_handle.backend.info(self.id)

    async def get_metrics(self) -> Metrics:
        """Return the current resource use of the sandbox, paused or not."""
        return await self._sandbox_handle.backend.metrics(self.id)

    async def upload(self, local: LocalPath, remote: InsidePath | None = None) -> FileInfos:
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
        return await upload(self.files, local, remote)

    async def download(
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
        return await download(self.files, remote, local, overwrite=overwrite, max_bytes=max_bytes)

    async def screenshot(self) -> bytes:
        """Return what the display of the sandbox shows, as a PNG; its template was built with `display=True`.

        Raises:
            ScreenshotError: It has no display.
        """
        return await take_screenshot(self._sandbox_handle.backend, self.id)

    async def install(self, *packages: str | Sequence[str], timeout: float = 300.0) -> None:
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
        command = install_command(packages)

        check_installable((await self.get_info()).network)

        try:
            await self.commands.run(command, timeout=timeout)
        except CommandExitError as error:
            explain_denial(error, await self.egress_log())
            raise

    async def get_url(self, port: int, *, wait: bool | float = False) -> str:
        """Return an address by which a server inside is reached, in a browser for example.

        It works as soon as something listens on that port of the sandbox, on 127.0.0.1 or 0.0.0.0. Of a sandbox
        in this process it is a port of this machine's loopback, of one at a server an address of that server.

        Args:
            port: The port inside.
            wait: Return when something listens there: True waits for up to 30 seconds, a number for so many.

        Raises:
            PortClosedError: Nothing listens there after that time.
        """
        if wait:
            await wait_for_port(self._sandbox_handle.backend, self.id, port, 30.0 if wait is True else wait)

        return (await self._sandbox_handle.backend.port_address(self.id, port)).url

    async def get_host(self, port: int) -> str:
        """Return the host name, with a port where it needs one, of a server inside.

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
        """Set the rest of the sandbox's life to so many seconds from now on; None: until it is killed.

        For a paused sandbox this is the time that it has after it is resumed.
        """
        check_seconds("timeout", timeout)
        await self._sandbox_handle.backend.set_timeout(self.id, timeout)

    async def set_metadata(self, changes: Mapping[str, str | None]) -> None:
        """Change labels of the sandbox: those of these names; None takes one away, others stay as they are.

        Args:
            changes: New values by name. A sandbox has at most 64 labels, names of up to 128 characters, and 16 KiB of
                UTF-8 in all.
        """
        check_labels({name: text or "" for name, text in changes.items()})
        await self._sandbox_handle.backend.set_labels(self.id, dict(changes))

    async def set_network(self, network: NetworkChoice) -> None:
        """Change what the sandbox may reach; connections that the new rules forbid are closed.

        Secrets without a value, as `get_info().network` shows them, keep the value that they have.
        """
        await self._sandbox_handle.backend.set_network(self.id, read_network(network))

    async def egress_log(self) -> EgressRecords:
        """Return the connections that the sandbox made, and tried to make: the last 1000 of each, the oldest first."""
        return [*await self._sandbox_handle.backend.egress_log(self.id)]

    async def pause(self, *, files_only: bool = False) -> bool:
        """Freeze the sandbox; False if it was paused.

        Nothing in it runs any more, and it uses no CPU time; processes and memory stay as they are. All of its
        clocks stand still: the `timeout`, the `idle_timeout`, and the time limits of what runs. It stays so
        until `resume` or `kill`.

        Args:
            files_only: Whether to keep files and settings only: its processes end, its contexts start afresh
                afterwards.
        """
        return await self._sandbox_handle.backend.pause(self.id, files_only=files_only)

    async def resume(self, *, files_only: bool = False) -> bool:
        """Resume the paused sandbox, with the time that it had left; False if it was running.

        One that was paused because its time was over gets all of it again. `files_only` drops the processes kept.
        """
        return await self._sandbox_handle.backend.resume(self.id, files_only=files_only)

    async def kill(self, *, wait: bool = True) -> bool:
        """End the sandbox, paused or not, with everything in it; False if it had ended before.

        Args:
            wait: Return when nothing is left of it; otherwise as soon as its end is certain.
        """
        self._is_open = False
        return await self._sandbox_handle.backend.kill(self.id, wait=wait)

    async def audit_log(self) -> AuditLog:
        """Return the audit record of the sandbox: a hash chain, in which a later change can be detected.

        It has the newest entries, up to 4,096 and 2 MiB; `dropped` counts those before. For a while it can be read
        after the sandbox has ended. `log.fault(execution.audit_head)` checks it against a head that was kept.
        """
        return await self._sandbox_handle.backend.audit_log(self._sandbox_handle.id)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Of a fork: what could not be forked from its parent, in words; empty for a sandbox that is no fork."""
        return self._left_behind

    async def fork(
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
        """Continue as a fork of this sandbox: its state under this one's id; what was here before is killed.

        The fork's object is of no use afterwards, and its id has ended with the reason `adopted`.

        Args:
            child: A fork that `fork` or `forks` has returned.

        Raises:
            InvalidArgumentError: `child` is not a fork of this sandbox.
            ForkError: It could not be done; both are as they were.
        """
        check_child(child, AsyncSandbox)
        info = await self._sandbox_handle.backend.adopt(self._sandbox_handle.id, child._sandbox_handle.id)
        child._is_open = False
        self._sandbox_handle.grant(info)
        self._left_behind = child._left_behind

    @property
    def load_report(self) -> LoadReport | None:
        """The report of a sandbox that was loaded from a saved state; None of any other."""
        return self._load_report

    async def save(self, place: StatePlace) -> SaveReport:
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
        """How often it was made again from its last save because its machine was lost; see `on_host_loss`."""
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
