"""Models of the routes of the audit record and of security events.

They bound and describe only.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fumehood.server.schemas.describe import described_fields, model_of
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.server.schemas.fields import Body
from fumehood.values.audit import AuditEntry, AuditLog
from fumehood.values.security import (
    SecurityAction,
    SecurityEvent,
    SecurityKind,
    SecurityRule,
    SecuritySettings,
)

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
    """How a sandbox is watched."""

    rules: list[NewSecurityRule] = Field(default_factory=list, max_length=64, description=_SETTINGS["rules"])
    telemetry: bool = Field(default=False, description=_SETTINGS["telemetry"])

    def settings(self) -> SecuritySettings:
        """Returns it as the port knows it."""
        rules = [SecurityRule(kind=rule.kind, action=rule.action, count=rule.count) for rule in self.rules]
        return SecuritySettings(rules=rules, telemetry=self.telemetry)
