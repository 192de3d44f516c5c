"""`!command` and `%pip`: a shell command as a child that writes straight to fds 1 and 2.

The child is in the context's process group, so that an interrupt reaches both. It has no terminal, and no thread reads
on its behalf: its output streams to the host by itself.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import site
import subprocess
import sys
from typing import Dict, Optional, Set

_SHELL = "/bin/bash"
# Where there is a root filesystem of ours: bash reads it first, and says of commands such as sudo why they fail.
_NO_ROOT = "/etc/fumehood/no_root.bash"
# `!pip install` must mean the pip of this interpreter, whatever PATH says.
_PIP = re.compile(r"^\s*(?:pip3?|python3? -m pip)(?=\s)")
_GRACE_SECONDS = 2.0
# As `fumehood.egress.policy` refuses.
_NO_NETWORK = re.compile("this sandbox has no network.*")


def run_command(command: str) -> int:
    """Runs a command to its end and returns its exit status; a signal's number is negative.

    Raises:
        KeyboardInterrupt: The wait was interrupted; the command has ended.
    """
    command, is_pip = _PIP.subn(f"{shlex.quote(sys.executable)} -m pip", command, count=1)
    shell = _SHELL if os.access(_SHELL, os.X_OK) else "/bin/sh"
    child = subprocess.Popen(  # noqa: S602
        command, shell=True, executable=shell, stdin=subprocess.DEVNULL, env=_environment()
    )
    try:
        status = child.wait()
    except BaseException:
        _end(child)
        raise

    if status != 0 and is_pip and (refusal := no_network()):
        # pip itself only says that it has found no version.
        sys.stderr.write(f"ERROR: {refusal}\n")

    return 128 - status if status > 128 else status


def _environment() -> Optional[Dict[str, str]]:
    if "BASH_ENV" in os.environ or not os.path.exists(_NO_ROOT):
        return None

    # The file unsets it, so that no program sees it.
    return {**os.environ, "BASH_ENV": _NO_ROOT}


def no_network() -> str:
    """Returns the proxy's refusal if the sandbox has no network; otherwise an empty text."""
    # Imported late: few programs install anything.
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    proxy = urlsplit(os.environ.get("HTTPS_PROXY", ""))

    if not proxy.hostname:
        return ""

    connection = HTTPConnection(proxy.hostname, proxy.port, timeout=_GRACE_SECONDS)
    connection.set_tunnel("pypi.org", 443)
    try:
        connection.connect()
    except OSError as error:
        found = _NO_NETWORK.search(str(error))
        return found.group() if found else ""
    finally:
        connection.close()

    return ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Waits briefly for a child that the same interrupt has reached, then kills it."""
    try:
        child.wait(_GRACE_SECONDS)
    except BaseException:
        child.kill()
        child.wait()


class UserSite:
    """Detects when the user's site-packages folder gets its first content, so that new packages can be imported."""

    def __init__(self) -> None:
        self._known: Set[str] = set(sys.path)

    def refresh(self) -> None:
        """Adds the folder to `sys.path` once something is in it.

        An empty one, which each new sandbox has, would cost every context the caches of all imports.
        """
        if not site.ENABLE_USER_SITE and site.ENABLE_USER_SITE is not None:
            return

        folder = site.getusersitepackages()

        if folder in self._known or not _holds_something(folder):
            return

        self._known.add(folder)
        site.addsitedir(folder)
        importlib.invalidate_caches()


def _holds_something(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return False
