"""The feed of a sandbox, or of a host: its events, kept for a while for any number of followers.

Followers read one ring buffer at their own pace: a slow follower misses overwritten events and gets a gap event; it
never slows down or ends the source. Followers are woken at most once in 50 ms, and take all events since then: a burst
of events costs them one turn. A feed without followers keeps nothing, and costs a test of one attribute for each event.
It keeps events for a minute after the last follower has left, in case a page is reloaded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import islice

from fumehood.values.charts import JsonValue
from fumehood.values.watching import WatchEvent, WatchEvents

MAX_EVENTS = 1000
MAX_FEED_BYTES = 1 << 20
MAX_OUTPUT_CHARACTERS = 64 * 1024
MAX_GIVEN_BYTES = 128 * 1024
GATHER_SECONDS = 0.05
LINGER_SECONDS = 60.0
_EVENT_BYTES = 200


class _Gathered:
    """Output of one stream that is sent as one event."""

    __slots__ = ("at_seconds", "execution_id", "pieces", "size", "stream")

    def __init__(self, execution_id: str, stream: str, at_seconds: float) -> None:
        self.execution_id = execution_id
        self.stream = stream
        self.at_seconds = at_seconds
        self.pieces: list[str] = []
        self.size = 0


class Feed:
    """Events for followers.

    Attributes:
        is_live: Whether events are kept; callers check it before they make an event.
        seq: The number of the last event.
        followers: The number of followers.
    """

    def __init__(self) -> None:
        self.is_live = False
        # Begins above the numbers of an earlier feed of this name, so that its followers notice that they have missed
        # events.
        self.seq = int(time.time() * 1000)
        self.followers = 0
        self._events: deque[tuple[WatchEvent, int]] = deque()
        self._size_bytes = 0
        self._is_over = False
        # What was given last, from where, and what the last event was.
        self._given: tuple[int, int, WatchEvents] | None = None
        self._news = asyncio.Event()
        # The last event when followers were woken: later ones wait for the end of the moment.
        self._announced = self.seq
        self._gathered: _Gathered | None = None
        # Runs while followers are not woken; what comes meanwhile waits for its end.
        self._gathering: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def put(self, kind: str, fields: Mapping[str, JsonValue], size_bytes: int = 0) -> None:
        """Adds an event, if there are followers; gathered output is added before it."""
        if self.is_live and not self._is_over:
            self.flush()
            self._add(kind, fields, size_bytes)

    def put_output(self, execution_id: str, stream: str, text: str, at_seconds: float) -> None:
        """Adds output of an execution, if there are followers; pieces that follow closely become one event."""
        if not self.is_live or self._is_over:
            return

        held = self._gathered

        if held is None or (held.execution_id, held.stream) != (execution_id, stream):
            self.flush()
            held = self._gathered = _Gathered(execution_id, stream, at_seconds)
            self._gather()

        held.pieces.append(text)
        held.size += len(text)

        if held.size >= MAX_OUTPUT_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Turns the gathered output into an event."""
        held, self._gathered = self._gathered, None

        if held is None:
            return

        text = "".join(held.pieces)

        for start in range(0, len(text), MAX_OUTPUT_CHARACTERS):
            piece = text[start : start + MAX_OUTPUT_CHARACTERS]
            fields: dict[str, JsonValue] = {
                "execution_id": held.execution_id,
                "stream": held.stream,
                "at_seconds": held.at_seconds,
                "text": piece,
            }
            self._add("output", fields, len(piece))

    def close(self, reason: str) -> None:
        """Ends the feed: each follower gets the remaining events, and the reason."""
        if self._is_over:
            return

        self.put("ended", {"reason": reason})
        self._is_over = True
        self._announce()

        if self._lingering is not None:
            self._lingering.cancel()

    async def follow(self, after: int | None = None) -> AsyncGenerator[WatchEvents, None]:
        """Yields the kept events after number `after` (None: none of them), then new ones until the feed ends."""
        self._begin()
        self.followers += 1
        try:
            self._announce()
            position = self.seq if after is None else min(after, self.seq)
            yield WatchEvents([WatchEvent(type="here", seq=self.seq)])

            if after is not None and after > self.seq:
                gap = WatchEvent(type="gap", seq=self.seq, fields={"from": self.seq, "to": self.seq})
                yield WatchEvents([gap])

            while True:
                if position < self._announced:
                    events = self._behind(position)
                    position = events[-1].seq
                    yield events
                elif self._is_over:
                    return
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            self.followers -= 1
            self._linger()

    def _behind(self, position: int) -> WatchEvents:
        """Returns the events after a position, up to a size; followers at the same position get the same object."""
        if self._given is not None and self._given[:2] == (position, self.seq):
            return self._given[2]

        first = self._events[0][0].seq if self._events else self.seq + 1
        events: list[WatchEvent] = []
        size = 0

        if position + 1 < first:
            events.append(
                WatchEvent(type="gap", seq=first - 1, fields={"from": position + 1, "to": first - 1})
            )

        for event, size_bytes in islice(self._events, max(0, position + 1 - first), None):
            events.append(event)
            size += size_bytes

            if size >= MAX_GIVEN_BYTES:
                break

        given = WatchEvents(events)
        self._given = (position, self.seq, given)
        return given

    def _add(self, kind: str, fields: Mapping[str, JsonValue], size_bytes: int) -> None:
        self.seq += 1
        size_bytes += _EVENT_BYTES
        self._events.append((WatchEvent(type=kind, seq=self.seq, fields=fields), size_bytes))
        self._size_bytes += size_bytes

        while len(self._events) > MAX_EVENTS or (self._size_bytes > MAX_FEED_BYTES and len(self._events) > 1):
            self._size_bytes -= self._events.popleft()[1]

        self._gather()

    def _gather(self) -> None:
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._announce)

    def _announce(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

        self.flush()
        self._announced = self.seq
        self._news.set()

    def _begin(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

        if not self.is_live:
            self.is_live = True
            # What happened meanwhile is not known: a follower that asks for it gets a gap.
            self.seq += 1

    def _linger(self) -> None:
        if self.followers == 0 and not self._is_over:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._rest)

    def _rest(self) -> None:
        self._lingering = None
        self.is_live = False
        self.flush()
        self._events.clear()
        self._given = None
        self._size_bytes = 0


class HostFeeds:
    """The feeds about all sandboxes of a host: one for followers of all sandboxes, and one for each owner.

    Each feed has its own numbers, so that an owner cannot count the events of others.
    """

    def __init__(self) -> None:
        self._feeds: dict[str | None, Feed] = {}

    @property
    def are_live(self) -> bool:
        """Whether any of the feeds keeps events."""
        return any(feed.is_live for feed in self._feeds.values())

    async def follow(self, owner: str | None, after: int | None = None) -> AsyncGenerator[WatchEvents, None]:
        """Yields the kept events after number `after`, then new ones: of one owner's sandboxes, or of all for None."""
        self._feeds = {name: feed for name, feed in self._feeds.items() if feed.is_live}

        async with aclosing(self._feeds.setdefault(owner, Feed()).follow(after)) as events:
            async for several in events:
                yield several

    def put(self, kind: str, owner: str, fields: Mapping[str, JsonValue], size_bytes: int = 0) -> None:
        """Adds an event about a sandbox of an owner."""
        for name in (None, owner):
            if (feed := self._feeds.get(name)) is not None:
                feed.put(kind, fields, size_bytes)
