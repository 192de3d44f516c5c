"""Placement: which machine of a cluster makes the next sandbox, by figures that the machines report.

It only computes: no clock, no network, no table of sandboxes. The rule is the power of two choices: of two machines
drawn at random, the one with the lower cost is taken. Several servers with the same, slightly old figures therefore do
not all choose the same machine, as they would if each took the best one. Placements since the last report are added to
the figures of their machine, so that one server does not send a burst to one machine either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from fumehood.errors import CapacityError
from fumehood.values.sandbox import Capacity

# Draws of a machine without room, until all machines with room are looked up instead.
_DRAWS = 8
# Costs are shares of a machine: at 1.0 it is full. A sandbox that is not ready takes milliseconds of CPU time to make,
# a template that is not there a transfer and a start.
_COLD_COST = 0.05
_MISSING_TEMPLATE_COST = 0.5
# What a machine that has all sandboxes of the key costs more than one that has none of them.
_SPREAD_COST = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one machine at one moment.

    Attributes:
        capacity: The capacity that its host reported.
        labels: The labels that the operator gave it, such as `zone`.
        templates: The names of the templates it has.
        built_at: The build times, in seconds since 1970, of the templates that can be carried to other machines.
        key_sandboxes: How many living sandboxes each key has there.
        is_draining: Whether it takes no new sandbox.
        abilities: What its host daemon can do beyond the first version of its routes.
    """

    capacity: Capacity
    labels: Mapping[str, str] = field(default_factory=dict)
    templates: frozenset[str] = frozenset()
    built_at: Mapping[str, float] = field(default_factory=dict)
    key_sandboxes: Mapping[str, int] = field(default_factory=dict)
    is_draining: bool = False
    abilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The requirements of a sandbox to place.

    Attributes:
        memory_bytes: The memory that it needs at once.
        owner: The key that it belongs to; the sandboxes of one key are spread.
        template: The name of its template.
        labels: The labels that its machine must have, each with this value.
    """

    memory_bytes: int = 0
    owner: str = ""
    template: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class _Machine:
    """A machine as this server sees it: its last report, and the placements since."""

    __slots__ = ("placed", "placed_bytes", "placed_of_key", "report")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.placed = 0
        self.placed_bytes = 0
        self.placed_of_key: Counter[str] = Counter()

    def has_room(self, wish: Wish) -> bool:
        """Returns whether a sandbox may be placed here."""
        report, capacity = self.report, self.report.capacity
        return (
            not report.is_draining
            and capacity.sandboxes + self.placed < capacity.max_sandboxes
            and self.placed_bytes + wish.memory_bytes <= capacity.memory_available_bytes
            and self.has_labels(wish)
        )

    def has_labels(self, wish: Wish) -> bool:
        """Returns whether the machine has all requested labels."""
        return all(self.report.labels.get(name) == value for name, value in wish.labels.items())

    def cost(self, wish: Wish) -> float:
        """Returns the cost of placing a sandbox here; 0.0 for an idle machine that has all it needs."""
        report, capacity = self.report, self.report.capacity
        sandboxes = capacity.sandboxes + self.placed
        free = capacity.memory_available_bytes - self.placed_bytes - wish.memory_bytes
        cost = max(
            sandboxes / max(1, capacity.max_sandboxes),
            1.0 - free / max(1, capacity.memory_total_bytes),
            # A placement is a task that will run, until the next report counts it.
            (capacity.load + self.placed) / max(0.1, capacity.cpu_cores),
        )

        if self.placed >= capacity.pool_ready:
            cost += _COLD_COST

        if wish.template and wish.template not in report.templates:
            cost += _MISSING_TEMPLATE_COST

        if wish.owner:
            of_key = report.key_sandboxes.get(wish.owner, 0) + self.placed_of_key[wish.owner]
            cost += _SPREAD_COST * of_key / max(1, sandboxes)

        return cost

    def add(self, wish: Wish) -> None:
        """Counts a placement here until the next report."""
        self.placed += 1
        self.placed_bytes += wish.memory_bytes
        self.placed_of_key[wish.owner] += 1


class Placement:
    """Chooses machines for one server.

    Args:
        random: Draws the machines; a seeded one gives the same choices again.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._machines: dict[str, _Machine] = {}
        self._names: list[str] = []

    @property
    def machines(self) -> Mapping[str, Report]:
        """The last report of each machine, by the id of its host."""
        return {name: machine.report for name, machine in self._machines.items()}

    def note(self, report: Report) -> None:
        """Takes new figures of a machine, which replace the old ones; a machine that is new is added."""
        name = report.capacity.host_id

        if name not in self._machines:
            self._names.append(name)

        self._machines[name] = _Machine(report)

    def forget(self, host_id: str) -> None:
        """Removes a machine that is gone; does nothing if it is not known."""
        if self._machines.pop(host_id, None) is not None:
            self._names.remove(host_id)

    def choose(self, wish: Wish, *, but: Iterable[str] = ()) -> str:
        """Returns the id of the host that is to make a sandbox, and counts the sandbox there until its next report.

        Args:
            wish: The requirements of a sandbox to place.
            but: Hosts to leave out, because they have just refused the sandbox.

        Raises:
            CapacityError: No machine has room for it; the server answers 503 with Retry-After.
        """
        refused = frozenset(but)
        chosen = min(
            self._drawn(wish, refused), key=lambda name: self._machines[name].cost(wish), default=None
        )

        if chosen is None:
            raise self._full(wish)

        self._machines[chosen].add(wish)
        return chosen

    def _drawn(self, wish: Wish, refused: frozenset[str]) -> list[str]:
        """Returns two random machines with room, or the only one, or none."""
        drawn: list[str] = []

        for _ in range(min(_DRAWS, 4 * len(self._names))):
            name = self._names[int(self._random.random() * len(self._names))]

            if name not in drawn and name not in refused and self._machines[name].has_room(wish):
                drawn.append(name)

                if len(drawn) == 2:
                    return drawn

        # Nearly all machines are full, or few have the labels: chance would miss the few that have room.
        fit = [name for name in self._names if name not in refused and self._machines[name].has_room(wish)]
        return self._random.sample(fit, min(2, len(fit)))

    def _full(self, wish: Wish) -> CapacityError:
        machines = [machine for machine in self._machines.values() if machine.has_labels(wish)]
        of_labels = ", ".join(f"{name}={value}" for name, value in sorted(wish.labels.items()))
        return CapacityError(
            resource=f"places on the cluster's machines{f' with {of_labels}' if of_labels else ''}",
            used=sum(machine.report.capacity.sandboxes + machine.placed for machine in machines),
            maximum=sum(machine.report.capacity.max_sandboxes for machine in machines),
        )
