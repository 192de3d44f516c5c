"""The requests to a backend: frozen, checked when made, able to cross a process boundary.

Used on both sides of the port. A request that exists is valid: types, names, sizes and paths are checked here once, in
the host process, before anything is done. Paths are paths inside the sandbox; nothing here or behind the port uses one
on the host.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.charts import JsonValue
from fumehood.values.checks import (
    MAX_STRING_BYTES,
    check_bool,
    check_envs,
    check_flags,
    check_integer,
    check_labels,
    check_language,
    check_path,
    check_pid,
    check_size,
    check_strings,
    check_text,
)
from fumehood.values.json_values import NotJsonError, json_of
from fumehood.values.languages import known_language, names_with
from fumehood.values.limits import Limits, check_seconds
from fumehood.values.network import Network
from fumehood.values.sandbox import (
    HOST_LOSS_ACTIONS,
    TIMEOUT_ACTIONS,
    HostLossAction,
    IsolationLevel,
    PtySize,
    SandboxInfo,
    TimeoutAction,
    Truncation,
    check_isolation,
)
from fumehood.values.saved_state import LoadReport
from fumehood.values.security import SecuritySettings
from fumehood.values.template import MAX_TEMPLATE_NAME_BYTES, Template

MAX_CODE_BYTES = 8 * MIB
MAX_STDIN_BYTES = 4 * MIB
DEFAULT_CONTEXT_ID = "default"


def flag(description: str) -> Any:
    """Declares a field that is False by default; HTTP bodies and their documentation are derived from it."""
    return field(default=False, metadata={"description": description})


_ORDINARY = Limits()
_ORDINARY_BY_NAME: Mapping[str, float | None] = {
    item.name: getattr(_ORDINARY, item.name) for item in fields(Limits)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The specification of a new sandbox.

    Attributes:
        template: A template, or the name of one, from which it starts.
        limits: Its limits.
        chosen_limits: Names of limits that the caller has chosen although they equal the defaults. Limits that differ
            from the defaults always count as chosen; a server reduces the others to the bounds of the key.
        envs: Environment variables of every program that runs in it.
        metadata: The caller's own names and values: at most 64, names of up to 128 characters, 16 KiB of UTF-8 in all.
        labels: The labels that its machine must have, with their values; only machines of a cluster have labels.
        timeout_seconds: Its lifetime; None: it lives until it is killed.
        idle_timeout_seconds: How long it may be without a call before it ends; None: without limit.
        owner: The owner at a server.
        on_timeout: What happens when its time is over: kill, pause, or pause_files (keeps its files only).
        on_host_loss: What happens when its machine is lost: raise, or restore (its caller makes it again from its last
            save; the machine ends it when it is cut off, so that there are never two).
        network: The network that it may reach.
        isolation: The weakest level of isolation that is accepted; None: the level in the settings of the host.
        security: Its security settings: telemetry and rules.
        is_recorded: Whether its record is kept after its end, if the host keeps records; False for a stateless run.
    """

    template: str | Template = "default"
    limits: Limits = field(default_factory=Limits)
    envs: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    strict: bool = flag("Refuse to start when any layer of isolation is missing or degraded.")
    owner: str = ""
    on_timeout: TimeoutAction = "kill"
    on_host_loss: HostLossAction = "raise"
    auto_resume: bool = flag("Whether a call to it while it is paused resumes it.")
    network: Network = field(default_factory=Network)
    isolation: IsolationLevel | None = None
    security: SecuritySettings = field(default_factory=SecuritySettings)
    chosen_limits: tuple[str, ...] = ()
    is_recorded: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.template, Template):
            check_text("template", self.template, max_bytes=MAX_TEMPLATE_NAME_BYTES)

        check_envs(self.envs)
        check_labels(self.metadata)
        check_strings("labels", self.labels)
        check_seconds("timeout", self.timeout_seconds)
        check_seconds("idle_timeout", self.idle_timeout_seconds)
        check_flags(self)
        check_text("owner", self.owner, max_bytes=255, empty=True)

        if self.isolation is not None:
            check_isolation("isolation", self.isolation)

        if self.on_timeout not in TIMEOUT_ACTIONS:
            allowed = "'kill', 'pause' or 'pause_files'"
            raise InvalidArgumentError(field="on_timeout", value=self.on_timeout, allowed=allowed)

        if self.on_host_loss not in HOST_LOSS_ACTIONS:
            allowed = "'raise' or 'restore'"
            raise InvalidArgumentError(field="on_host_loss", value=self.on_host_loss, allowed=allowed)

        if not isinstance(self.limits, Limits):
            raise InvalidArgumentError(field="limits", value=self.limits, allowed="a Limits")

        if not isinstance(self.network, Network):
            raise InvalidArgumentError(field="network", value=self.network, allowed="a Network")

    @property
    def limits_asked(self) -> dict[str, float | None]:
        """Return the limits that the caller has chosen, by name.

        They are sent to a server, which knows its keys' defaults.
        """
        if not self.chosen_limits and self.limits == _ORDINARY:
            return {}

        return {
            name: value
            for name, ordinary in _ORDINARY_BY_NAME.items()
            if (value := getattr(self.limits, name)) != ordinary or name in self.chosen_limits
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
        language: A language of contexts (`StatefulName` in `values/languages.py`), by its name or an alias.
        context_id: The context to run it in; None means the default one.
        envs: Environment variables for this execution only.
        wall_seconds: Its time limit; None means `limits.wall_seconds`.
        stdin: The whole content of the standard input, which `input()` reads too; None: the standard input is empty,
            and `allow_input` determines what `input()` does.
        tools: The tools that the code may call on the caller's side while it runs; Python only. The reader of the
            events must answer each ToolCallEvent.
        by: At a server, the key that runs it; set by the server.
        via: At a server, the interface by which it came; set by the server.
    """

    code: str
    language: str = "python"
    context_id: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    wall_seconds: float | None = None
    allow_input: bool = flag(
        "Whether the caller answers `input()`. The questions come in the stream, so a streamed answer has to be asked "
        "for; otherwise `input()` fails at once."
    )
    silent: bool = flag("Leave the history and the execution count alone.")
    stdin: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    transactional: bool = flag(
        "Keep what it changes only if it comes to its ordinary end; else variables and files are as they were before. "
        "Python only."
    )
    ask_commit: bool = flag(
        "Of a transactional one: ask before it is kept. The question comes in the stream, so a streamed answer has to "
        "be asked for."
    )
    tell_changes: bool = flag("Tell in the execution what it changed.")
    by: str = ""
    via: str = ""

    def __post_init__(self) -> None:
        check_text("code", self.code, max_bytes=MAX_CODE_BYTES, empty=True, nul=True)
        object.__setattr__(self, "language", check_language(self.language))
        check_envs(self.envs)
        check_seconds("timeout", self.wall_seconds, high=86_400)
        check_flags(self, tell_changes="changes")
        check_text("by", self.by, max_bytes=255, empty=True)
        check_text("via", self.via, max_bytes=255, empty=True)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=255)

        if self.stdin is not None:
            check_text("stdin", self.stdin, max_bytes=MAX_STDIN_BYTES, empty=True, nul=True)

        if self.stdin is not None and self.allow_input:
            raise InvalidArgumentError(
                field="stdin", value=self.stdin, allowed="None where `on_input` answers `input()`"
            )

        check_tools(self.tools)

        language = known_language(self.language)

        if self.tools and not language.has_tools:
            allowed = f"code in {names_with(tools=True)}"
            raise InvalidArgumentError(field="tools", value=self.language, allowed=allowed)

        if self.transactional and language.why_no_checkpoints:
            allowed = f"code in {names_with(checkpoints=True)}: {language.why_no_checkpoints}"
            raise InvalidArgumentError(field="transactional", value=self.language, allowed=allowed)

        if self.ask_commit and not self.transactional:
            raise InvalidArgumentError(field="ask_commit", value=True, allowed="transactional code")

    @property
    def max_tool_calls(self) -> int:
        """The total number of tool calls allowed: 100, or the largest maximum among the tools."""
        return max([DEFAULT_TOOL_CALLS, *(tool.max_calls for tool in self.tools)])


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAnswer:
    """The answer to an `InputRequestEvent`.

    Attributes:
        execution_id: The execution.
        request_id: The question's id.
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
    """Create a context; the answer contains only this one."""

    language: str = "python"
    cwd: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "language", check_language(self.language))

        if self.cwd is not None:
            check_path("cwd", self.cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListContexts:
    """List the contexts; the answer contains all of them, the default one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartContext:
    """Replace a context by a fresh one of the same id, language and cwd; the answer contains only the fresh one.

    Code that runs in it is killed.
    """

    context_id: str

    def __post_init__(self) -> None:
        check_text("context", self.context_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveContext:
    """Kill a context; the answer is empty. The default context is created afresh when it is used again."""

    context_id: str

    def __post_init__(self) -> None:
        check_text("context", self.context_id, max_bytes=255)


ContextCall: TypeAlias = CreateContext | ListContexts | RestartContext | RemoveContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StatFile:
    """Describe a path; the answer contains only this entry. Links are followed."""

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFiles:
    """Describe the entries below a directory, `depth` levels deep; sorted by path.

    Attributes:
        share: See `ReadFile`.
    """

    path: str
    depth: int = 1
    share: str = ""

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_integer("depth", self.depth, low=1, high=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDir:
    """Make a directory and its parents; the answer describes it. PathExistsError if the path exists."""

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """Remove a file, or a directory with its content; the answer is empty.

    PathNotFoundError if the path does not exist.
    """

    path: str

    def __post_init__(self) -> None:
        check_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile:
    """Move a file or directory within the sandbox, and make the parents of its new path.

    The answer describes it at its new path.
    """

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
        recursive: Whether to watch all directories below, too.
        entries: Whether each change includes a description of its path.
        name: The name by which `settle_watch` finds the watch; empty if it is not used.
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
        offset_bytes: The position at which to begin.
        length_bytes: The most bytes to read; None means up to the end.
        share: The share of a server whose reader makes the request; empty: none. A paused sandbox is then not resumed,
            links that lead out of the home directory are refused, and the audit record notes few of such reads, with
            their share.
        volume: The volume of a server that this read keeps up to date; empty: none. The audit record notes few of such
            reads, as the code in the sandbox decides how many there are.
    """

    path: str
    offset_bytes: int = 0
    length_bytes: int | None = None
    share: str = ""
    volume: str = ""

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
        cwd: The folder to start in; None means /home/user.
        envs: Environment variables in addition to those of the sandbox.
        stdin: True to keep its standard input open for `SendStdin`; otherwise it is empty.
        pty: The size of the terminal on which it runs; None: no terminal.
        timeout_seconds: The time after which it is killed; None means that it may run as long as the sandbox lives.
        is_own: Whether the host starts it for itself, so that it is no part of the history of commands. No body of a
            request has a field for it.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    stdin: bool = False
    pty: PtySize | None = None
    timeout_seconds: float | None = None
    is_own: bool = False

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
        check_bool("is_own", self.is_own)
        check_seconds("timeout", self.timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListProcesses:
    """List the running commands; the answer has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStdin:
    """Write to a command's standard input or terminal; waits until all bytes are accepted. The answer is empty."""

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
    """A piece of a command's output; pty for a terminal.

    Attributes:
        stream: The stream to which it was written.
        data: The bytes.
        skipped_bytes: How many bytes of the stream were left out directly before this piece because of the limit.
    """

    stream: Literal["stdout", "stderr", "pty"]
    data: bytes
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """A command's end, always the last event.

    Attributes:
        exit_code: Its exit code; 128 plus the signal's number when a signal ended it.
        timed_out: True when it was killed because its time was over.
        truncated: How many bytes were written beyond `limits.stdout_bytes` and `limits.stderr_bytes`; their last part
            has been delivered all the same.
    """

    exit_code: int
    timed_out: bool = False
    truncated: Truncation = field(default_factory=Truncation)


ProcessEvent: TypeAlias = ProcessOutput | ProcessExited


MAX_FORKS: Final = 64
"""How many forks one call may ask for."""

ForkSeconds: TypeAlias = float | Literal["inherit"] | None
"""The time of a fork; "inherit" is as much as its parent was given, counted from the fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """Make sandboxes that continue from the present state of a sandbox or from a checkpoint.

    Either all are made, or none.

    Attributes:
        count: The number of forks.
        checkpoint_id: The checkpoint, by its id or its name; None: the present state.
        reseed: Whether each fork gets a random state of its own.
        timeout_seconds: The lifetime of each fork; None: it lives until it is killed; "inherit": the lifetime that its
            parent was given, counted from the fork.
        metadata: The labels of each fork; None: those of the parent.
    """

    count: int = 1
    checkpoint_id: str | None = None
    reseed: bool = True
    timeout_seconds: ForkSeconds = "inherit"
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_integer("count", self.count, low=1, high=MAX_FORKS)
        check_bool("reseed", self.reseed)

        if self.checkpoint_id is not None:
            check_text("checkpoint", self.checkpoint_id, max_bytes=255)

        if isinstance(self.timeout_seconds, str):
            if self.timeout_seconds != "inherit":
                raise InvalidArgumentError(
                    field="timeout", value=self.timeout_seconds, allowed="seconds, None or 'inherit'"
                )
        else:
            check_seconds("timeout", self.timeout_seconds)

        if self.metadata is not None:
            check_labels(self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The result of a fork.

    Attributes:
        items: The new sandboxes.
        left_behind: Descriptions of the parts that could not be forked: other contexts, running commands, threads,
            child processes, sockets and the like.
    """

    items: tuple[SandboxInfo, ...]
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCheckpoint:
    """Keep the state of a context together with the files; the answer contains only this checkpoint.

    Attributes:
        context_id: The context; None means the default one.
        name: The caller's name for it.
        strict: Whether to refuse if something cannot be kept, instead of reporting it.
    """

    context_id: str | None = None
    name: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_bool("strict", self.strict)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=255)

        if self.name is not None:
            check_text("name", self.name, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCheckpoints:
    """List the checkpoints, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Go back to a checkpoint, which is kept; the answer contains only this one.

    Waits for running code of its context.
    """

    checkpoint_id: str

    def __post_init__(self) -> None:
        check_text("checkpoint", self.checkpoint_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Remove a checkpoint; the answer is empty."""

    checkpoint_id: str

    def __post_init__(self) -> None:
        check_text("checkpoint", self.checkpoint_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """The answer to a `CommitRequestEvent`.

    Attributes:
        execution_id: The execution.
        commit: Whether its changes are kept.
    """

    execution_id: str
    commit: bool

    def __post_init__(self) -> None:
        check_bool("commit", self.commit)


CheckpointCall: TypeAlias = TakeCheckpoint | ListCheckpoints | RollBack | DropCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Make a sandbox from a saved state.

    Attributes:
        spec: The options of the sandbox. Its environment variables override those of the saved state.
        keep_template: Whether it uses the template that it was saved with, and not that of `spec`.
        files_only: Whether only the files are restored: no variables, and only a fresh default context.
    """

    spec: SandboxSpec = field(default_factory=SandboxSpec)
    keep_template: bool = True
    files_only: bool = False

    def __post_init__(self) -> None:
        check_bool("keep_template", self.keep_template)
        check_bool("files_only", self.files_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A sandbox that was made from a saved state.

    Attributes:
        sandbox: The sandbox.
        report: The parts of the saved state that are in it.
    """

    sandbox: SandboxInfo
    report: LoadReport


MAX_TOOLS = 64
MAX_TOOL_CALLS = 10_000
DEFAULT_TOOL_CALLS = 100
DEFAULT_TOOL_SECONDS = 30.0
MAX_TOOL_SECONDS = 86_400
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_PARAMETERS = 64
MAX_ERROR_CHARACTERS = 16_000
MAX_RESULT_BYTES = 4 * MIB
_MAX_SPEC_BYTES = 64 * 1024
_MAX_SPECS_BYTES = 256 * 1024
_MAX_PARAMETER_CHARACTERS = 128
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Defined beside the tools.
_TAKEN = "ToolError"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A function of the caller that code in the sandbox may call while it runs.

    Attributes:
        name: Its name in the sandbox.
        description: Its text in `help()`.
        parameters: Its arguments, which are given by name: a JSON Schema whose type is object.
        awaited: Whether code in the sandbox awaits it; otherwise a call blocks.
        timeout_seconds: How long one call may take.
        max_calls: How often one execution may call it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    awaited: bool = False
    timeout_seconds: float = DEFAULT_TOOL_SECONDS
    max_calls: int = DEFAULT_TOOL_CALLS

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None

        if not is_name or keyword.iskeyword(self.name) or self.name == _TAKEN:
            raise InvalidArgumentError(
                field="tool name",
                value=self.name,
                allowed="a Python name of at most 64 letters, digits and underscores, no keyword and not ToolError",
            )

        where = f"tools[{self.name!r}]"

        if not _is_text(self.description, MAX_DESCRIPTION_CHARACTERS):
            raise InvalidArgumentError(
                field=f"{where}.description",
                value=self.description,
                allowed=f"text of at most {MAX_DESCRIPTION_CHARACTERS:,} characters",
            )

        if not isinstance(self.awaited, bool):
            raise InvalidArgumentError(field=f"{where}.awaited", value=self.awaited, allowed="True or False")

        check_seconds(f"{where}.timeout", self.timeout_seconds, optional=False, high=MAX_TOOL_SECONDS)
        is_count = isinstance(self.max_calls, int) and not isinstance(self.max_calls, bool)

        if not is_count or not 1 <= self.max_calls <= MAX_TOOL_CALLS:
            raise InvalidArgumentError(
                field=f"{where}.max_calls", value=self.max_calls, allowed=f"1 to {MAX_TOOL_CALLS:,}"
            )

        self._check_parameters(f"{where}.parameters")

    def _check_parameters(self, where: str) -> None:
        allowed = f"a JSON Schema of an object with at most {MAX_PARAMETERS} properties"

        if not isinstance(self.parameters, Mapping) or self.parameters.get("type", "object") != "object":
            raise InvalidArgumentError(field=where, value=self.parameters, allowed=allowed)

        try:
            json_of(dict(self.parameters), where, _MAX_SPEC_BYTES)
        except NotJsonError as error:
            raise InvalidArgumentError(field=where, value=str(error), allowed=allowed) from None

        properties = self.parameters.get("properties", {})
        required = self.parameters.get("required", [])

        if (
            not isinstance(properties, Mapping)
            or not isinstance(required, list | tuple)
            or not all(isinstance(name, str) for name in required)
            or len({*properties, *required}) > MAX_PARAMETERS
            or any(len(name) > _MAX_PARAMETER_CHARACTERS for name in (*properties, *map(str, required)))
        ):
            raise InvalidArgumentError(field=where, value=self.parameters, allowed=allowed)

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments that every call must have, in order."""
        required = self.parameters.get("required", [])
        return tuple(dict.fromkeys(map(str, required))) if isinstance(required, list | tuple) else ()

    @property
    def optional(self) -> tuple[str, ...]:
        """The arguments that a call may have, in order."""
        properties = self.parameters.get("properties", {})
        names = properties if isinstance(properties, Mapping) else {}
        return tuple(name for name in names if name not in self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """The answer to a `ToolCallEvent`.

    Attributes:
        execution_id: The execution.
        request_id: The call's id.
        value: The tool's result: a JSON value.
        error: The message of the ToolError that the code gets instead of a value, or None.
    """

    execution_id: str
    request_id: str
    value: JsonValue = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.error is not None and not _is_text(self.error, MAX_ERROR_CHARACTERS):
            raise InvalidArgumentError(
                field="error",
                value=self.error,
                allowed=f"text of at most {MAX_ERROR_CHARACTERS:,} characters",
            )

        try:
            json_of(self.value, "value", MAX_RESULT_BYTES)
        except NotJsonError as error:
            raise InvalidArgumentError(field="value", value=str(error), allowed="a JSON value") from None


def _is_text(value: object, max_characters: int) -> bool:
    if not isinstance(value, str) or len(value) > max_characters:
        return False

    try:
        value.encode()
    except UnicodeEncodeError:
        return False

    return True


def check_tools(tools: object) -> None:
    """Raise InvalidArgumentError unless `tools` can be the tools of one execution."""
    if tools == ():
        return

    if not isinstance(tools, tuple) or not all(isinstance(tool, ToolSpec) for tool in tools):
        raise InvalidArgumentError(field="tools", value=tools, allowed="a tuple of ToolSpec")

    if len(tools) > MAX_TOOLS:
        raise InvalidArgumentError(field="tools", value=f"{len(tools)} tools", allowed=f"at most {MAX_TOOLS}")

    names = [tool.name for tool in tools]

    if len(set(names)) < len(names):
        raise InvalidArgumentError(field="tools", value=names, allowed="names that are all different")

    specs = [{"description": tool.description, "parameters": dict(tool.parameters)} for tool in tools]
    try:
        json_of(specs, "tools", _MAX_SPECS_BYTES)
    except NotJsonError as error:
        allowed = f"descriptions and schemas of at most {_MAX_SPECS_BYTES:,} bytes all together"
        raise InvalidArgumentError(field="tools", value=str(error), allowed=allowed) from None
