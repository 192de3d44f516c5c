"""The name of a host that outlives its process, so that an id from before a restart is known to be lost.

Used in the processes that keep sandboxes for others: the server and the host daemon. It is made once and kept in the
state folder, which its caller holds for itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from fumehood.errors import InvalidArgumentError
from fumehood.host.names import check_host_id, make_part

_FILE = "host-id"


def kept_host_id(state: Path) -> str:
    """Returns the name of the host of this state folder, made now if there is none.

    Raises:
        InvalidArgumentError: The file holds something else.
    """
    path = state / _FILE

    if not path.exists():
        _write(path, make_part())

    host_id = path.read_text(encoding="ascii", errors="replace").strip()

    try:
        check_host_id("host_id", host_id)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            field="host id file",
            value=str(path),
            allowed="six lower-case letters and digits; remove it for a new name",
        ) from None

    return host_id


def _write(path: Path, host_id: str) -> None:
    """Writes it whole or not at all: a name that is half there would be another host's."""
    unfinished = path.with_name(f"{path.name}.new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(host_id + "\n")
        file.flush()
        os.fsync(file.fileno())

    os.replace(unfinished, path)
