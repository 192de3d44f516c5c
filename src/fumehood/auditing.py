"""The verbs of what is written down, for `Sandbox` and `AsyncSandbox`: the audit record.

Runs in the host process, on the caller's side of the backend port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.audit.entries import AuditLog
from fumehood.portal import call

if TYPE_CHECKING:
    from fumehood.lease import Lease


class AsyncAuditing:
    """What `AsyncSandbox` tells of itself; described at `Auditing`."""

    _lease: Lease

    async def audit_log(self) -> AuditLog:
        """Tell what happened in and around the sandbox."""
        return await self._lease.backend.audit_log(self._lease.id)


class Auditing:
    """What `Sandbox` tells of itself."""

    _twin: AsyncAuditing

    def audit_log(self) -> AuditLog:
        """Tell what happened in and around the sandbox, in a record in which every later change shows.

        Its newest entries are told, up to 4,096 and 2 MiB; `dropped` counts those before. For a while it can be read
        after the sandbox has ended. `log.fault(execution.audit_head)` checks it against a head that was kept.
        """
        return call(self._twin.audit_log)
