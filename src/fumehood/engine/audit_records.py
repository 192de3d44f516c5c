"""The audit records of one host: begun when a sandbox is handed out, and kept for a while after its end.

Where records go to a folder, no sandbox may be handed out whose file cannot be made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fumehood.audit.chain import AuditChain
from fumehood.audit.files import AuditFile, AuditFolder
from fumehood.engine.audit_trail import AuditTrail, EndedTrails, Fields, listed, shown, whole
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import SandboxStartError
from fumehood.values.audit import AuditLog, digest_of, line_of
from fumehood.values.charts import JsonValue
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import Isolation
from fumehood.values.security import SecurityEvent, SecuritySettings

FORMAT = "fumehood audit 1"


class AuditRecords:
    """The records of one host's sandboxes.

    Args:
        folder: The folder in which each record is a file; None: records are in memory only.
    """

    def __init__(self, folder: AuditFolder | None = None) -> None:
        # Called with the security events of all sandboxes.
        self.on_security_event: Callable[[SecurityEvent], None] = lambda _: None
        self._folder = folder
        self._living: dict[str, AuditTrail] = {}
        self._ended = EndedTrails()

    def begin(self, sandbox: LiveSandbox, spec: SandboxSpec, parent_id: str | None = None) -> None:
        """Begins the record of a sandbox that is handed out now.

        Args:
            sandbox: The sandbox.
            spec: The caller's request.
            parent_id: For a fork, the id of the sandbox that it was forked from.

        Raises:
            SandboxStartError: The file of the record cannot be made; the sandbox has ended.
        """
        try:
            file = None if self._folder is None else self._folder.open(sandbox.id)
        except OSError as error:
            sandbox.end("killed")
            raise SandboxStartError(step="open its audit file", reason=error.strerror or str(error)) from None

        self._begin(sandbox, spec, parent_id, file)

    def keep(self, sandbox: LiveSandbox) -> None:
        """Keeps the audit record of an ended sandbox, for readers that ask for it later."""
        self._living.pop(sandbox.id, None)
        self._ended.add(sandbox.id, sandbox.audit)

    def rename(self, sandbox_id: str, new_id: str) -> None:
        """Continues the record of a fork under the id of its parent, which it replaces."""
        trail = self._living.pop(sandbox_id, None)

        if trail is not None:
            trail.note("adopted", {"sandbox": new_id, "former": sandbox_id})
            self._living[new_id] = trail

    def read(self, sandbox_id: str) -> AuditLog | None:
        """Returns the record of a sandbox that lives, or that has ended and whose record is still kept."""
        trail = self._living.get(sandbox_id) or self._ended.find(sandbox_id)
        return None if trail is None else trail.read(sandbox_id)

    def _head_of(self, sandbox_id: str | None) -> str | None:
        """Returns the head of a parent's record, to which the record of its fork refers."""
        trail = None if sandbox_id is None else self._living.get(sandbox_id)
        head = None if trail is None else trail.head
        return None if head is None else head.hash

    def _begin(
        self, sandbox: LiveSandbox, spec: SandboxSpec, parent_id: str | None, file: AuditFile | None
    ) -> None:
        sandbox_id, isolation, digest = sandbox.id, sandbox.guest.isolation, sandbox.guest.policy_digest
        limits = spec.limits
        # Fields that hold secrets are computed at once, not later.
        given: Fields = {
            "parent": parent_id,
            "parent_head": self._head_of(parent_id),
            "owner": shown(spec.owner) or None,
            "template": shown(spec.template_name),
            "network": describe_network(spec.network),
            "environment": listed(sorted(spec.envs)) or None,
            "security": _rules(spec.security),
        }

        def describe() -> Fields:
            return {
                **given,
                "format": FORMAT,
                "sandbox": sandbox_id,
                "limits": _limits(limits),
                "isolation": _isolation(isolation),
                "policy_sha256": digest or None,
            }

        sandbox.audit.begin(AuditChain(file), describe)
        self._living[sandbox.id] = sandbox.audit
        sandbox.security.begin(spec.security, lambda event: self.on_security_event(event))


def describe_network(network: Network) -> Fields:
    """Returns a network's fields for the record: its level, and a digest of its rules without the secrets."""
    rules: Fields = {
        "allow": list(network.allow),
        "deny": list(network.deny),
        "hosts": dict(network.hosts),
        "internet": network.internet,
        "presets": list(network.presets),
        "secrets": [*sorted(network.secrets)],
    }
    return {"level": network.level, "rules_sha256": digest_of(line_of(rules))}


def _limits(limits: Limits) -> dict[str, JsonValue]:
    return {field.name: whole(getattr(limits, field.name)) for field in dataclasses.fields(limits)}


def _rules(security: SecuritySettings) -> Fields | None:
    if not security.rules and not security.telemetry:
        return None

    rules: list[JsonValue] = [f"{rule.kind} {rule.count} {rule.action}" for rule in security.rules]
    return {"rules": rules, "telemetry": security.telemetry}


def _isolation(isolation: Isolation) -> dict[str, JsonValue]:
    return {
        "level": isolation.level,
        "layers": {layer.name: f"{layer.state}: {shown(layer.why)}" for layer in isolation.layers},
    }
