"""Checks for packages that the slim installation lacks, and names the extra that installs them."""

from __future__ import annotations

import importlib.util

from fumehood.errors import InvalidArgumentError


def require_extra(extra: str, *modules: str, command: str) -> None:
    """Checks that the packages of an extra are installed, for a command that needs them.

    Raises:
        InvalidArgumentError: A package is missing; the message says what to install.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]

    if missing:
        raise InvalidArgumentError(
            field="command",
            value=command,
            allowed=f"what is not installed: {', '.join(missing)}",
            extra=extra,
            problem=f"`fumehood {command}` needs what is not installed: {', '.join(missing)}",
        )
