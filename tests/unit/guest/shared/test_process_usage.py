"""The usage of a sandbox as its init reads it, here of the processes that this one shares its namespace with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fumehood_guest.shared import memory, process_usage
from fumehood_guest.shared.proc_files import read_proc

_AS_INIT = """
import sys
from fumehood_guest.shared import memory, process_usage
process_usage.metrics()
process_usage.applied_restrictions()
print(sorted(name for name in sys.modules if name.startswith("encodings.")))
"""


def test_reading_the_usage_loads_no_codec() -> None:
    """Else each init has a copy of the pages that this writes to."""
    command = [sys.executable, "-S", "-P", "-c", _AS_INIT]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | paths
    ).stdout
    assert "encodings.utf_8" in loaded
    assert "encodings.ascii" not in loaded


def test_memory_is_zero_where_the_host_has_a_cgroup_for_it() -> None:
    with_memory, without = process_usage.metrics(memory.weigh), process_usage.metrics(None)
    assert with_memory.keys() == without.keys()
    assert with_memory["memory_bytes"] > 0 == without["memory_bytes"]


def test_a_file_longer_than_one_piece_is_read_whole() -> None:
    with open("/proc/self/smaps", "rb") as file:
        expected = file.read().count(b"VmFlags")

    assert expected > 100
    assert abs(read_proc("/proc/self/smaps").count(b"VmFlags") - expected) < 10


def test_a_process_that_has_ended_has_no_fields() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    assert process_usage.stat_fields(child.pid)[1] == str(os.getpid())
    child.wait()
    assert process_usage.stat_fields(child.pid) == []

    with pytest.raises(OSError, match=str(child.pid)):
        read_proc(f"/proc/{child.pid}/stat")


def test_a_name_with_a_parenthesis_moves_no_field() -> None:
    rename = "ctypes.CDLL(None).prctl(15, b'a) b (\\xff', 0, 0, 0)"
    code = f"import ctypes, sys; {rename}; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_usage.stat_fields(child.pid)[1] == str(os.getpid())
