"""User ids of sandboxes: one for each that lives, and how those of forked ones are mapped.

Runs in the host process, on the engine's loop. Ids are numbers of the base jail; its id plan says what they are on the
host. Within a sandbox, all ids that its forks may get have numbers as well, from `_SPARE_IDS` on, and one stands for
the owner of their namespaces, which is the same in all sandboxes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fumehood.errors import CapacityError
from fumehood_jail.launch import GUEST_UID, MOVER_UID
from fumehood_jail.users import IdPlan

_SPARE_IDS = 100_000

MapLine = tuple[int, int, int]


class GuestIds:
    """Hands out the ids of one base jail.

    Args:
        plan: Which there are.
    """

    def __init__(self, plan: IdPlan) -> None:
        self._first = plan.first_id
        # The last one is that of movers.
        self._last = plan.first_id + plan.count - 1
        self._free = deque(range(self._first, self._last))

    @property
    def are_many(self) -> bool:
        """Whether each sandbox has one of its own."""
        return self._last > self._first

    def take(self) -> int:
        """Returns one that no living sandbox has; they come round again as late as possible.

        Raises:
            CapacityError: All are in use.
        """
        if not self.are_many:
            return self._first

        if not self._free:
            count = self._last - self._first
            raise CapacityError(resource="user ids", used=count, maximum=count)

        return self._free.popleft()

    def give_back(self, id_: int) -> None:
        """Nothing with this id lives any more."""
        if self.are_many:
            self._free.append(id_)

    def within(self, id_: int) -> int:
        """Returns the number that an id has in every sandbox that may be forked to one with it."""
        return _SPARE_IDS + id_ if self.are_many else GUEST_UID

    def spare(self, taken: Sequence[int], *, is_within: bool) -> list[MapLine]:
        """The lines of a sandbox's id map that are for sandboxes forked from it.

        Args:
            taken: The ids of the sandbox, and of all that it was forked from.
            is_within: Whether the map is written within another sandbox, where they have their numbers already.
        """
        if not self.are_many:
            return []

        lines = [(MOVER_UID, MOVER_UID if is_within else self._last, 1)]
        first = self._first

        for end in [*sorted(taken), self._last]:
            if end > first:
                lines.append((_SPARE_IDS + first, _SPARE_IDS + first if is_within else first, end - first))

            first = end + 1

        return lines
