"""The environment of programs in a sandbox: E2B's variables, and paths and users in the form of E2B's clients.

Pure functions. Everything in a sandbox belongs to its one user: `user` and `root` both mean that one, so a caller that
asks for `root` gets no further rights.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from fumehood.errors import UnauthenticatedError
from fumehood.values.guest_paths import HOME_PATH

ENVD_PORT = 49983
INTERPRETER_PORT = 49999
_E2B_VARIABLES = frozenset({"E2B_SANDBOX", "E2B_SANDBOX_ID"})


def shown_envs(sandbox_id: str, envs: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with E2B's own variables; the caller's values win."""
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox_id, **envs}


def given_envs(envs: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a command's environment that its caller gave."""
    return {name: value for name, value in envs.items() if name not in _E2B_VARIABLES}


_USERS = ("", "user", "root")


def inside(path: str) -> str:
    """Returns a path with `~` expanded; an empty path is the home directory, where relative paths start anyway."""
    if path in ("", "~"):
        return HOME_PATH

    return f"{HOME_PATH}/{path[2:]}" if path.startswith("~/") else path


def check_user(name: str) -> None:
    """Checks that a user is one that E2B's sandboxes have.

    Raises:
        UnauthenticatedError: The user does not exist.
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
