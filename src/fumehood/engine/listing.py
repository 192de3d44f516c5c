"""The living sandboxes of a host in order: the cost of a page depends on its length, not on their number.

Sandboxes are kept in the order of their start times, all together and for each owner; a new one is nearly always
appended. A sandbox is described only when it is on the page.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Generic, Protocol, TypeVar

from fumehood.engine.sandbox import LiveSandbox
from fumehood.values.looking import (
    ListedSandbox,
    ListSandboxes,
    Place,
    SandboxList,
    SandboxUse,
    cursor_of,
    place_of,
)
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import SandboxInfo, SandboxState


class Listed(Protocol):
    """The attributes of a living sandbox that a list uses."""

    sandbox: LiveSandbox
    spec: SandboxSpec
    started_at: datetime
    parent_id: str | None

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def info(self) -> SandboxInfo:
        """Its description."""

    @property
    def use(self) -> SandboxUse:
        """Its current usage."""

    @property
    def ends_at(self) -> datetime | None:
        """When its lifetime ends."""


_L = TypeVar("_L", bound=Listed)


class _Ordered(Generic[_L]):
    """Sandboxes in the order of their start times."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._items: dict[Place, _L] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, item: _L) -> None:
        insort(self._places, place := _started(item))
        self._items[place] = item

    def remove(self, place: Place) -> None:
        at = bisect_left(self._places, place)

        if at < len(self._places) and self._places[at] == place:
            del self._places[at]
            del self._items[place]

    def after(self, place: Place | None) -> Iterator[_L]:
        """Yields the sandboxes after a position, the oldest first."""
        at = 0 if place is None else bisect_right(self._places, place)
        return (self._items[self._places[index]] for index in range(at, len(self._places)))

    def before(self, place: Place | None) -> Iterator[_L]:
        """Yields the sandboxes before a position, the newest first."""
        at = len(self._places) if place is None else bisect_left(self._places, place)
        return (self._items[self._places[index]] for index in range(at - 1, -1, -1))


class Listing(Generic[_L]):
    """The living sandboxes of a host, for pages of a list."""

    def __init__(self) -> None:
        self._all: _Ordered[_L] = _Ordered()
        self._by_owner: dict[str, _Ordered[_L]] = {}
        self._places: dict[int, Place] = {}

    def add(self, item: _L) -> None:
        """Adds a sandbox that was handed out."""
        self._places[id(item)] = _started(item)
        self._all.add(item)
        self._by_owner.setdefault(item.spec.owner, _Ordered()).add(item)

    def remove(self, item: _L) -> None:
        """Removes a sandbox that has ended; does nothing if it is not listed."""
        place = self._places.pop(id(item), None)
        own = self._by_owner.get(item.spec.owner)

        if place is None or own is None:
            return

        self._all.remove(place)
        own.remove(place)

        if not len(own):
            del self._by_owner[item.spec.owner]

    def page(self, request: ListSandboxes) -> SandboxList:
        """Returns the requested page of the listed sandboxes.

        Raises:
            InvalidArgumentError: The cursor does not come from an earlier page.
        """
        place = None if request.cursor is None else place_of(request.cursor)
        among = self._all if request.owner is None else self._by_owner.get(request.owner, _Ordered())
        fits = _filter(request)
        key: Callable[[_L], Place] = _started

        match request.order:
            case "started":
                candidates = among.after(place)
            case "-started":
                candidates = among.before(place)
            case "ends":
                key = _ending
                living = (
                    item for item in among.after(None) if fits(item) and (place is None or key(item) > place)
                )
                candidates = iter(heapq.nsmallest(request.limit + 1, living, key=key))

        found = list(islice((item for item in candidates if fits(item)), request.limit + 1))
        shown = found[: request.limit]
        return SandboxList(
            items=tuple(
                ListedSandbox(info=item.info, use=item.use if request.with_use else None) for item in shown
            ),
            next_cursor=cursor_of(key(shown[-1])) if len(found) > request.limit else None,
        )


def _started(item: Listed) -> Place:
    return item.started_at.timestamp(), item.id


def _ending(item: Listed) -> Place:
    return (math.inf if item.ends_at is None else item.ends_at.timestamp()), item.id


def _filter(request: ListSandboxes) -> Callable[[Listed], bool]:
    text = request.text.casefold()

    def fits(item: Listed) -> bool:
        spec = item.spec
        return (
            item.sandbox.alive
            and request.template in (None, spec.template_name)
            and request.parent_id in (None, item.parent_id)
            and request.state in (None, _state(item))
            and all(spec.metadata.get(name) == value for name, value in request.labels.items())
            and (not text or any(text in word.casefold() for word in _words(item)))
        )

    return fits


def _state(item: Listed) -> SandboxState:
    return "paused" if item.sandbox.pausing.is_paused else "running"


def _words(item: Listed) -> Iterator[str]:
    spec = item.spec
    yield item.id
    yield spec.template_name
    yield spec.owner

    for name, value in spec.metadata.items():
        yield f"{name}={value}"
