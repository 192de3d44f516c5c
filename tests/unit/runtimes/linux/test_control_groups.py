"""Removal of control groups: at once, or after their pages were given back where the kernel keeps too many."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fumehood.runtimes.linux import control_groups
from fumehood_jail import cgroups
from fumehood_jail.cgroup_v2 import CgroupDriverV2

_FILE_BYTES = 4 << 20
READ = """
import os, sys
sys.stdin.readline()
fd = os.open(PATH, os.O_RDONLY)
while os.read(fd, 1 << 20): pass
"""


def file_bytes(name: str) -> int:
    """What the driver of this machine says of a group."""
    driver, _ = cgroups.detect()
    assert driver is not None
    return driver.file_bytes(name)


class Counting:
    """A driver that says how many removed groups the kernel keeps."""

    def __init__(self, kept: int) -> None:
        self.kept = kept

    def kept_groups(self) -> int:
        """So many."""
        return self.kept

    def file_bytes(self, name: str) -> int:
        """As many as there are."""
        return file_bytes(name)


@pytest.fixture
def group() -> Any:
    """A control group that has read a file which nobody else has in memory."""
    driver, reasons = cgroups.detect()

    if driver is None:
        pytest.skip(f"needs cgroup v1 or v2, writable: {'; '.join(reasons)}")

    name = cgroups.cgroup_name("fumehoodtest", "removal")
    group = driver.create(name, memory_bytes=64 << 20, processes=9, cpu_cores=1.0)
    yield group
    group.kill()
    assert group.remove()


@pytest.fixture
def with_pages(group: cgroups.Cgroup, tmp_path: Path) -> cgroups.Cgroup:
    """The same, with that file's pages charged to it."""
    path = tmp_path / "file"
    path.write_bytes(bytes(_FILE_BYTES))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    words = [sys.executable, "-I", "-S", "-c", READ.replace("PATH", repr(str(path)))]

    with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as reader:
        group.add(reader.pid)
        reader.communicate("\n")

    if not file_bytes(group.name):
        pytest.skip("needs a file system that drops pages when it is advised to")

    return group


def test_pages_stay_for_others_while_few_groups_are_kept(with_pages: cgroups.Cgroup):
    """The group goes at once; its pages stay in memory for who reads the file next."""
    driver: Any = Counting(control_groups.MOST_KEPT)
    assert control_groups.remove_now(driver, with_pages)


def test_pages_are_given_back_where_many_groups_are_kept(with_pages: cgroups.Cgroup):
    """The group is removed only afterwards, so that the kernel has nothing to keep it for."""
    driver: Any = Counting(control_groups.MOST_KEPT + 1)
    given_back: list[int] = []
    remove = with_pages.remove

    class Spied:
        """The group, as it is when it is removed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(with_pages, name)

        def remove(self) -> bool:
            given_back.append(file_bytes(with_pages.name))
            return remove()

    spied: Any = Spied()
    assert not control_groups.remove_now(driver, spied)
    asyncio.run(control_groups.remove_later(driver, spied))
    # Pages that somebody else has mapped may stay.
    assert given_back[0] < _FILE_BYTES // 2


def test_a_group_without_pages_goes_at_once(group: cgroups.Cgroup):
    """However many the kernel keeps."""
    driver: Any = Counting(10**6)
    assert control_groups.remove_now(driver, group)


def test_the_kernels_own_figures_are_read(tmp_path: Path):
    """Version 2 counts them below the place; version 1 by what is more than is seen."""
    (tmp_path / "cgroup.stat").write_text("nr_descendants 3\nnr_dying_descendants 300\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "memory.stat").write_text("anon 0\nfile 8192\nkernel 100\n")
    driver = CgroupDriverV2(str(tmp_path), frozenset({"memory", "pids"}))
    assert driver.kept_groups() == 300
    assert driver.file_bytes("one") == 8192

    here, _ = cgroups.detect()

    if here is not None:
        assert -10_000 < here.kept_groups() < 10_000
