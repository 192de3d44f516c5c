"""Feeds: what followers get, what a slow one misses, and that nothing is kept without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from fumehood.engine import feed as feeds
from fumehood.engine.feed import MAX_EVENTS, MAX_FEED_BYTES, MAX_OUTPUT_CHARACTERS, Feed, HostFeeds
from fumehood.values import watching
from fumehood.values.watching import WatchEvent, WatchEvents

Events = AsyncGenerator[WatchEvents, None]


async def taken(events: Events, count: int) -> list[WatchEvent]:
    found: list[WatchEvent] = []

    async with asyncio.timeout(10):
        while len(found) < count:
            found.extend(await anext(events))

    assert len(found) == count
    return found


async def to_the_end(feed: Feed, events: Events) -> list[WatchEvent]:
    feed.close("killed")
    return [event async for several in events for event in several]


def test_followers_get_each_event_in_order_from_where_they_ask() -> None:
    async def go() -> None:
        feed = Feed()
        first = feed.follow()
        (here,) = await taken(first, 1)

        for number in range(5):
            feed.put("made", {"number": number})

        later = feed.follow(after=here.seq + 3)
        assert [event.type for event in await taken(later, 1)] == ["here"]
        assert [event.type for event in await taken(later, 2)] == ["made", "made"]
        assert feed.followers == 2
        seen = await to_the_end(feed, first)
        assert [event.fields.get("number") for event in seen] == [0, 1, 2, 3, 4, None]
        assert [event.seq for event in seen] == list(range(here.seq + 1, here.seq + 7))
        assert (seen[-1].type, seen[-1].fields) == ("ended", {"reason": "killed"})
        await later.aclose()
        assert feed.followers == 0

    asyncio.run(go())


def test_what_comes_in_a_burst_is_given_at_once_and_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower is woken when the moment is over, not for each event; followers share the JSON of an event."""
    encoded: list[object] = []

    def encode(value: object) -> bytes:
        encoded.append(value)
        return b"{}"

    monkeypatch.setattr(watching, "json_bytes", encode)

    async def go() -> None:
        feed = Feed()
        first, second = feed.follow(), feed.follow()
        await taken(first, 1)
        await taken(second, 1)
        coming = [asyncio.ensure_future(anext(first)), asyncio.ensure_future(anext(second))]

        for number in range(100):
            feed.put("made", {"number": number})
            # Others have their turn meanwhile.
            await asyncio.sleep(0)

        assert not any(one.done() for one in coming)
        ours, theirs = await asyncio.gather(*coming)
        assert len(ours) == len(theirs) == 100
        assert ours.json == theirs.json == b"{}"
        assert len(encoded) == 1
        await first.aclose()
        await second.aclose()

    asyncio.run(go())


def test_without_followers_nothing_is_kept_and_what_was_missed_is_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on for a while when the last has left, and then it rests; a number of before gets a gap."""
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 0.0)

    async def go() -> None:
        feed = Feed()
        feed.put("lost", {})
        feed.put_output("e", "stdout", "lost", 0)
        assert not feed._events

        async with aclosing(feed.follow()) as events:
            (here,) = await taken(events, 1)
            feed.put("seen", {})

        assert feed.is_live
        await asyncio.sleep(0.01)
        assert not feed.is_live
        assert not feed._events

        async with aclosing(feed.follow(after=here.seq + 1)) as events:
            assert [event.type for event in await taken(events, 2)] == ["here", "gap"]

        # Of a feed of before this one, with numbers that this one has not reached.
        async with aclosing(feed.follow(after=here.seq + 10**9)) as events:
            assert [event.type for event in await taken(events, 2)] == ["here", "gap"]

    asyncio.run(go())


def test_a_slow_follower_gets_a_gap_and_the_rest() -> None:
    """By number and by size; what is kept is bounded however much comes."""

    async def go(count: int, size: int) -> None:
        feed = Feed()
        slow = feed.follow()
        (here,) = await taken(slow, 1)

        for number in range(count):
            feed.put("made", {"number": number}, size)

        assert len(feed._events) <= MAX_EVENTS
        assert feed._size_bytes <= MAX_FEED_BYTES + size
        gap, *rest = await to_the_end(feed, slow)
        assert (gap.type, gap.fields["from"]) == ("gap", here.seq + 1)
        assert gap.fields["to"] == gap.seq == rest[0].seq - 1
        assert [event.seq for event in rest] == list(range(gap.seq + 1, feed.seq + 1))

    asyncio.run(go(3 * MAX_EVENTS, 0))
    asyncio.run(go(100, MAX_FEED_BYTES // 10))


def test_output_is_gathered_and_stays_in_its_place() -> None:
    """Short pieces become one event, at the latest before the next event; long ones are cut."""

    async def go() -> None:
        feed = Feed()
        events = feed.follow()
        await taken(events, 1)

        for _ in range(100):
            feed.put_output("e", "stdout", "a", 0.5)

        feed.put_output("e", "stderr", "b", 0.6)
        feed.put("result", {})
        first, second, result = await taken(events, 3)
        assert (first.fields["text"], first.fields["stream"], first.fields["at_seconds"]) == (
            "a" * 100,
            "stdout",
            0.5,
        )
        assert (second.fields["text"], result.type) == ("b", "result")
        feed.put_output("e", "stdout", "c" * (2 * MAX_OUTPUT_CHARACTERS + 1), 1)
        assert [len(str(event.fields["text"])) for event in await taken(events, 3)] == [65536, 65536, 1]
        # By itself, after a moment.
        feed.put_output("e", "stdout", "d", 2)
        assert (await taken(events, 1))[0].fields["text"] == "d"
        await events.aclose()

    asyncio.run(go())


def test_the_feeds_of_a_host_tell_no_owner_of_others() -> None:
    """Not by events, and not by numbers."""

    async def go() -> None:
        host = HostFeeds()
        every, own = host.follow(None), host.follow("ada")
        (_,), (here,) = await taken(every, 1), await taken(own, 1)

        for owner in ("bob", "ada", "bob", "ada"):
            host.put("sandbox_started", owner, {"owner": owner})

        assert [event.fields["owner"] for event in await taken(every, 4)] == ["bob", "ada", "bob", "ada"]
        seen = await taken(own, 2)
        assert [(event.fields["owner"], event.seq) for event in seen] == [
            ("ada", here.seq + 1),
            ("ada", here.seq + 2),
        ]
        assert host.are_live
        await every.aclose()
        await own.aclose()

        # Nothing is described for feeds that rest.
        for feed in host._feeds.values():
            feed._rest()

        assert not host.are_live

    asyncio.run(go())
