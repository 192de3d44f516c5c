"""One TLS context for all HTTP clients of a test process that trust the same authorities.

To read the certificates of all authorities takes 40 ms of a processor, which each of some thousand clients would spend,
most of them to speak plain HTTP with a server of ours. A client whose arguments name certificates still has a context
of its own, and other files in the environment are another context.
"""

from __future__ import annotations

import functools
import os
import ssl
import sys
from collections.abc import Callable
from typing import Any

_CLIENTS = ("httpx2._transports.default", "httpx._transports.default")
_NAMES_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def share() -> None:
    """Let the clients that this process has imported share their context; to do so again changes nothing."""
    for name in _CLIENTS:
        module: Any = sys.modules.get(name)

        if module is not None and not hasattr(module.create_ssl_context, "__wrapped__"):
            module.create_ssl_context = _shared(module.create_ssl_context)


def _shared(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    made: dict[tuple[object, ...], ssl.SSLContext] = {}

    @functools.wraps(make)
    def find(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert:
            return make(verify=verify, cert=cert, trust_env=trust_env)

        key = (trust_env, *map(os.environ.get, _NAMES_CERTIFICATES))

        if key not in made:
            made[key] = make(trust_env=trust_env)

        return made[key]

    return find
