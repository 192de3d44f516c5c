"""Models of the routes of sandboxes, and of their network, audit record, forks, checkpoints, ports and saved states.

They bound and describe; a body becomes a request of the port, and `fumehood.values` checks the rules themselves.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fumehood.bounds import BOUNDS, TIB
from fumehood.server.schemas.base import (
    Body,
    Code,
    Envs,
    ExecutionSeconds,
    Labels,
    Name,
    Seconds,
    described_fields,
    model_of,
    request_of,
    with_flags_of,
)
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.values.audit import AuditEntry, AuditLog
from fumehood.values.checks import MAX_LABEL_NAME_CHARACTERS, MAX_LABELS, MAX_LABELS_BYTES
from fumehood.values.judging import DEFAULT_CASE_SECONDS, CaseRun, JudgeRequest
from fumehood.values.languages import Language
from fumehood.values.limits import Limits
from fumehood.values.looking import Family, PortList, SandboxUse
from fumehood.values.network import EgressRecord, Network, meant_network, read_network
from fumehood.values.requests import (
    MAX_FORKS,
    Forked,
    ForkRequest,
    Loaded,
    LoadRequest,
    SandboxSpec,
    TakeCheckpoint,
)
from fumehood.values.sandbox import (
    CheckpointInfo,
    HostLossAction,
    IsolationLevel,
    Metrics,
    PortAddress,
    SandboxInfo,
    SandboxState,
    TimeoutAction,
)
from fumehood.values.security import (
    SecurityAction,
    SecurityEvent,
    SecurityKind,
    SecurityRule,
    SecuritySettings,
)

_NETWORK_WORDS = described_fields(Network)
_MAX_RULES = 1000
_LABELS_BOUND = (
    f"At most {MAX_LABELS}, with names of up to {MAX_LABEL_NAME_CHARACTERS} characters, "
    f"and {MAX_LABELS_BYTES // 1024} KiB of UTF-8 in all."
)

RuleText = Annotated[str, Field(min_length=1, max_length=300)]
HostName = Annotated[str, Field(min_length=1, max_length=300)]
HeaderText = Annotated[str, Field(max_length=8192)]

RecordAnswer = model_of(EgressRecord)


class NewNetwork(Body):
    """The network policy of a sandbox; without a rule, the sandbox has no network access."""

    allow: list[RuleText] = Field(
        default_factory=list, max_length=_MAX_RULES, description=_NETWORK_WORDS["allow"]
    )
    deny: list[RuleText] = Field(
        default_factory=list, max_length=_MAX_RULES, description=_NETWORK_WORDS["deny"]
    )
    internet: bool = Field(False, description=_NETWORK_WORDS["internet"])
    presets: list[Literal["pip"]] = Field(
        default_factory=list, max_length=1, description=_NETWORK_WORDS["presets"]
    )
    hosts: dict[HostName, RuleText] = Field(
        default_factory=dict, max_length=_MAX_RULES, description=_NETWORK_WORDS["hosts"]
    )
    secrets: dict[HostName, dict[HostName, HeaderText]] = Field(
        default_factory=dict, max_length=_MAX_RULES, description=_NETWORK_WORDS["secrets"], repr=False
    )
    max_bytes: int = Field(Network().max_bytes, ge=1, le=1024 * TIB, description=_NETWORK_WORDS["max_bytes"])

    def network(self) -> Network:
        """Returns the value of the port."""
        return Network(**self.model_dump())


def _check_word(given: object) -> object:
    """Refuses a wrong word in one sentence: each form that a network may have would refuse it in one of its own."""
    if isinstance(given, str) and given not in get_args(_NetworkWord):
        raise PydanticCustomError(
            "network_word",
            "it takes 'none', 'pip', 'internet', a list of hosts such as ['api.example.com'], or an object with the "
            "rules{meant}",
            {"meant": meant_network(given[:_MAX_WORD_CHARACTERS])},
        )

    return given


_MAX_WORD_CHARACTERS = 20
_NetworkWord = Literal["none", "pip", "internet"]
NetworkField = Annotated[
    NewNetwork | _NetworkWord | Annotated[list[RuleText], Field(max_length=_MAX_RULES)],
    BeforeValidator(_check_word),
]


class EgressLog(BaseModel):
    """The connections that a sandbox made and tried to make, the oldest first."""

    items: list[RecordAnswer]  # type: ignore[valid-type]


def network_of(given: NetworkField) -> Network:
    """Returns the network that a body describes."""
    if isinstance(given, NewNetwork):
        return given.network()

    return read_network(given)


_EntryAnswer = model_of(AuditEntry, other={"fields": dict[str, Any]})
AuditAnswer = model_of(AuditLog, other={"entries": list[_EntryAnswer]})  # type: ignore[valid-type]
SECURITY_LINES: tuple[type[BaseModel], ...] = (
    model_of(SecurityEvent, kind="security_event"),
    ProblemLine,
    KeepaliveLine,
)
_RULE = described_fields(SecurityRule)
_SETTINGS = described_fields(SecuritySettings)


class NewSecurityRule(Body):
    """The reaction to a number of security events."""

    kind: SecurityKind = Field(description=_RULE["kind"])
    action: SecurityAction = Field(description=_RULE["action"])
    count: int = Field(1, ge=1, le=1_000_000, description=_RULE["count"])


class NewSecurity(Body):
    """The security settings of a sandbox."""

    rules: list[NewSecurityRule] = Field(default_factory=list, max_length=64, description=_SETTINGS["rules"])
    telemetry: bool = Field(default=False, description=_SETTINGS["telemetry"])

    def settings(self) -> SecuritySettings:
        """Returns the value of the port."""
        rules = [SecurityRule(kind=rule.kind, action=rule.action, count=rule.count) for rule in self.rules]
        return SecuritySettings(rules=rules, telemetry=self.telemetry)


_WORDS = described_fields(Limits)
_DEFAULTS = Limits()

SandboxAnswer = model_of(SandboxInfo)
MetricsAnswer = model_of(Metrics)
State = SandboxState


def _limit(name: str) -> Any:
    bound = BOUNDS[name]
    return Field(default=getattr(_DEFAULTS, name), ge=bound.low, le=bound.high, description=_WORDS[name])


def _size(name: str) -> Any:
    said = f"`{name}_bytes` as a size such as `2G`, in its place."
    return Field(default=None, max_length=20, description=said)


class NewLimits(Body):
    """The limits of a new sandbox; a missing limit has its default, or the key's maximum if that is less."""

    wall_seconds: float = _limit("wall_seconds")
    cpu_seconds: float | None = _limit("cpu_seconds")
    memory_bytes: int = _limit("memory_bytes")
    processes: int = _limit("processes")
    cpu_cores: float | None = _limit("cpu_cores")
    open_files: int = _limit("open_files")
    disk_bytes: int = _limit("disk_bytes")
    inodes: int = _limit("inodes")
    stdout_bytes: int = _limit("stdout_bytes")
    stderr_bytes: int = _limit("stderr_bytes")
    result_bytes: int = _limit("result_bytes")
    result_count: int = _limit("result_count")
    grace_seconds: float = _limit("grace_seconds")
    memory: str | None = _size("memory")
    disk: str | None = _size("disk")

    def limits(self) -> Limits:
        """Returns the body as a `Limits`, with its defaults for fields that were not given."""
        return Limits(**self.model_dump())

    def chosen(self) -> tuple[str, ...]:
        """Returns the names of the limits that the caller has chosen, which a key refuses instead of reducing."""
        sizes = {"memory": "memory_bytes", "disk": "disk_bytes"}
        named = {
            name for name in self.model_fields_set if name not in sizes or getattr(self, name) is not None
        }
        return tuple(sorted({sizes.get(name, name) for name in named}))


# Whether records are kept is the server's decision, and not that of a key.
@with_flags_of(SandboxSpec, without=("is_recorded",))
class NewSandbox(Body):
    """The options of a new sandbox."""

    template: Name = Field("default", description="What it starts from.")
    limits: NewLimits = Field(default_factory=NewLimits, description="What it may use.")
    envs: Envs = Field(default_factory=dict, description="Environment of everything that runs in it.")
    metadata: Labels = Field(
        default_factory=dict, description=f"Names and values of your own. {_LABELS_BOUND}"
    )
    labels: Labels = Field(
        default_factory=dict,
        description="Labels that its machine must have, such as `zone`; machines of a cluster have labels.",
    )
    timeout_seconds: Seconds | None = Field(
        None, description="Its time, within the server's longest; null: the server's default."
    )
    idle_timeout_seconds: Seconds | None = Field(
        None, description="Its time without a call; null: it never ends for that reason."
    )
    on_timeout: TimeoutAction = Field("kill", description="What happens when its time is over.")
    on_host_loss: HostLossAction = Field(
        "raise",
        description="What happens when its machine is lost; `restore`: you make it again from its last save, and a "
        "machine that is cut off ends it, so that there are never two.",
    )
    isolation: IsolationLevel | None = Field(
        None,
        description="The weakest isolation that will do, within what the server allows; null: the server's.",
    )
    network: NetworkField = Field(
        "none", description="What it may reach, within what the server and the key allow."
    )

    security: NewSecurity = Field(default_factory=NewSecurity, description="How it is watched.")

    def spec(self) -> SandboxSpec:
        """Returns the request of the port."""
        return request_of(
            SandboxSpec,
            self,
            limits=self.limits.limits(),
            chosen_limits=self.limits.chosen(),
            network=network_of(self.network),
            security=self.security.settings(),
            # The owner is the caller's key: the tenant guard sets it.
            owner="",
            is_recorded=True,
        )


class HostSandbox(NewSandbox):
    """The options of a new sandbox at a host daemon, with those that only a server may choose."""

    is_recorded: bool = Field(True, description="Whether its record is kept after its end.")


class NewTimeout(Body):
    """A new remaining lifetime for a sandbox."""

    timeout_seconds: Seconds | None = Field(
        description="How long it lives from now on, within the server's longest; null: the server's default."
    )


class ChangeSandbox(Body):
    """The changes to make to a sandbox."""

    metadata: dict[str, str | None] = Field(
        description="Labels by name: the new value, or null to take it away. Others stay as they are. "
        f"{_LABELS_BOUND}"
    )


UseAnswer = model_of(SandboxUse)
FamilyAnswer = model_of(Family)


class ListedAnswer(SandboxAnswer):  # type: ignore[valid-type,misc]
    """A sandbox of a list."""

    use: UseAnswer | None = Field(  # type: ignore[valid-type]
        default=None, description="What it uses and does now, with `with=use`."
    )


class SandboxPage(BaseModel):
    """Some of the sandboxes, in the requested order."""

    items: list[ListedAnswer]
    next_cursor: str | None = Field(
        description="Give it as `cursor` for the next page; null: this is the last."
    )


class Changed(BaseModel):
    """Whether a request changed anything."""

    changed: bool = Field(description="False when it was so already.")


ForkedAnswer = model_of(Forked)


class NewForks(Body):
    """A request for forks: the state to start from, and their number."""

    count: int = Field(1, ge=1, le=MAX_FORKS, description="How many; all of them are made, or none.")
    checkpoint_id: Name | None = Field(
        None, description="From which checkpoint, by its id or its name; null: from now on."
    )
    reseed: bool = Field(True, description="Let randomness diverge: each fork draws numbers of its own.")
    timeout_seconds: Seconds | Literal["inherit"] | None = Field(
        "inherit",
        description="The time of each, within the server's longest; null: the server's default; `inherit`: as much "
        "as the parent was given, counted from the fork.",
    )
    metadata: Labels | None = Field(
        None, description=f"Labels of each; null: those of the parent. {_LABELS_BOUND}"
    )

    def request(self) -> ForkRequest:
        """Returns the request of the port."""
        return ForkRequest(
            count=self.count,
            checkpoint_id=self.checkpoint_id,
            reseed=self.reseed,
            timeout_seconds=self.timeout_seconds,
            metadata=self.metadata,
        )


class Adoption(Body):
    """The fork that replaces its parent."""

    child_id: Name = Field(description="A fork of this sandbox.")


CheckpointAnswer = model_of(CheckpointInfo)
CaseRunAnswer = model_of(CaseRun)


class NewCheckpoint(Body):
    """A checkpoint to make."""

    context_id: Name | None = Field(None, description="The context; null: the default one.")
    name: Name | None = Field(
        None,
        description="A name of yours to go back by; of several, the newest's.",
    )
    strict: bool = Field(False, description="Refuse when something could not be kept, in place of naming it.")

    def call(self) -> TakeCheckpoint:
        """Returns the request of the port."""
        return TakeCheckpoint(context_id=self.context_id, name=self.name, strict=self.strict)


class CheckpointList(BaseModel):
    """The checkpoints of a sandbox, the oldest first."""

    items: list[CheckpointAnswer]  # type: ignore[valid-type]


class NewJudgement(Body):
    """A program to judge, and the input of each of its runs."""

    code: Code = Field(description="The program; one in Python runs as `__main__`.")
    language: Language = Field("python", description="What it is written in.")
    stdins: list[Annotated[str, Field(max_length=4 << 20)]] = Field(
        max_length=200, description="The standard input of each run; ask again for more."
    )
    timeout_seconds: ExecutionSeconds = Field(DEFAULT_CASE_SECONDS, description="Time of each run.")
    memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        le=1 << 50,
        description="What each run may take beyond the interpreter and the imports; of a program in another language "
        "than Python, its data.",
    )
    concurrency: int | None = Field(
        None, ge=1, le=64, description="How many run at once; null: as many as processors."
    )

    def request(self) -> JudgeRequest:
        """Returns the request of the port."""
        return JudgeRequest(
            code=self.code,
            stdins=tuple(self.stdins),
            wall_seconds=self.timeout_seconds,
            memory_bytes=self.memory_bytes,
            concurrency=self.concurrency,
            language=self.language,
        )


class CaseRunList(BaseModel):
    """The result of each run, in the order of the inputs."""

    items: list[CaseRunAnswer]  # type: ignore[valid-type]


class SignPort(Body):
    """A request for a signed address of a port."""

    expires_in_seconds: float = Field(default=3600, gt=0, le=86_400 * 30)


PortAnswer = model_of(PortAddress)
PortsAnswer = model_of(PortList)


LoadedAnswer = model_of(Loaded)


class LoadOptions(NewSandbox):
    """The options of a sandbox that is made from a saved state."""

    keep_template: bool = Field(
        True, description="Start from the template that it was saved with; false: from `template`."
    )

    files_only: bool = Field(False, description="Begin with the files alone, without variables.")

    def request(self) -> LoadRequest:
        """Returns the request of the port."""
        return LoadRequest(spec=self.spec(), keep_template=self.keep_template, files_only=self.files_only)
