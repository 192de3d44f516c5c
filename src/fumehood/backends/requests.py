"""What callers ask a backend for: frozen, checked when made, able to cross a process border.

Used on both sides of the port. A request that exists is valid: types, names, sizes and paths are checked
here once, in the host process, before anything is done. Paths are paths inside the sandbox; nothing here or
behind the port uses one on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from fumehood.backends.checks import (
    MAX_STRING_BYTES,
    check_bool,
    check_envs,
    check_integer,
    check_language,
    check_path,
    check_pid,
    check_size,
    check_strings,
    check_text,
)
from fumehood.backends.tool_requests import DEFAULT_TOOL_CALLS, ToolSpec, check_tools
from fumehood.errors import InvalidArgumentError
from fumehood.isolation_levels import IsolationLevel, check_isolation
from fumehood.limits import MIB, Limits, check_seconds
from fumehood.models import PtySize, TimeoutAction, Truncation
from fumehood.network import Network
from fumehood.security import SecuritySettings
from fumehood.templates.template import MAX_TEMPLATE_NAME_BYTES, Template

_MAX_CODE_BYTES = 8 * MIB
_MAX_STDIN_BYTES = 4 * MIB
DEFAULT_CONTEXT_ID = "default"
BASH_CONTEXT_ID = "bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a new sandbox should be.

    Attributes:
        template: What it starts from: a template, or the name of one that is known.
        limits: What it may use.
        chosen_limits: Names of limits that the caller has chosen though they may be the defaults. Those that differ
            from the defaults are always taken for chosen; a server cuts the others to what a key may have.
        envs: Environment of everything that runs in it.
        metadata: The caller's own labels.
        timeout_seconds: Its time; None: it lives until it is killed.
        idle_timeout_seconds: Its time without a call; None: never for that reason.
        strict: Refuse to start when any layer of isolation is missing or degraded.
        owner: For whom a server keeps it.
        on_timeout: What happens when its time is over: kill, or pause.
        auto_resume: Whether a call to it while it is paused resumes it.
        network: What it may reach.
        isolation: The weakest level of isolation that will do; None: what the settings of the host say.
        security: How it is watched.
    """

    template: str | Template = "default"
    limits: Limits = field(default_factory=Limits)
    envs: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    strict: bool = False
    owner: str = ""
    on_timeout: TimeoutAction = "kill"
    auto_resume: bool = False
    network: Network = field(default_factory=Network)
    isolation: IsolationLevel | None = None
    security: SecuritySettings = field(default_factory=SecuritySettings)
    chosen_limits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.template, Template):
            check_text("template", self.template, max_bytes=MAX_TEMPLATE_NAME_BYTES)

        check_envs(self.envs)
        check_strings("metadata", self.metadata)
        check_seconds("timeout", self.timeout_seconds)
        check_seconds("idle_timeout", self.idle_timeout_seconds)
        check_bool("strict", self.strict)
        check_text("owner", self.owner, max_bytes=255, empty=True)
        check_bool("auto_resume", self.auto_resume)

        if self.isolation is not None:
            check_isolation("isolation", self.isolation)

        if self.on_timeout not in ("kill", "pause"):
            raise InvalidArgumentError(field="on_timeout", value=self.on_timeout, allowed="'kill' or 'pause'")

        if not isinstance(self.limits, Limits):
            raise InvalidArgumentError(field="limits", value=self.limits, allowed="a Limits")

        if not isinstance(self.network, Network):
            raise InvalidArgumentError(field="network", value=self.network, allowed="a Network")

    @property
    def limits_asked(self) -> dict[str, float | None]:
        """What was chosen of the limits, by name: what goes to a server, which knows the defaults of its keys."""
        values = {item.name: getattr(self.limits, item.name) for item in fields(Limits)}
        ordinary = Limits()
        return {
            name: value
            for name, value in values.items()
            if name in self.chosen_limits or value != getattr(ordinary, name)
        }

    @property
    def template_name(self) -> str:
        """The name of the template."""
        return self.template.name if isinstance(self.template, Template) else self.template


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteRequest:
    """One piece of code to run.

    Attributes:
        code: The code.
        language: python or bash.
        context_id: Where; None means the default context.
        envs: Environment variables for this execution only.
        wall_seconds: Its time; None means `limits.wall_seconds`.
        allow_input: True when somebody answers `input()`; otherwise it fails with EOFError at once.
        silent: True to leave the history and the execution count alone.
        stdin: What `input()` and the standard input get, up to its end; None: the standard input is empty, and
            `allow_input` says what `input()` does.
        tools: What the code may call on the caller's side while it runs; Python only. Somebody follows the events
            and answers each ToolCallEvent.
        transactional: Keep what it changes only if it comes to its ordinary end; else variables and files are as
            they were before. Python only.
        ask_commit: Of a transactional one: somebody follows the events and answers CommitRequestEvent.
        tell_changes: Tell in the execution what it changed.
    """

    code: str
    language: str = "python"
    context_id: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    wall_seconds: float | None = None
    allow_input: bool = False
    silent: bool = False
    stdin: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    transactional: bool = False
    ask_commit: bool = False
    tell_changes: bool = False

    def __post_init__(self) -> None:
        check_text("code", self.code, max_bytes=_MAX_CODE_BYTES, empty=True, nul=True)
        check_language(self.language)
        check_envs(self.envs)
        check_seconds("timeout", self.wall_seconds, high=86_400)
        check_bool("allow_input", self.allow_input)
        check_bool("silent", self.silent)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=255)

        if self.stdin is not None:
            check_text("stdin", self.stdin, max_bytes=_MAX_STDIN_BYTES, empty=True, nul=True)

        if self.stdin is not None and self.allow_input:
            raise InvalidArgumentError(
                field="stdin", value=self.stdin, allowed="None where somebody answers `input()`"
            )

        check_tools(self.tools)

        if self.tools and self.language != "python":
            raise InvalidArgumentError(field="tools", value=self.language, allowed="code in Python")

        check_bool("transactional", self.transactional)
        check_bool("ask_commit", self.ask_commit)
        check_bool("changes", self.tell_changes)

        if self.transactional and self.language != "python":
            raise InvalidArgumentError(field="transactional", value=self.language, allowed="code in Python")

        if self.ask_commit and not self.transactional:
            raise InvalidArgumentError(field="ask_commit", value=True, allowed="transactional code")

    @property
    def max_tool_calls(self) -> int:
        """How often the code may call tools, all together: 100 times, or what the most generous tool allows."""
        return max([DEFAULT_TOOL_CALLS, *(tool.max_calls for tool in self.tools)])


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAnswer:
    """The answer to an `InputRequestEvent`.

    Attributes:
        execution_id: Who asked.
        request_id: The question's name.
        text: The line without its end; None means that there is no input, and the code gets EOFError.
    """

    execution_id: str
    request_id: str
    text: str | None

    def __post_init__(self) -> None:
        if self.text is not None:
            check_text("input", self.text, max_bytes=1 * MIB, empty=True, nul=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateContext:
    """Make a context; the answer is it alone."""

    language: str = "python"
    cwd: str | None = None

    def __post_init__(self) -> None:
        check_language(self.language)

        if self.cwd is not None:
            check_path("cwd", self.cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListContexts:
    """Name the contexts; the answer is all of them, the default one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartContext:
    """Replace a context by a fresh one of the same id, language and cwd; the answer is it alone.

    What runs in it is killed.
    """

    context_id: str

    def __post_init__(self) -> None:
        check_text("context", self.context_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveContext:
    """Kill a context; the answer is empty. The default one comes back fresh when it is used again."""

    context_id: str

    def __post_init__(self) -> None:
        check_text("context", self.context_id, max_bytes=255)


ContextCall: TypeAlias = CreateContext | ListContexts | RestartContext | RemoveContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StatFile:
    """Describe a path; the answer is it alone. Links are followed."""

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFiles:
    """Describe what is below a directory, `depth` levels deep; sorted by path."""

    path: str
    depth: int = 1

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_integer("depth", self.depth, low=1, high=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDir:
    """Make a directory and its parents; the answer is it alone, PathExistsError if something is there."""

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """Remove a file, or a directory with all that is in it; the answer is empty.

    PathNotFoundError if nothing is there.
    """

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile:
    """Move a file or directory within the sandbox, parents made; the answer is it at its new place."""

    source: str
    destination: str

    def __post_init__(self) -> None:
        check_path("source", self.source)
        check_path("destination", self.destination)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFiles:
    """Watch a directory.

    Attributes:
        path: The directory.
        recursive: With all directories below.
        entries: Describe in each change what is there.
        name: By which `settle_watch` finds the watch; none is needed for anything else.
    """

    path: str
    recursive: bool = False
    entries: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_bool("recursive", self.recursive)
        check_bool("entries", self.entries)
        check_text("name", self.name, max_bytes=255, empty=True)


FileCall: TypeAlias = StatFile | ListFiles | MakeDir | RemoveFile | RenameFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """Read a file.

    Attributes:
        offset_bytes: Where to begin.
        length_bytes: How much at most; None means to the end.
    """

    path: str
    offset_bytes: int = 0
    length_bytes: int | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_integer("offset_bytes", self.offset_bytes, low=0, high=2**62)

        if self.length_bytes is not None:
            check_integer("length_bytes", self.length_bytes, low=0, high=2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A command to start.

    Attributes:
        argv: Program and arguments; the program is looked up in PATH.
        cwd: Where; None means /home/user.
        envs: Added to the sandbox's environment.
        stdin: True to keep its standard input open for `SendStdin`; otherwise it is empty.
        pty: Run it on a terminal of this size.
        timeout_seconds: It is killed after this time; None means that it lives as long as the sandbox.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    stdin: bool = False
    pty: PtySize | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.argv, tuple) or not self.argv:
            raise InvalidArgumentError(field="command", value=self.argv, allowed="at least a program's name")

        for index, part in enumerate(self.argv):
            check_text("command", part, max_bytes=MAX_STRING_BYTES, empty=index > 0)

        if self.cwd is not None:
            check_path("cwd", self.cwd)

        if self.pty is not None:
            check_size(self.pty)

        check_envs(self.envs)
        check_bool("stdin", self.stdin)
        check_seconds("timeout", self.timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListProcesses:
    """Name the running commands; the answer is all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStdin:
    """Write to a command's standard input or terminal; waits until it was taken. The answer is empty."""

    pid: int
    data: bytes

    def __post_init__(self) -> None:
        check_pid(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStdin:
    """End a command's standard input; the answer is empty."""

    pid: int

    def __post_init__(self) -> None:
        check_pid(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalProcess:
    """Send a signal to a command and everything it started; the answer is empty."""

    pid: int
    signal: int

    def __post_init__(self) -> None:
        check_pid(self.pid)
        check_integer("signal", self.signal, low=1, high=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizePty:
    """Change the size of a command's terminal; the answer is empty."""

    pid: int
    size: PtySize

    def __post_init__(self) -> None:
        check_pid(self.pid)
        check_size(self.size)


ProcessCall: TypeAlias = ListProcesses | SendStdin | CloseStdin | SignalProcess | ResizePty


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutput:
    """A piece of what a command wrote; pty for a terminal."""

    stream: Literal["stdout", "stderr", "pty"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """A command's end, always the last event.

    Attributes:
        exit_code: Its code; 128 plus the signal's number when a signal ended it.
        timed_out: True when it was killed because its time was over.
        truncated: What was cut off because of `limits.stdout_bytes` and `limits.stderr_bytes`.
    """

    exit_code: int
    timed_out: bool = False
    truncated: Truncation = field(default_factory=Truncation)


ProcessEvent: TypeAlias = ProcessOutput | ProcessExited
