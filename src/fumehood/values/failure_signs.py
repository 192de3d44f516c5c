"""By which names and words an error of code shows that an address was not reached; pure, on both sides of the port."""

from __future__ import annotations

_NAMES = frozenset(
    (
        "ClientConnectorError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "ConnectionRefusedError",
        "HTTPError",
        "MaxRetryError",
        "NameResolutionError",
        "NewConnectionError",
        "ProxyError",
        "SSLError",
        "URLError",
        "gaierror",
    )
)
_WORDS = (
    "name resolution",
    "Network is unreachable",
    "Name or service not known",
    "No route to host",
)


def is_unreached(name: str, value: str) -> bool:
    """Return whether an error seems to be that an address was not reached.

    Args:
        name: The class of the exception.
        value: Its message.
    """
    return name in _NAMES or any(word in value for word in _WORDS)
