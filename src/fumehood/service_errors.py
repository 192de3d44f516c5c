"""What a server refuses, or cannot say, before or instead of asking a sandbox: the second branch of the error tree.

Raised by the server and its host daemon, and raised again, as the same class, by the client that receives it.
All are FumehoodErrors: each writes its own message from typed fields, has a stable `code` and a way out.
"""

from __future__ import annotations

from fumehood.errors import FumehoodError
from fumehood.limits import limit_in_words, plain_number
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
            hint="send `Authorization: Bearer TOKEN`, from Python by `api_key=` or FUMEHOOD_API_KEY; `fumehood serve` "
            "says at its start where to find its token",
        )


class ForbiddenError(ServiceError):
    """The key is known, and may not do this."""

    code = "forbidden"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"this key may not do that: {visible_line(reason)}", hint="use a key with that scope"
        )


class NetworkForbiddenError(ServiceError):
    """The server, or the key, does not allow a sandbox this network.

    Attributes:
        asked: The network that was asked for, or the rule in it.
        allowed: What is allowed.
    """

    code = "network_forbidden"

    def __init__(self, *, asked: str, allowed: str) -> None:
        self.asked = asked
        self.allowed = allowed
        super().__init__(
            f"a sandbox may not be given the network {visible_line(asked)!r} here; allowed: {visible_line(allowed)}",
            hint="the server's owner can allow more: `max_network` and `private_networks` of the server, "
            "`max_network` of the key",
        )


class LimitForbiddenError(ServiceError):
    """The key does not allow a limit as high as was asked for.

    Attributes:
        limit: Which, by its name in `Limits`.
        wanted: What was asked for; None: no bound at all.
        maximum: What is allowed.
    """

    code = "limit_forbidden"

    def __init__(self, *, limit: str, wanted: float | None, maximum: float) -> None:
        self.limit = limit
        self.wanted = wanted
        self.maximum = maximum
        super().__init__(
            f"this key allows at most {limit_in_words(limit, maximum)} of limits.{visible_line(limit)}, "
            f"not {'no bound' if wanted is None else limit_in_words(limit, wanted)}",
            hint=f"ask for at most {plain_number(maximum)}, or leave it out to get what the key allows",
        )


class QuotaError(ServiceError):
    """The key has used up its quota.

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
            f"this key has used {plain_number(used)} of {plain_number(maximum)} {visible_line(quota)}",
            hint="ask the server's owner for more"
            if retry_after_seconds is None
            else "wait, or ask the server's owner for more",
        )


class OverloadedError(ServiceError):
    """More was asked for than can be done or queued; unless the outcome is unknown, nothing was done.

    Attributes:
        retry_after_seconds: When to try again.
    """

    code = "overloaded"

    def __init__(self, *, reason: str, retry_after_seconds: float, outcome_unknown: bool = False) -> None:
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        was_begun = "it may have been begun" if outcome_unknown else "nothing was done"
        super().__init__(
            f"the server is full: {visible_line(reason)}",
            hint=f"{was_begun}; try again in {retry_after_seconds:g} s",
            outcome_unknown=outcome_unknown,
        )


class ServerEndingError(ServiceError, ConnectionError):
    """The server is ending: it begins nothing new, and what took too long is cut off.

    Attributes:
        retry_after_seconds: When to try again, at another server or at the one that comes after it.
    """

    code = "server_ending"

    def __init__(self, *, retry_after_seconds: float, outcome_unknown: bool) -> None:
        self.retry_after_seconds = retry_after_seconds
        was_begun = "it was cut off" if outcome_unknown else "nothing was done"
        super().__init__(
            f"the server is ending: {was_begun}",
            hint=f"try again in {retry_after_seconds:g} s",
            outcome_unknown=outcome_unknown,
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
            hint="send less, or ask the server's owner to allow more",
        )


class SlowReaderError(ServiceError):
    """A stream was ended because its reader did not keep up; what it followed was ended as well."""

    code = "slow_reader"

    def __init__(self, *, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(
            f"more than {maximum:,} bytes waited for the reader of this stream",
            hint="read faster, or have the code show less",
            outcome_unknown=True,
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


class BadGatewayError(ServiceError, ConnectionError):
    """What listens inside the sandbox does not speak the protocol that was asked for."""

    code = "bad_gateway"

    def __init__(self, *, port: int, reason: str) -> None:
        self.port = port
        self.reason = visible_line(reason)
        super().__init__(
            f"what listens on port {port} did not answer as a web server does: {self.reason}",
            hint="check the server inside; what it printed may say why",
        )


class NoHostNameError(ServiceError, LookupError):
    """The server has no domain under which ports have host names."""

    code = "no_host_name"

    def __init__(self, *, port: int) -> None:
        self.port = port
        super().__init__(
            f"port {port} has no host name at this server",
            hint="use `get_url()`, or start the server with `--domain`",
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


class StorageStartError(ServiceError):
    """The database or the blob store could not be opened; for whoever starts the server."""

    code = "storage_start"

    def __init__(self, *, location: str, reason: str, hint: str = "") -> None:
        self.location = location
        self.reason = reason
        super().__init__(
            f"cannot open {visible_line(location)}: {visible_line(reason)}",
            hint=hint or "check its address and its permissions, and that the service behind it runs",
        )


class StorageVersionError(StorageStartError):
    """The database was made by a newer fumehood; it was left as it is.

    Attributes:
        found: The revision that it has.
        known: The newest revision that this version knows.
    """

    code = "storage_version"

    def __init__(self, *, location: str, found: str, known: str) -> None:
        self.found = found
        self.known = known
        super().__init__(
            location=location,
            reason=f"its revision {found!r} is newer than {known!r}, the newest that this version knows",
            hint="start the newer fumehood again, or name another database; this one was left untouched",
        )


class StorageError(ServiceError):
    """The database or the blob store failed in the middle of its work.

    Attributes:
        operation: What was being done.
        reason: What the store said. Not part of the message, which a server shows to its callers: the reason may
            name machines and paths, and belongs in the server's log.
    """

    code = "storage"

    def __init__(self, *, operation: str, reason: str, outcome_unknown: bool = False) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(
            f"the storage failed while {visible_line(operation)}",
            hint="try again; the server's log says why",
            outcome_unknown=outcome_unknown,
        )


class BlobNotFoundError(ServiceError, LookupError):
    """No stored content has this name."""

    code = "blob_not_found"

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"no stored content has the name {visible_line(name)!r}",
            hint="it was removed, or its time ran out; upload it again",
        )


class KeyNotFoundError(ServiceError, LookupError):
    """No key has this id."""

    code = "key_not_found"

    def __init__(self, *, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(
            f"no key has the id {visible_line(key_id)!r}", hint="`GET /v1/keys` lists those that exist"
        )
