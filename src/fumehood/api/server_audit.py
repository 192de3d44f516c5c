"""The audit record of a server itself, for its owner.

Runs in the user's process; each call is one request.
"""

from __future__ import annotations

from fumehood.assemble import ask_server
from fumehood.errors import HostUnavailableError
from fumehood.tracebacks import ending_at_caller
from fumehood.values.audit import AuditLog
from fumehood.values.codec import DataError, read_value


@ending_at_caller
def read_server_audit(*, url: str | None = None, api_key: str | None = None) -> AuditLog:
    """Return the newest entries of a server's own audit record: logins, keys, shares, and acts of its owner.

    Verify it like the audit record of a sandbox: `read_server_audit().fault()`.

    Args:
        url: Address of the server; None: FUMEHOOD_URL.
        api_key: The token of the owner of the server; None: FUMEHOOD_API_KEY.

    Raises:
        ForbiddenError: The token is not that of the server's owner.
    """
    answer = ask_server(url, api_key, "GET", "/v1/audit")

    try:
        return read_value(AuditLog, answer)
    except DataError as error:
        raise HostUnavailableError(
            host=url or "the server",
            reason=f"its answer is not an audit record: {error}",
            outcome_unknown=False,
        ) from None
