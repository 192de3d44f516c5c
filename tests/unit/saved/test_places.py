"""Where saved states lie: a file is whole or not there, and what went wrong is told as what it is."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from fumehood import HostUnavailableError, InvalidArgumentError, SaveError
from fumehood.saved.places import local_path, store


async def failing(error):
    yield b"a piece"
    raise error


def test_errors_of_where_the_state_comes_from_stay_what_they_are(tmp_path):
    """A server that is gone, a program that is interrupted; and a disk that is full is an error of saving."""
    path = tmp_path / "state"
    path.write_bytes(b"old")

    for error in (HostUnavailableError(host="h", reason="gone", outcome_unknown=True), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            asyncio.run(store(failing(error), str(path)))

    with pytest.raises(SaveError, match="No space left"):
        asyncio.run(store(failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), str(path)))

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("place", [None, 4, b"path", "", "a\0b", "http://somewhere/state", ["state"]])
def test_what_names_no_place_is_refused(place):
    """By its value, with what would be one."""
    with pytest.raises(InvalidArgumentError, match="a path, or s3://"):
        local_path(place)
