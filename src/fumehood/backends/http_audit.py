"""The audit record in the words of a server's routes.

Runs in the process that asks one. Translation only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fumehood.audit.entries import AuditLog
from fumehood.backends.http_paths import sandbox_path
from fumehood.deserialise import read_value
from fumehood.security import SecurityEvent


class HttpAudit:
    """Verbs of `HttpBackend` about what is written down of a sandbox."""

    _ask: Callable[..., Awaitable[Any]]
    _read: Callable[[type[Any], object], Any]
    _lines: Callable[..., AsyncGenerator[Any, None]]

    def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        """Give the security events of a sandbox; see the port."""
        return self._lines(_security_event_of, "GET", sandbox_path(sandbox_id, "audit", "events"))

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        """Give the audit record of a sandbox; see the port."""
        log: AuditLog = self._read(AuditLog, await self._ask("GET", sandbox_path(sandbox_id, "audit")))
        return log


def _security_event_of(line: dict[str, Any]) -> SecurityEvent:
    return read_value(SecurityEvent, line)
