"""The server's one secret, from which the secrets of its parts are derived.

It is made at the first start, lies in a file that only its owner can read, and never leaves this process: signatures
stay valid over a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from fumehood.errors import InvalidArgumentError
from fumehood.server.made_once import make_once

_FILE = "secret"
_BYTES = 32


def server_secret(state: Path) -> bytes:
    """Returns the secret of this state folder, made now if there is none.

    Raises:
        InvalidArgumentError: The file can be read by others, or is not whole.
    """
    path = state / _FILE

    make_once(path, secrets.token_bytes(_BYTES))
    return _read(path)


def derive(secret: bytes, purpose: str) -> bytes:
    """Returns the secret for one purpose, which tells nothing about the others."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()


def _read(path: Path) -> bytes:
    secret = path.read_bytes()

    if path.stat().st_mode & 0o077 or len(secret) != _BYTES:
        raise InvalidArgumentError(
            field="secret file",
            value=str(path),
            allowed=f"{_BYTES} bytes that nobody else can read; remove it for a new one",
        )

    return secret
