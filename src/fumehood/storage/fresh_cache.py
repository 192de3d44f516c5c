"""A cache of answers of the database that are true for a few seconds: of keys, logins and shares.

Runs in the process of the server, on its loop. It bounds how often the database is asked about one credential, and how
long an end that another process made stays unnoticed. It must never keep an answer that a change of this process has
made untrue: one that was asked before a change is returned to its caller and not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class FreshCache(Generic[_Key, _Value]):
    """Answers by key, each for a bounded time; the least recently asked go first when there are too many.

    Args:
        ask: Asks the database; None: there is no such entry, which is not kept.
        remember_seconds: How long an answer is kept.
        clock: Returns the time.
        max_entries: How many answers are kept.
    """

    def __init__(
        self,
        ask: Callable[[_Key], Awaitable[_Value | None]],
        *,
        remember_seconds: float,
        clock: Callable[[], float],
        max_entries: int,
    ) -> None:
        self._ask = ask
        self._remember_seconds = remember_seconds
        self._clock = clock
        self._max_entries = max_entries
        self._kept: OrderedDict[_Key, tuple[_Value, float]] = OrderedDict()
        # Incremented with each change, so that an answer requested before one is not kept.
        self._changes = 0

    async def find(self, key: _Key) -> _Value | None:
        """Returns the answer for a key, from the database unless a fresh one is kept."""
        value, fresh_until = self._kept.get(key, (None, 0.0))

        # A clock that was set back does not extend the time of an answer.
        if value is not None and 0 <= fresh_until - self._clock() <= self._remember_seconds:
            return value

        return await self._find_anew(key)

    def forget(self, key: _Key) -> None:
        """Drops the answer for a key that was changed, and all answers that are being asked for."""
        self._changes += 1
        self._kept.pop(key, None)

    def forget_if(self, is_changed: Callable[[_Value], bool]) -> None:
        """Does what `forget` does, for each answer of which the function returns True."""
        self._changes += 1

        for key in [key for key, (value, _) in self._kept.items() if is_changed(value)]:
            del self._kept[key]

    async def _find_anew(self, key: _Key) -> _Value | None:
        changes, asked_at = self._changes, self._clock()
        value = await self._ask(key)

        if value is None:
            self._kept.pop(key, None)
            return None

        if changes == self._changes:
            self._kept[key] = value, asked_at + self._remember_seconds
            self._kept.move_to_end(key)

            if len(self._kept) > self._max_entries:
                self._kept.popitem(last=False)

        return value
