"""Security events of a running sandbox (`SecurityEvent`), and the reactions to them (`SecurityRule`).

Plain values, used by callers and by all host code. Nothing is enforced here: the isolation holds without any observer.
A rule that exists is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from fumehood.errors import InvalidArgumentError

SecurityKind = Literal[
    "refused_call",
    "egress_denied",
    "unusual_program",
    "process_storm",
    "file_storm",
    "limit_hit",
    "protocol_violation",
    "telemetry",
]
SecuritySeverity = Literal["info", "warning", "danger"]
SecurityAction = Literal["record", "pause", "kill"]

SECURITY_KINDS: tuple[str, ...] = get_args(SecurityKind)
_ACTIONS: tuple[str, ...] = get_args(SecurityAction)
_MAX_COUNT = 1_000_000
_MAX_RULES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityEvent:
    """An action or attempt of code in a sandbox that is relevant to security.

    Attributes:
        at: When it was noted (UTC).
        sandbox_id: The sandbox.
        kind: refused_call, egress_denied, unusual_program, process_storm, file_storm, limit_hit, protocol_violation or
            telemetry.
        severity: info, warning or danger.
        detail: A description in one line; data of the guest in it is bounded, and its control characters are escaped.
        process_id: The pid inside the sandbox of the process that caused it, if known.
        advice: True where code in the sandbox could have suppressed or invented it.
        count: How many of its kind there have been in this sandbox, this one included.
        action: The reaction: record, pause or kill.
    """

    at: datetime
    sandbox_id: str
    kind: SecurityKind
    severity: SecuritySeverity
    detail: str
    process_id: int | None = None
    advice: bool = False
    count: int = 1
    action: SecurityAction = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityRule:
    """The reaction to a number of security events in a sandbox.

    Attributes:
        kind: The kind of events.
        action: `record` (nothing else happens), `pause` or `kill`.
        count: The number of events of that kind from which on the rule applies: to this event and all later ones.
    """

    kind: SecurityKind
    action: SecurityAction
    count: int = 1

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("kind", self.kind, SECURITY_KINDS),
            ("action", self.action, _ACTIONS),
        ):
            if value not in allowed:
                raise InvalidArgumentError(
                    field=f"security_policy.{name}", value=value, allowed=", ".join(allowed)
                )

        if (
            isinstance(self.count, bool)
            or not isinstance(self.count, int)
            or not 1 <= self.count <= _MAX_COUNT
        ):
            raise InvalidArgumentError(
                field="security_policy.count",
                value=self.count,
                allowed=f"a whole number from 1 to {_MAX_COUNT:,}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """The security settings of a sandbox: telemetry, and rules for events.

    Attributes:
        rules: The reactions to events.
        telemetry: Whether its interpreters report calls of the code; advice, since code can suppress that.
    """

    rules: Sequence[SecurityRule] = ()
    telemetry: bool = False

    def __post_init__(self) -> None:
        rules = self.rules
        is_list = isinstance(rules, Sequence) and not isinstance(rules, str) and len(rules) <= _MAX_RULES

        if not is_list or not all(isinstance(rule, SecurityRule) for rule in rules):
            raise InvalidArgumentError(
                field="security_policy", value=rules, allowed=f"a list of up to {_MAX_RULES} SecurityRule"
            )

        if not isinstance(self.telemetry, bool):
            raise InvalidArgumentError(field="telemetry", value=self.telemetry, allowed="True or False")

        object.__setattr__(self, "rules", tuple(rules))

    def action_at(self, kind: str, count: int) -> SecurityAction:
        """Return the reaction to this event of its kind: the strongest among the matching rules."""
        asked = [rule.action for rule in self.rules if rule.kind == kind and count >= rule.count]
        return max(asked, key=_ACTIONS.index, default="record")
