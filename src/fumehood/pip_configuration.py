"""The configuration of this machine's pip, as `pip config list` prints it.

Runs in the host process; runs the pip installed with this process's Python, and does not import it. Values may hold
credentials: they are passed on to installers of this machine, and are never logged or shown.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping

_ASK_SECONDS = 30
# The sections that `pip install` reads, the strongest last.
_SECTIONS = ("global", "install", ":env:")
# uv's variables for the settings of pip, and the separators of their values; pip separates values by spaces.
_UV_ENVS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
_TRUE = ("1", "true", "yes", "on")


def ask_pip() -> str:
    """Returns the output of `pip config list`.

    Raises:
        OSError: pip is not installed.
        subprocess.SubprocessError: pip failed, or took too long.
    """
    return subprocess.run(
        # -P: modules in the working directory are not imported; a sandbox's files may have been brought there.
        [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "config", "list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=_ASK_SECONDS,
        text=True,
    ).stdout


def read_pip_configuration(said: str) -> dict[str, str]:
    """Returns the settings of `pip install`, by name.

    Args:
        said: The output of `pip config list`: lines such as `global.index-url='https://...'`.
    """
    by_section: dict[str, dict[str, str]] = {}

    for line in said.splitlines():
        place, equals, text = line.partition("=")
        section, _, name = place.rpartition(".")

        if equals and section in _SECTIONS:
            by_section.setdefault(section, {})[name] = str(ast.literal_eval(text))

    found: dict[str, str] = {}

    for section in _SECTIONS:
        found.update(by_section.get(section, {}))

    return found


def uv_environ(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with which uv uses the same indexes as pip: this process's, with added variables.

    The indexes are passed in variables, because other users of the machine can read the options of a process.
    """
    return {**as_uv_envs(settings), **os.environ}


def as_uv_envs(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings as the environment variables of uv."""
    envs = {
        variable: separator.join(settings[name].split())
        for name, (variable, separator) in _UV_ENVS.items()
        if settings.get(name)
    }

    if "UV_INDEX" in envs:
        # pip takes the newest release of all its indexes; uv would take the first index that has the package.
        envs["UV_INDEX_STRATEGY"] = "unsafe-best-match"

    return envs


def has_no_index(settings: Mapping[str, str]) -> bool:
    """Returns whether pip installs only from folders and links that it is given."""
    return settings.get("no-index", "").lower() in _TRUE
