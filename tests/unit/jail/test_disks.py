"""Bounds of what sandboxes read from disks: which disks there are, and what is written in both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fumehood_jail import cgroup_v1, cgroup_v2, disks
from fumehood_jail.cgroup_v1 import CgroupDriverV1
from fumehood_jail.cgroup_v2 import CgroupDriverV2

DISKS = ("8:0", "259:3")


@pytest.fixture
def written(monkeypatch) -> list[tuple[str, str]]:
    """What is written to files of control groups; the second disk is one that the kernel cannot bound."""
    found: list[tuple[str, str]] = []

    def write(path: str, text: str) -> None:
        if text.startswith(DISKS[1]):
            raise OSError(19, "No such device", path)

        found.append((os.path.basename(path), text))

    monkeypatch.setattr(cgroup_v1, "write_file", write)
    monkeypatch.setattr(cgroup_v2, "write_file", write)
    return found


def test_version_2_bounds_reads_by_io_max(tmp_path: Path, written):
    """One line for each disk that the kernel can bound, in the folder of each cgroup; the trial's folder goes."""
    driver = CgroupDriverV2(str(tmp_path), frozenset({"memory", "pids", "io"}))
    driver.bound_disks(DISKS, "trial")
    assert driver.disks == ("8:0",)
    driver.create("one", memory_bytes=1 << 26, processes=9, cpu_cores=1.0)
    assert written.count(("io.max", "8:0 rbps=209715200 riops=4000")) == 2
    assert os.listdir(tmp_path) == ["one"]


def test_version_1_bounds_reads_in_the_hierarchy_of_blkio(tmp_path: Path, written):
    """By two files; the controller is called as in version 2."""
    parents = {name: str(tmp_path / name) for name in ("memory", "pids", "cpuacct", "blkio")}
    for parent in parents.values():
        os.mkdir(parent)

    driver = CgroupDriverV1(parents)
    assert "io" in driver.controllers
    driver.bound_disks(DISKS, "trial")
    made = driver.create("one", memory_bytes=1 << 26, processes=9, cpu_cores=1.0)
    assert driver.disks == ("8:0",)
    assert written.count(("blkio.throttle.read_bps_device", "8:0 209715200")) == 2
    assert written.count(("blkio.throttle.read_iops_device", "8:0 4000")) == 2
    assert f"{tmp_path}/blkio/one" in made.folders
    assert os.listdir(tmp_path / "blkio") == ["one"]


def test_without_the_controller_nothing_is_tried(tmp_path: Path, written):
    """And no disk counts as bounded."""
    driver = CgroupDriverV2(str(tmp_path), frozenset({"memory", "pids"}))
    driver.bound_disks(DISKS, "trial")
    assert (driver.disks, written, os.listdir(tmp_path)) == ((), [], [])


def test_a_part_of_a_disk_stands_for_the_whole(tmp_path: Path, monkeypatch):
    """The kernel takes whole disks only; a file system that is on no disk stands for all of them."""
    block = tmp_path / "devices" / "sda"
    (block / "sda1").mkdir(parents=True)
    (block / "dev").write_text("8:0\n")
    (block / "sda1" / "partition").write_text("1\n")
    (block / "sda1" / "dev").write_text("8:1\n")
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / "8:1").symlink_to(block / "sda1")
    (tmp_path / "block" / "sdb" / "device").mkdir(parents=True)
    (tmp_path / "block" / "sdb" / "dev").write_text("8:16\n")
    (tmp_path / "block" / "loop0").mkdir()
    (tmp_path / "block" / "loop0" / "dev").write_text("7:0\n")
    numbers = {"/on-a-partition": os.makedev(8, 1), "/on-none": os.makedev(0, 4000)}
    monkeypatch.setattr(disks, "_FOLDERS", tuple(numbers))
    monkeypatch.setattr(disks, "_device_of", numbers.__getitem__)
    assert disks.below_the_system(str(tmp_path)) == ("8:0", "8:16")
