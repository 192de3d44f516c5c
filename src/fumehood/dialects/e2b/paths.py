"""Paths and users as E2B's clients write them.

Pure functions. Everything in a sandbox belongs to its one user: `user` and `root` both mean that one, so a caller that
asks for `root` gets no further rights.
"""

from __future__ import annotations

import base64
import binascii

from fumehood.errors import UnauthenticatedError

HOME = "/home/user"
_USERS = ("", "user", "root")


def inside(path: str) -> str:
    """Returns a path with `~` expanded; an empty one is the home directory. Relative ones start there anyway."""
    if path in ("", "~"):
        return HOME

    return f"{HOME}/{path[2:]}" if path.startswith("~/") else path


def check_user(name: str) -> None:
    """Checks that a user is one that E2B's sandboxes have.

    Raises:
        UnauthenticatedError: There is no such user.
    """
    if name not in _USERS:
        raise UnauthenticatedError(reason=f"invalid username {name[:40]!r}: this sandbox has 'user'")


def user_of(authorization: str) -> str:
    """Returns the user that a request names by `Authorization: Basic`, or an empty text."""
    kind, _, value = authorization.partition(" ")

    if kind.lower() != "basic":
        return ""

    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        raise UnauthenticatedError(reason="the Authorization header holds no username") from None
