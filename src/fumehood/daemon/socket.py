"""The daemon's socket: one path, one daemon, and only connections of its own user and root.

The lock beside the socket decides which of several daemons has it; a socket without a locked file was left by a crash,
and is replaced.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood.errors import InvalidArgumentError
from fumehood.server.state_files import locked, own_folder

_ROOT = 0
_BACKLOG = 2048
# struct ucred of unix(7): pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Yields the listening socket, and removes it at the end of the block.

    Raises:
        InvalidArgumentError: Another daemon listens there, or another file is there.
    """
    own_folder("folder of the socket", path.parent)
    taken = InvalidArgumentError(
        field="socket", value=str(path), allowed="one on which no other host listens now; end that one first"
    )

    with locked(path.with_name(f"{path.name}.lock"), taken):
        _remove_stale(path, taken)

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))

            try:
                # The folder is closed to other users, so none could connect in between.
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
                yield listener
            finally:
                path.unlink(missing_ok=True)


def is_trusted(connection: socket.socket) -> bool:
    """Returns whether a connection comes from a process of this user, or of root."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return uid in (os.geteuid(), _ROOT)


def _remove_stale(path: Path, taken: InvalidArgumentError) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return

    if not stat.S_ISSOCK(found.st_mode):
        raise InvalidArgumentError(field="socket", value=str(path), allowed="a path where nothing else is")

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return

    # Not a daemon of ours, which would hold the lock; but it accepts connections.
    raise taken
