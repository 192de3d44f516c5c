"""Names of sandboxes: the host and the run that made one, and a secret part.

Used in the host process and by services that pass requests on to hosts; it only computes. A name is 32 letters and
digits, as host names allow: six of the host, six of its run (the incarnation), twenty at random. A parsed name may be
forged, and proves nothing until a host has found a sandbox under it. The name of a host outlives its process, so that
an id from before a restart is recognized as lost.
"""

from __future__ import annotations

import os
import re
import secrets
import string
from dataclasses import dataclass
from pathlib import Path

from fumehood.errors import InvalidArgumentError

_FILE = "host-id"


def kept_host_id(state: Path) -> str:
    """Returns the name of the host with this state folder; makes one if there is none.

    Raises:
        InvalidArgumentError: The file does not contain a host name.
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
    """Writes the file atomically: a truncated name would be the name of another host."""
    unfinished = path.with_name(f"{path.name}.new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(host_id + "\n")
        file.flush()
        os.fsync(file.fileno())

    os.replace(unfinished, path)


_ALPHABET = string.ascii_lowercase + string.digits
_PART_CHARACTERS = 6
# 36 ** 20 is a little more than 2 ** 103.
_SECRET_CHARACTERS = 20
_PART = re.compile(r"[a-z0-9]{6}")
_NAME = re.compile(r"([a-z0-9]{6})([a-z0-9]{6})([a-z0-9]{20})")


@dataclass(frozen=True, slots=True)
class SandboxName:
    """The parts of a sandbox's name."""

    host_id: str
    incarnation: str
    secret: str


def make_part() -> str:
    """Returns a random name for a host, or for a run of one."""
    return _random(_PART_CHARACTERS)


def make_name(host_id: str, incarnation: str) -> str:
    """Returns a name for a new sandbox."""
    return f"{host_id}{incarnation}{_random(_SECRET_CHARACTERS)}"


def parse_name(sandbox_id: str) -> SandboxName | None:
    """Returns the parts of a name; None for a text that cannot be a sandbox's name."""
    match = _NAME.fullmatch(sandbox_id)
    return None if match is None else SandboxName(*match.groups())


def check_host_id(field: str, value: str) -> None:
    """Raises InvalidArgumentError unless the value is a valid host name."""
    if not _PART.fullmatch(value):
        raise InvalidArgumentError(field=field, value=value, allowed="six lower-case letters and digits")


def _random(count: int) -> str:
    # A single draw, because each asks the kernel.
    number = secrets.randbelow(len(_ALPHABET) ** count)
    characters = []

    for _ in range(count):
        number, place = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[place])

    return "".join(characters)
