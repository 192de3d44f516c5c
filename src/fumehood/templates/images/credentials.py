"""Logins of registries, as Docker, Podman and GitLab store them.

Runs in the host process. A login is sent to the registry that it was stored for, and to the place where that registry
sends its clients for tokens; it never enters a message, a log or a jail. Programs that hold logins
(`credHelpers`, `credsStore`) are not started.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.templates.images.reference import DOCKER_HUB

_MOST_BYTES = 1 << 20
_HUB_NAMES = ("https://index.docker.io/v1/", "index.docker.io", DOCKER_HUB)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLogin:
    """The credentials for a registry: a user with a password, or an identity token.

    Attributes:
        user: The user's name; empty with an identity token.
        password: The password or token.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryLogin(user={self.user!r}, password=...)"

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class RegistryLogins:
    """Finds the login of a registry.

    Args:
        environment: The variables that name the files: DOCKER_AUTH_CONFIG holds the content of one, REGISTRY_AUTH_FILE,
            DOCKER_CONFIG and XDG_RUNTIME_DIR lead to files, HOME to those in the usual places.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def find(self, registry: str) -> RegistryLogin | None:
        """Returns the login of a registry, or None; the first file that lists the registry is used."""
        names = (
            _HUB_NAMES
            if registry == DOCKER_HUB
            else (registry, f"https://{registry}", f"https://{registry}/v1/")
        )

        for content in self._contents():
            auths = content.get("auths")

            for name in names:
                login = _login(auths.get(name)) if isinstance(auths, dict) else None

                if login is not None:
                    return login

        return None

    def _contents(self) -> Iterator[dict[str, Any]]:
        given = self._environment.get("DOCKER_AUTH_CONFIG", "")

        if given:
            yield _parsed(given)

        for path in self._paths():
            try:
                with open(path, encoding="utf-8") as file:
                    yield _parsed(file.read(_MOST_BYTES))
            except (OSError, UnicodeDecodeError):
                continue

    def _paths(self) -> Iterator[str]:
        environment = self._environment

        if file := environment.get("REGISTRY_AUTH_FILE"):
            yield file

        if folder := environment.get("DOCKER_CONFIG"):
            yield os.path.join(folder, "config.json")

        if folder := environment.get("XDG_RUNTIME_DIR"):
            yield os.path.join(folder, "containers", "auth.json")

        if home := environment.get("HOME"):
            yield os.path.join(home, ".config", "containers", "auth.json")
            yield os.path.join(home, ".docker", "config.json")


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}

    return content if isinstance(content, dict) else {}


def _login(entry: object) -> RegistryLogin | None:
    if not isinstance(entry, dict):
        return None

    user, password = entry.get("username"), entry.get("password")

    if isinstance(user, str) and isinstance(password, str) and user:
        return RegistryLogin(user=user, password=password)

    try:
        user, colon, password = base64.b64decode(str(entry.get("auth", ""))).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None

    return RegistryLogin(user=user, password=password.rstrip("\0")) if colon else None
