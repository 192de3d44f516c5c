"""Admission: a host that is full says so at once, and of what it has too little."""

from __future__ import annotations

import pytest

from fumehood import CapacityError
from fumehood.bounds import GIB, MIB
from fumehood.engine.admission import Admission, AdmissionRules
from fumehood.runtimes.base import Room
from fumehood.runtimes.linux.machine import LinuxRoom, _Bound


class Machine:
    """A machine that a test fills."""

    def __init__(self, **room):
        self.looks = 0
        self.now = Room(
            **{
                "memory_available_bytes": 8 * GIB,
                "memory_total_bytes": 16 * GIB,
                "cpu_cores": 2,
                "load": 1.0,
                "runnable": 2,
                "cpu_pressure": 5.0,
                **room,
            }
        )

    def room(self):
        self.looks += 1
        return self.now


def admission(machine, **rules):
    return Admission(machine, AdmissionRules(**{"max_sandboxes": 3, **rules}))


def test_a_machine_with_room_admits():
    """Up to the number that may live at once; and it is not looked at for each of them."""
    machine = Machine()
    gate = admission(machine)

    for count in range(3):
        gate.check(count)

    assert machine.looks == 1

    with pytest.raises(CapacityError, match="3 of 3 sandboxes are in use"):
        gate.check(3)


@pytest.mark.parametrize(
    ("available", "reserve", "is_full"),
    [
        (491 * MIB, None, True),  # 3 % of 16 GiB are a little more
        (492 * MIB, None, False),
        (99, 100, True),
        (100, 100, False),
        (0, 0, False),
    ],
)
def test_memory_is_held_in_reserve(available, reserve, is_full):
    """Below the reserve nobody is admitted."""
    gate = admission(Machine(memory_available_bytes=available), memory_reserve_bytes=reserve)

    if not is_full:
        gate.check(0)
        return

    with pytest.raises(CapacityError, match="bytes of memory") as caught:
        gate.check(0)

    assert caught.value.used == 16 * GIB - available


def test_small_machines_keep_a_quarter_of_a_gibibyte():
    """A percentage of little is too little."""
    gate = admission(Machine(memory_total_bytes=GIB, memory_available_bytes=255 * MIB))

    with pytest.raises(CapacityError):
        gate.check(0)


@pytest.mark.parametrize(
    ("pressure", "runnable", "is_full"),
    [(99.0, 129, True), (99.0, 128, False), (95.0, 500, False), (None, 500, False)],
)
def test_a_machine_that_drowns_admits_nobody(pressure, runnable, is_full):
    """Busy is not full: tasks must wait all the time, and many of them."""
    gate = admission(Machine(cpu_pressure=pressure, runnable=runnable))

    if not is_full:
        gate.check(0)
        return

    with pytest.raises(CapacityError, match="wait for a processor"):
        gate.check(0)


def test_this_machine_tells_what_it_has():
    """The figures of the machine that runs the tests make sense."""
    room = LinuxRoom().read()

    assert 0 < room.memory_available_bytes <= room.memory_total_bytes
    assert room.cpu_cores >= 1
    assert room.load >= 0
    assert room.runnable >= 1
    assert room.cpu_pressure is None or 0 <= room.cpu_pressure <= 100


@pytest.mark.parametrize("droppable", [b"inactive_file", b"total_inactive_file"])
def test_a_control_group_bounds_the_host(tmp_path, droppable):
    """Its limit counts where it is less than the machine, and what it could drop counts as free."""
    (tmp_path / "limit").write_text(f"{512 * MIB}\n")
    (tmp_path / "used").write_text(f"{400 * MIB}\n")
    (tmp_path / "stat").write_text(f"anon 1\n{droppable.decode()} {100 * MIB}\n")
    reader = LinuxRoom()
    reader._bounds = [
        _Bound(str(tmp_path / "limit"), str(tmp_path / "used"), str(tmp_path / "stat"), droppable)
    ]
    room = reader.read()

    assert (room.memory_total_bytes, room.memory_available_bytes) == (512 * MIB, 212 * MIB)

    for none in ("max\n", "9223372036854771712\n"):
        (tmp_path / "limit").write_text(none)
        assert reader.read().memory_total_bytes == LinuxRoom().read().memory_total_bytes
