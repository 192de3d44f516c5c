"""What the routes of the audit record give.

Runs in the server process. It describes only.
"""

from __future__ import annotations

from typing import Any

from fumehood.audit.entries import AuditEntry, AuditLog
from fumehood.server.schemas.describe import model_of

_EntryAnswer = model_of(AuditEntry, other={"fields": dict[str, Any]})
AuditAnswer = model_of(AuditLog, other={"entries": list[_EntryAnswer]})  # type: ignore[valid-type]
