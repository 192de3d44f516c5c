"""The set-up of a freshly forked process that becomes a context.

Runs once, in a fork of the zygote, before any user code: descriptors, environment, random state, and hooks for forks by
user code. Afterwards fds 0 to 3 are open and no other descriptor of the zygote.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import sys
from typing import Dict, Mapping, Optional

from fumehood_guest.context.channel import CHANNEL_FD
from fumehood_guest.context.randomness import reseed
from fumehood_guest.shared import fork_hooks

_ABOVE_STANDARD = 10
_MAX_OPEN_FILES = 65_536


def take_descriptors(channel_fd: int, stdout_fd: int, stderr_fd: int) -> socket.socket:
    """Moves the descriptors to their numbers, closes all others, and returns the socket on fd 3."""
    given = (channel_fd, stdout_fd, stderr_fd)
    channel, stdout, stderr = (fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE_STANDARD) for fd in given)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.dup2(channel, CHANNEL_FD, inheritable=False)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(
        CHANNEL_FD + 1, _MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else min(limit, _MAX_OPEN_FILES)
    )
    return socket.socket(fileno=CHANNEL_FD)


def take_environment(envs: Mapping[str, str]) -> None:
    """Sets the environment and reseeds the random generators."""
    for name, value in envs.items():
        # Most of them are in the zygote's environment already.
        if os.environ.get(name) != value:
            os.environ[name] = value

    if "" not in sys.path:
        sys.path.insert(0, "")

    sys.argv = [""]
    fork_hooks.do_all()
    reseed()


class BorrowedEnvironment:
    """Environment variables that are set during one execution and restored after it."""

    def __init__(self, envs: Dict[str, str]) -> None:
        self._envs = envs
        self._before: Dict[str, Optional[str]] = {}

    def take(self) -> None:
        """Sets the variables."""
        if not self._envs:
            return

        self._before = {name: os.environ.get(name) for name in self._envs}
        os.environ.update(self._envs)

    def give_back(self) -> None:
        """Restores the values from before."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
