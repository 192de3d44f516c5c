"""Admission: whether there is room for another sandbox, by the machine's remaining capacity.

A full host refuses at once, instead of starting one more sandbox that slows all others down. The capacity is read at
most ten times a second, and cached in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fumehood.bounds import MIB
from fumehood.errors import CapacityError
from fumehood.runtimes.base import Room, Runtime

_LOOK_SECONDS = 0.1
_LEAST_RESERVE_BYTES = 256 * MIB
_RESERVE_SHARE = 0.03
# On a busy machine tasks may wait for a processor all the time: only a long queue means overload.
_MAX_RUNNABLE_PER_CORE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """When a host is full.

    Attributes:
        max_sandboxes: How many sandboxes may live at once.
        memory_reserve_bytes: How much memory stays free; None: 3 % of all memory, and 256 MiB at least.
        max_cpu_pressure: Share of the time, in percent, in which tasks may wait for a processor (`some avg10`
            of /proc/pressure/cpu) while the queue is long as well; above 100: not checked.
    """

    max_sandboxes: int
    memory_reserve_bytes: int | None = None
    max_cpu_pressure: float = 95.0


class Admission:
    """Checks whether there is room for more sandboxes.

    Args:
        runtime: Reads the machine's capacity.
        rules: When the machine is full.
    """

    def __init__(self, runtime: Runtime, rules: AdmissionRules) -> None:
        self.rules = rules
        self.is_closed = False
        # Whether this host's sandboxes may be restored elsewhere now.
        self.is_cut_off: Callable[[], bool] = lambda: False
        self._runtime = runtime
        self._room: Room | None = None
        self._looked_at = 0.0

    @property
    def room(self) -> Room:
        """The machine's capacity, at most a tenth of a second old."""
        now = time.monotonic()

        if self._room is None or now - self._looked_at >= _LOOK_SECONDS:
            self._room = self._runtime.room()
            self._looked_at = now

        return self._room

    def check_open(self, sandboxes: int) -> None:
        """Checks whether new sandboxes are made here.

        Raises:
            CapacityError: The host is being drained.
        """
        if self.is_closed:
            raise CapacityError(resource="places on a host that is being drained", used=sandboxes, maximum=0)

    def check_restorable(self, sandboxes: int) -> None:
        """Checks whether sandboxes that are restored elsewhere when this host is lost are made here.

        Raises:
            CapacityError: The host may be called lost, as its cluster does not see it.
        """
        if self.is_cut_off():
            place = 'places for on_host_loss="restore" on a host that is cut off from its cluster'
            raise CapacityError(resource=place, used=sandboxes, maximum=0)

    def check(self, sandboxes: int) -> None:
        """Checks whether one more sandbox may be made.

        Raises:
            CapacityError: The maximum number is reached, or the machine is full.
        """
        if sandboxes >= self.rules.max_sandboxes:
            raise CapacityError(resource="sandboxes", used=sandboxes, maximum=self.rules.max_sandboxes)

        self.check_machine()

    def check_machine(self) -> None:
        """Checks whether there is memory and processor time for more work.

        Raises:
            CapacityError: Memory or processor time is short.
        """
        room, rules = self.room, self.rules
        reserve = rules.memory_reserve_bytes

        if reserve is None:
            reserve = max(_LEAST_RESERVE_BYTES, int(room.memory_total_bytes * _RESERVE_SHARE))

        if room.memory_available_bytes < reserve:
            raise CapacityError(
                resource="bytes of memory",
                used=room.memory_total_bytes - room.memory_available_bytes,
                maximum=max(0, room.memory_total_bytes - reserve),
            )

        if (
            room.cpu_pressure is not None
            and room.cpu_pressure > rules.max_cpu_pressure
            and room.runnable > _MAX_RUNNABLE_PER_CORE * room.cpu_cores
        ):
            raise CapacityError(
                resource="runnable tasks, which wait for a processor nearly all the time,",
                used=room.runnable,
                maximum=int(_MAX_RUNNABLE_PER_CORE * room.cpu_cores),
            )
