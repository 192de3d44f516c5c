"""What a server refuses, or cannot tell, before or instead of asking a sandbox: the second branch of the error tree.

Raised by the server and its host daemon, and raised again, as the same class, by the client that hears of it.
All are FumehoodErrors: each writes its own message from typed fields, has a stable `code` and a way out.
"""

from __future__ import annotations

from fumehood.errors import FumehoodError
from fumehood.text import visible_line


class ServiceError(FumehoodError):
    """The service refused, or could not be reached; no sandbox is to blame."""

    code = "service_error"


class UnauthenticatedError(ServiceError):
    """No token came with the request, or one that this server does not know."""

    code = "unauthenticated"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the request is not authenticated: {visible_line(reason)}",
            hint="send `Authorization: Bearer TOKEN`; `fumehood serve` says at its start where its token lies",
        )


class ForbiddenError(ServiceError):
    """The key is known, and may not do this."""

    code = "forbidden"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"this key may not do that: {visible_line(reason)}", hint="use a key with that scope"
        )


class QuotaError(ServiceError):
    """The key has used up what it may use.

    Attributes:
        quota: Which of its limits.
        retry_after_seconds: When it may try again, or None if time does not help.
    """

    code = "quota"

    def __init__(self, *, quota: str, used: float, maximum: float, retry_after_seconds: float | None) -> None:
        self.quota = quota
        self.used = used
        self.maximum = maximum
        self.retry_after_seconds = retry_after_seconds
        super().__init__(
            f"this key has used {used:g} of {maximum:g} {visible_line(quota)}",
            hint="wait, or ask the server's owner for more",
        )


class OverloadedError(ServiceError):
    """More is asked than can be done or queued; nothing was done.

    Attributes:
        retry_after_seconds: When to try again.
    """

    code = "overloaded"

    def __init__(self, *, reason: str, retry_after_seconds: float) -> None:
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        super().__init__(
            f"the server is full: {visible_line(reason)}",
            hint=f"nothing was done; try again in {retry_after_seconds:g} s",
        )


class QueueTimeoutError(ServiceError, TimeoutError):
    """The request waited in the queue for as long as it may, and was not begun."""

    code = "queue_timeout"

    def __init__(self, *, waited_seconds: float) -> None:
        self.waited_seconds = waited_seconds
        super().__init__(
            f"the request waited {waited_seconds:.1f} s and was not begun",
            hint="nothing was done; allow a longer `queue_timeout_seconds`, or send fewer at once",
        )


class RequestTooLargeError(ServiceError):
    """The request is larger than the server takes."""

    code = "request_too_large"

    def __init__(self, *, what: str, maximum: int) -> None:
        self.what = what
        self.maximum = maximum
        super().__init__(
            f"the {visible_line(what)} is larger than {maximum:,} bytes",
            hint="send less, or let the server's owner allow more",
        )


class IdempotencyConflictError(ServiceError):
    """An idempotency key was used again: for something else, or while the first request is still under way."""

    code = "idempotency_conflict"

    def __init__(self, *, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(
            f"idempotency key {visible_line(key)!r}: {visible_line(reason)}",
            hint="send a new key for a new request",
        )


class HostUnavailableError(ServiceError, ConnectionError):
    """The host that keeps the sandbox cannot be reached, or was lost in the middle of a call."""

    code = "host_unavailable"

    def __init__(self, *, host: str, reason: str, outcome_unknown: bool) -> None:
        self.host = host
        self.reason = reason
        super().__init__(
            f"{visible_line(host)} does not answer: {visible_line(reason)}",
            hint="check that it runs and that its address is right",
            outcome_unknown=outcome_unknown,
        )
