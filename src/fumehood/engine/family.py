"""Families of sandboxes: which sandbox was forked from which, including those that have ended lately.

It keeps one line for each of the sandboxes that ended last.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from fumehood.engine.listing import Listed
from fumehood.values.looking import Family, Relative

_REMEMBERED = 10_000


class Families:
    """Remembers the relatives of sandboxes that have ended, and describes the family of a living one."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Relative] = OrderedDict()
        # The forks among them, by the id of the parent.
        self._ended_forks: defaultdict[str, dict[str, Relative]] = defaultdict(dict)

    def note_end(self, item: Listed, sandbox_id: str, reason: str) -> None:
        """Remembers a sandbox that has ended."""
        self.forget(sandbox_id)
        ended = replace(
            _relative(item), id=sandbox_id, state="ended", ended_at=datetime.now(UTC), reason=reason
        )
        self._ended[sandbox_id] = ended

        if ended.parent_id is not None:
            self._ended_forks[ended.parent_id][sandbox_id] = ended

        if len(self._ended) > _REMEMBERED:
            self.forget(next(iter(self._ended)))

    def forget(self, sandbox_id: str) -> None:
        """Removes an ended sandbox, for example because another one has taken over its id."""
        ended = self._ended.pop(sandbox_id, None)

        if ended is None or ended.parent_id is None:
            return

        forks = self._ended_forks[ended.parent_id]
        forks.pop(sandbox_id, None)

        if not forks:
            del self._ended_forks[ended.parent_id]

    def of(self, item: Listed, living: Mapping[str, Listed]) -> Family:
        """Returns the family of a living sandbox: its ancestors and all their forks."""
        living_forks: defaultdict[str, list[Listed]] = defaultdict(list)

        for one in living.values():
            if one.parent_id is not None:
                living_forks[one.parent_id].append(one)

        found = [self._root(_relative(item), living)]

        for relative in found:
            forks = [_relative(fork) for fork in living_forks.get(relative.id, ())]
            names = {fork.id for fork in forks}
            ended = self._ended_forks.get(relative.id, {})
            forks += [fork for name, fork in ended.items() if name not in names]
            found.extend(sorted(forks, key=lambda fork: (fork.started_at, fork.id)))

        return Family(items=tuple(found))

    def _root(self, relative: Relative, living: Mapping[str, Listed]) -> Relative:
        while relative.parent_id is not None:
            parent = living.get(relative.parent_id)
            above = self._ended.get(relative.parent_id) if parent is None else _relative(parent)

            if above is None:
                break

            relative = above

        return relative


def _relative(item: Listed) -> Relative:
    recorder, sandbox = item.sandbox.recorder, item.sandbox
    return Relative(
        id=item.id,
        owner=item.spec.owner,
        parent_id=item.parent_id,
        state="ending" if not sandbox.alive else "paused" if sandbox.pausing.is_paused else "running",
        started_at=item.started_at,
        last_outcome=recorder.last_outcome,
        cells=recorder.count,
    )
