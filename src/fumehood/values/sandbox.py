"""The plain values that callers of the API receive: sandboxes, contexts, files, processes.

Used by all host code and by callers. Frozen, and made of numbers, text and one another only, so that each can cross a
process boundary. Text in them may come from a guest: show it through `fumehood.text.visible`, never use it as a path of
the host.

Also the levels of isolation: their names, from the weakest to the strongest, and the floor that a caller sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from fumehood.errors import InvalidArgumentError
from fumehood.values.limits import Limits
from fumehood.values.network import Network

LayerState = Literal["on", "degraded", "off"]
SandboxState = Literal["running", "paused", "ending"]
TimeoutAction = Literal["kill", "pause", "pause_files"]
TIMEOUT_ACTIONS: tuple[TimeoutAction, ...] = get_args(TimeoutAction)
HostLossAction = Literal["raise", "restore"]
HOST_LOSS_ACTIONS: tuple[HostLossAction, ...] = get_args(HostLossAction)
FileType = Literal["file", "dir", "symlink", "other"]
FileChangeKind = Literal["create", "write", "remove", "rename", "chmod"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of isolation, as it was really applied.

    Attributes:
        name: Its name, such as `namespaces`, `seccomp` or `cgroup memory`.
        state: `on`; `degraded` (a weaker means is used instead); `off`.
        why: The reason if the state is not `on`, or a detail such as a version.
    """

    name: str
    state: LayerState
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The isolation of a guest from the host.

    Attributes:
        level: One word for all layers together, computed from what was really applied.
        layers: Each layer, in the order in which it was applied.
    """

    level: str
    layers: tuple[Layer, ...] = ()

    @property
    def missing(self) -> tuple[Layer, ...]:
        """The layers that are degraded or off."""
        return tuple(layer for layer in self.layers if layer.state != "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReport:
    """The memory of a sandbox that a pause has freed, as the kernel counts it.

    Attributes:
        memory_before_bytes: Memory in use when all processes were frozen; None without a control group.
        memory_after_bytes: Memory in use after the kernel was asked to reclaim memory; None if not known.
        reclaimed_bytes: How much was freed.
        means: The kernel interface that was used, such as `memory.reclaim`; empty if none was.
        why: Why no more was freed.
        files_only: Whether its processes were ended, so that only its files are kept, and contexts start afresh when it
            is resumed.
    """

    memory_before_bytes: int | None = None
    memory_after_bytes: int | None = None
    reclaimed_bytes: int = 0
    means: str = ""
    why: str = ""
    files_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """One living sandbox.

    Attributes:
        id: Its id in every call.
        template: Its template.
        state: running, paused, or ending while it is being killed.
        started_at: When it was handed out (UTC).
        ends_at: When it will be killed (UTC), or None if it lives until `kill()` or the end of the process
            that hosts it.
        idle_timeout_seconds: How long it may be without a call before it is killed, or None.
        metadata: The caller's own labels.
        limits: Its limits.
        isolation: Its isolation from the host.
        owner: The owner at a server; empty where there is one user only.
        on_timeout: What happens when its time is over: kill, pause, or pause_files (keeps its files only).
        on_host_loss: What happens when its machine is lost: raise, or restore (its caller makes it again from its last
            save; the machine ends it when it is cut off, so that there are never two).
        auto_resume: Whether a call to it while it is paused resumes it.
        network: Its network policy; secrets in it have no values.
        parent_id: The sandbox that it was forked from, which may have ended; or None.
        generation: The number of forks between this sandbox and one that was not forked; 0 if it was not forked itself.
        own_interpreter: Whether it has an interpreter of its own, which it shares only with its forks and its parent.
        pause: For a paused sandbox, the report on the memory that was freed.
        languages: The languages that its template was prepared for, with their versions; empty for a template without
            such a list, such as `default`, which has the languages of its machine.
    """

    id: str
    template: str
    state: SandboxState
    started_at: datetime
    ends_at: datetime | None
    limits: Limits
    isolation: Isolation
    idle_timeout_seconds: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    on_timeout: TimeoutAction = "kill"
    on_host_loss: HostLossAction = "raise"
    auto_resume: bool = False
    network: Network = field(default_factory=Network)
    parent_id: str | None = None
    generation: int = 0
    own_interpreter: bool = False
    pause: PauseReport | None = None
    languages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of a host, and how much of it is taken.

    Attributes:
        sandboxes: Living sandboxes, without those that are ready in the pool.
        max_sandboxes: How many sandboxes may live at once.
        memory_available_bytes: Memory that is available without swapping or eviction, of the machine or of the host's
            control group, whichever is less.
        memory_total_bytes: All memory, of the machine or of that control group.
        cpu_cores: Processors that the host may use.
        load: Tasks that ran or waited to run, on average over the last minute.
        host_id: The name of the host, with which the ids of its sandboxes begin.
        incarnation: The name of this run of the host, which is the next part of those ids.
        version: The version of fumehood.
        isolation_level: The isolation level of the sandbox that was made last; empty before the first one.
        is_warm: Whether the pool of the default template has been full; False if the pool is only filled at the first
            use.
        cold_reason: Why that pool could not be filled at the last attempt; empty if it was filled or is being filled.
        pool_ready: Sandboxes of all templates that are ready to be handed out.
        pool_hits: Sandboxes that were ready when they were requested.
        pool_misses: Sandboxes that had to be made when they were requested, because none was ready.
        is_draining: Whether the host makes no new sandboxes, other than forks, because it is being drained.
    """

    sandboxes: int
    max_sandboxes: int
    memory_available_bytes: int
    memory_total_bytes: int
    cpu_cores: float
    load: float
    host_id: str
    incarnation: str
    version: str
    isolation_level: str = ""
    is_warm: bool = False
    cold_reason: str = ""
    pool_ready: int = 0
    pool_hits: int = 0
    pool_misses: int = 0
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The current resource use of a sandbox.

    Attributes:
        cpu_seconds: CPU time since its start, all processes together.
        memory_bytes: Memory in use now.
        peak_memory_bytes: Most memory that was ever in use, if the kernel reports it.
        disk_used_bytes: Bytes in its writable mounts.
        disk_total_bytes: Size of its writable mounts.
        inodes_used: Files and directories in its writable mounts.
        processes: Living processes and threads.
        uptime_seconds: Time since its start.
        security_events: How many security events of each kind there have been.
    """

    cpu_seconds: float
    memory_bytes: int
    peak_memory_bytes: int
    disk_used_bytes: int
    disk_total_bytes: int
    inodes_used: int
    processes: int
    uptime_seconds: float
    security_events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """One context: a live namespace in a sandbox.

    Attributes:
        id: Its name in every call; `default` for the one that always exists.
        language: Its name, such as `python`, `bash` or `javascript`; never an alias.
        cwd: The directory in which it started.
    """

    id: str
    language: str
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint: a state of a context and of the files that can be restored.

    Attributes:
        id: Its name in every call.
        name: The caller's name for it, or None.
        context_id: The context whose state it holds.
        created_at: When it was made (UTC).
        files: How many files it holds.
        files_bytes: Their total size; unchanged files take no additional space.
        left_behind: Descriptions of the parts that could not be kept: threads, child processes, sockets and the like.
            After a rollback they are gone.
        position: How many cells the record of its context had when it was made.
        execution_id: The execution of the last of these cells, or None.
        parent_checkpoint_id: The checkpoint that its context had last made or gone back to, which may have been
            dropped; or None.
        is_lost: Whether code in the sandbox, or a lack of memory, has ended it.
    """

    id: str
    name: str | None
    context_id: str
    created_at: datetime
    files: int = 0
    files_bytes: int = 0
    left_behind: tuple[str, ...] = ()
    position: int = 0
    execution_id: str | None = None
    parent_checkpoint_id: str | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file, directory or link of a sandbox.

    Attributes:
        name: Last part of the path.
        path: Absolute path inside the sandbox.
        type: file, dir, symlink (a link whose target is missing or cannot be resolved) or other. Any other link has the
            type of its target, and `symlink_target` set.
        size_bytes: Its size.
        mode: Permission bits.
        permissions: The permission bits as `ls -l` shows them, such as `-rw-r--r--`.
        owner: Name of its user, or the number.
        group: Name of its group, or the number.
        modified_at: When its content last changed (UTC); None when the guest's clock value makes no sense.
        symlink_target: The target of a link, as it is written.
        resolved_target: The final target of a link as an absolute path; for a dangling link, its written target made
            absolute.
        metadata: Its extended attributes `user.e2b.NAME` that are text, by name: up to 64 of them and 8 KiB.
    """

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_at: datetime | None
    symlink_target: str | None = None
    resolved_target: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One change below a watched directory.

    Attributes:
        kind: create, write, remove, rename or chmod.
        name: Path relative to the watched directory.
        path: Absolute path inside the sandbox.
        entry: The description of the path when the change is reported, if requested; None if it does not exist any
            more.
    """

    kind: FileChangeKind
    name: str
    path: str
    entry: FileInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PtySize:
    """Size of a terminal in characters."""

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One running command that was started through the API.

    Attributes:
        pid: Its pid inside the sandbox.
        argv: Program and arguments.
        cwd: The directory in which it was started.
        envs: The variables that were added to its environment.
        is_pty: True when it runs on a terminal.
    """

    pid: int
    argv: tuple[str, ...]
    cwd: str
    envs: Mapping[str, str] = field(default_factory=dict)
    is_pty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """The address of a port of a sandbox from outside.

    Attributes:
        url: An address for a browser; it ends with a slash.
        host: The host name, with a port if needed; None if the port has no host name of its own.
    """

    url: str
    host: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The amount of output that a limit has cut off.

    Attributes:
        stdout_bytes: Bytes of standard output that were dropped.
        stderr_bytes: Bytes of standard error that were dropped.
        results: Results that were dropped completely.
    """

    stdout_bytes: int = 0
    stderr_bytes: int = 0
    results: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout_bytes or self.stderr_bytes or self.results)


NOTHING_CUT = Truncation()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command that has ended.

    Attributes:
        stdout: Its standard output, decoded as UTF-8. If it exceeds `limits.stdout_bytes`, its head and its tail, with
            a line between them that states how much is missing.
        stderr: The same for standard error.
        exit_code: Its exit code; 128 plus the signal's number when a signal ended it.
        truncated: How much was cut off.
    """

    stdout: str
    stderr: str
    exit_code: int
    truncated: Truncation = Truncation()


IsolationLevel = Literal["none", "landlock-only", "namespaces"]
# From the weakest to the strongest. A level is listed when a runtime provides it.
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = get_args(IsolationLevel)
# The minimum level of a sandbox unless its caller or the settings name another.
DEFAULT_ISOLATION: IsolationLevel = "namespaces"


def reaches(level: str, floor: str) -> bool:
    """Returns whether a level is the floor or stronger; an unknown level satisfies only `none`."""
    rank = ISOLATION_LEVELS.index(level) if level in ISOLATION_LEVELS else 0
    return rank >= ISOLATION_LEVELS.index(floor)


def check_isolation(field: str, value: object) -> None:
    """Raises InvalidArgumentError unless the value is the name of a level."""
    if value not in ISOLATION_LEVELS:
        raise InvalidArgumentError(field=field, value=value, allowed=f"one of {', '.join(ISOLATION_LEVELS)}")
