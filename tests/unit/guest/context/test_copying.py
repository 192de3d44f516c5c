"""Copies of files for checkpoints, saves and forks: whole on every filesystem, or an error, never zeros in silence."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood_guest.context import open_resources
from fumehood_guest.shared import writable_files

MIB = 1 << 20
Copy = Callable[[int, int], Any]


@pytest.fixture(params=[writable_files.copy_content, open_resources._copy_content], ids=["files", "memory"])
def copy(request: pytest.FixtureRequest) -> Copy:
    """Each of the functions that copy a file's content."""
    chosen: Copy = request.param
    return chosen


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[int, int, bytes]]:
    """A file with data, a hole, data and a hole at its end; an empty one of its size; and what it holds."""
    content = os.urandom(3 * MIB) + bytes(4 * MIB) + os.urandom(MIB + 5) + bytes(2 * MIB)
    source = os.open(tmp_path / "source", os.O_RDWR | os.O_CREAT)
    os.ftruncate(source, len(content))
    os.pwrite(source, content[: 3 * MIB], 0)
    os.pwrite(source, content[7 * MIB : 8 * MIB + 5], 7 * MIB)
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    os.ftruncate(target, len(content))
    yield source, target, content
    os.close(source)
    os.close(target)


def refusing(monkeypatch: pytest.MonkeyPatch, number: int, from_byte: int = 0) -> None:
    """Plays a filesystem that fails to tell where data begins, from some byte on."""
    real = os.lseek

    def lseek(fd: int, position: int, how: int) -> int:
        if how in (os.SEEK_DATA, os.SEEK_HOLE) and position >= from_byte:
            raise OSError(number, os.strerror(number))

        return real(fd, position, how)

    monkeypatch.setattr(os, "lseek", lseek)


def content_of(fd: int) -> bytes:
    return os.pread(fd, 1 << 30, 0)


def test_data_and_holes_are_copied(copy: Copy, pair: tuple[int, int, bytes]) -> None:
    """Control: where the filesystem tells holes, they stay holes."""
    source, target, content = pair
    copy(source, target)
    assert content_of(target) == content
    assert os.fstat(target).st_blocks <= os.fstat(source).st_blocks + 16


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("from_byte", [0, MIB])
def test_where_holes_cannot_be_told_all_is_copied(
    copy: Copy, pair: tuple[int, int, bytes], monkeypatch: pytest.MonkeyPatch, number: int, from_byte: int
) -> None:
    """Only ENXIO is the end of a file."""
    source, target, content = pair
    refusing(monkeypatch, number, from_byte)
    copy(source, target)
    assert content_of(target) == content


def test_a_file_that_cannot_be_read_is_an_error(
    copy: Copy, pair: tuple[int, int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that lacks a part is never taken for a whole one."""
    source, target, _ = pair
    refusing(monkeypatch, errno.EIO, MIB)

    with pytest.raises(OSError, match="Input/output error"):
        copy(source, target)


@pytest.mark.parametrize("answer", [0, errno.ENOSYS, errno.EXDEV])
def test_without_the_kernels_help_all_is_copied(
    pair: tuple[int, int, bytes], monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    """Some filesystems answer `copy_file_range` with 0 or an error in the middle of a file."""
    source, target, content = pair

    def copy_file_range(*_: object) -> int:
        if answer:
            raise OSError(answer, os.strerror(answer))

        return 0

    monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    writable_files.copy_content(source, target)
    assert content_of(target) == content
