"""What a guest says first in a tunnel, held against what was decided about it.

Runs in the host process, on the engine's loop. In TLS it is the name that the client wants to speak to; where it is
plain HTTP, the request is taken apart by whoever asks here.
"""

from __future__ import annotations

from fumehood.egress.client_hello import MAX_HELLO_BYTES, Hello, HelloError, read_client_hello
from fumehood.egress.names import Target, TargetError, read_host
from fumehood.egress.pipes import Incoming, PipeEndError
from fumehood.egress.policy import Policy, RefusedError

_METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    # HTTP/2 without TLS, which is then refused for what it is.
    b"PRI",
)


async def read_hello(incoming: Incoming) -> Hello:
    """Waits for the first message of a TLS client; it stays in `incoming`, to be passed on.

    Raises:
        HelloError: It is none.
        PipeEndError: The stream ends before.
    """
    while (hello := read_client_hello(incoming.held)) is None:
        if len(incoming.held) > 2 * MAX_HELLO_BYTES:
            raise HelloError("a first message that is too long")

        if not await incoming.more():
            raise PipeEndError

    return hello


def check_hello(hello: Hello, target: Target, policy: Policy) -> tuple[Target, ...]:
    """Holds the name that a TLS client asks for against the target of its tunnel.

    Returns the name, with the tunnel's port, where a tunnel to an address asks for one; it was allowed by itself.

    Raises:
        RefusedError: It is another one, or cannot be known.
    """
    if hello.hides_name and not policy.allows_hidden_names:
        raise RefusedError(f"in the tunnel to {target.authority} TLS hides its name (ECH)")

    if hello.server_name is None:
        if target.address is None:
            raise RefusedError(f"in the tunnel to {target.authority} TLS names nobody (SNI)")

        return ()

    try:
        name, address = read_host(hello.server_name)
    except TargetError as error:
        raise RefusedError(
            f"in the tunnel to {target.authority} TLS names something that is {error}"
        ) from None

    if name == target.host:
        return ()

    if target.address is None or address is not None:
        raise RefusedError(f"in the tunnel to {target.authority} TLS names {name}")

    named = Target(name, target.port)
    policy.admit(named)
    return (named,)


async def looks_like_http(incoming: Incoming) -> bool:
    """Whether a plain request begins here; waits for as many bytes as that takes and leaves them there."""
    while any(method.startswith(incoming.held) for method in _METHODS):
        if not await incoming.more():
            return False

    return incoming.held.startswith(tuple(method + b" " for method in _METHODS))
