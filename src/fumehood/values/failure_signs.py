"""By which names and words an error of code shows that an address was not reached; pure, on both sides of the port.

A class and a message are a guest's text, and many errors have the name of a network's: one counts only where its name
and its message fit together.
"""

from __future__ import annotations

import re

# By their name alone.
_CLIENTS = frozenset(
    (
        "ClientConnectorDNSError",
        "ClientConnectorError",
        "ClientHttpProxyError",
        "ConnectError",
        "ConnectTimeout",
        "MaxRetryError",
        "NameResolutionError",
        "NewConnectionError",
        "ProxyError",
        "gaierror",
    )
)
# Only with words: programs raise these for a file, a lost session or a wrong address too.
_OTHERS = frozenset(
    ("ConnectionError", "OSError", "OperationalError", "SSLError", "TimeoutError", "URLError")
)
_WORDS = (
    "name resolution",
    "Network is unreachable",
    "Name or service not known",
    "No route to host",
    "Tunnel connection failed",
    "Max retries exceeded",
)
# A status is an answer of a server that was reached, except where it has a sentence of the egress proxy.
_STATUSES = frozenset(("HTTPError", "HTTPStatusError"))
_DENIAL = re.compile(
    r"this sandbox has no network|this sandbox's network policy|is denied by the rule|leads to \S{1,60}, which "
)
# A program of the sandbox's own was called: in its network namespace nothing else can refuse. Or a certificate.
_REACHED = re.compile(
    r"Connection refused|Connect call failed|\blocalhost\b|\b127\.\d{1,3}\.\d{1,3}\.\d|::1\b|CERTIFICATE_VERIFY_FAILED"
)
_MAX_CHARS = 4_000
# The last line of a traceback, written in the sandbox. Its path becomes part of a hint: it is short and plain.
_SIMILAR_FILE = re.compile(r"\nDid you mean '(/[\w./-]{1,150})'\?\s*\Z", re.ASCII)


def is_unreached(name: str, value: str) -> bool:
    """Return whether an error seems to be that an address was not reached.

    Args:
        name: The class of the exception.
        value: Its message.
    """
    if name not in _CLIENTS and name not in _OTHERS and name not in _STATUSES:
        return False

    value = value[:_MAX_CHARS]

    if _DENIAL.search(value):
        return True

    if name in _STATUSES or _REACHED.search(value):
        return False

    return name in _CLIENTS or any(word in value for word in _WORDS)


def similar_file(name: str, traceback: str) -> str:
    """Return the path of an existing file whose name is like that of the missing one; empty if none is known.

    Args:
        name: The class of the exception.
        traceback: Its traceback.
    """
    found = _SIMILAR_FILE.search(traceback[-_MAX_CHARS:]) if name == "FileNotFoundError" else None
    return found[1] if found else ""


def without_similar_file(traceback: str) -> str:
    """Return a traceback without the line about a similar file, for a text that has it as a hint."""
    return _SIMILAR_FILE.sub("", traceback)
