"""Families of sandboxes: which was forked from which, those that have ended lately included.

Runs in the host process, on the engine's loop. Of a sandbox that has ended only a line is kept, and of the latest ones.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from fumehood.engine.listing import Listed
from fumehood.values.looking import Family, Relative

_REMEMBERED = 10_000


class Families:
    """Remembers how sandboxes that have ended were related, for those that ask for the family of one."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Relative] = OrderedDict()

    def note_end(self, item: Listed, sandbox_id: str, reason: str) -> None:
        """Remembers a sandbox that has ended."""
        ended = replace(
            _relative(item), id=sandbox_id, state="ended", ended_at=datetime.now(UTC), reason=reason
        )
        self._ended[sandbox_id] = ended

        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def forget(self, sandbox_id: str) -> None:
        """Forgets the end of a sandbox whose place another one has taken."""
        self._ended.pop(sandbox_id, None)

    def of(self, item: Listed, living: Iterable[Listed]) -> Family:
        """Returns the family of a living sandbox."""
        known = {**self._ended, **{one.id: _relative(one) for one in living}}
        forks: defaultdict[str | None, list[Relative]] = defaultdict(list)

        for relative in known.values():
            forks[relative.parent_id].append(relative)

        root = known[item.id]

        while root.parent_id in known:
            root = known[root.parent_id]

        found = [root]

        for relative in found:
            found.extend(sorted(forks[relative.id], key=lambda fork: (fork.started_at, fork.id)))

        return Family(items=tuple(found))


def _relative(item: Listed) -> Relative:
    recorder, sandbox = item.sandbox.recorder, item.sandbox
    return Relative(
        id=item.id,
        parent_id=item.parent_id,
        state="ending" if not sandbox.alive else "paused" if sandbox.pausing.is_paused else "running",
        started_at=item.started_at,
        last_outcome=recorder.last_outcome,
        cells=recorder.count,
    )
