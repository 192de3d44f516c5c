"""Models of the routes of sandboxes.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fumehood.bounds import BOUNDS
from fumehood.server.schemas.audit import NewSecurity
from fumehood.server.schemas.describe import described_fields, model_of, request_of, with_flags_of
from fumehood.server.schemas.fields import Body, Envs, Labels, Name, Seconds
from fumehood.server.schemas.network import NetworkField, network_of
from fumehood.values.limits import Limits
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import IsolationLevel, Metrics, SandboxInfo, SandboxState, TimeoutAction

_WORDS = described_fields(Limits)
_DEFAULTS = Limits()

SandboxAnswer = model_of(SandboxInfo)
MetricsAnswer = model_of(Metrics)
State = SandboxState


def _limit(name: str) -> Any:
    bound = BOUNDS[name]
    return Field(default=getattr(_DEFAULTS, name), ge=bound.low, le=bound.high, description=_WORDS[name])


class NewLimits(Body):
    """The limits of a new sandbox; one that is left out has its default, or what the key allows if that is less."""

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

    def limits(self) -> Limits:
        """Returns the limits."""
        return Limits(**self.model_dump())


@with_flags_of(SandboxSpec)
class NewSandbox(Body):
    """The options of a new sandbox."""

    template: Name = Field("default", description="What it starts from.")
    limits: NewLimits = Field(default_factory=NewLimits, description="What it may use.")
    envs: Envs = Field(default_factory=dict, description="Environment of everything that runs in it.")
    metadata: Labels = Field(default_factory=dict, description="Labels of your own.")
    timeout_seconds: Seconds | None = Field(
        None, description="Its time, within the server's longest; null: the server's default."
    )
    idle_timeout_seconds: Seconds | None = Field(
        None, description="Its time without a call; null: it never ends for that reason."
    )
    on_timeout: TimeoutAction = Field("kill", description="What happens when its time is over.")
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
            chosen_limits=tuple(sorted(self.limits.model_fields_set)),
            network=network_of(self.network),
            security=self.security.settings(),
            # The owner is the caller's key: the tenant guard sets it.
            owner="",
        )


class NewTimeout(Body):
    """A new time for a sandbox."""

    timeout_seconds: Seconds | None = Field(
        description="How long it lives from now on, within the server's longest; null: the server's default."
    )


class SandboxPage(BaseModel):
    """Some of the sandboxes, the oldest first."""

    items: list[SandboxAnswer]  # type: ignore[valid-type]
    next_cursor: str | None = Field(
        description="Give it as `cursor` for the next page; null: this is the last."
    )


class Changed(BaseModel):
    """Whether a request changed anything."""

    changed: bool = Field(description="False when it was so already.")
