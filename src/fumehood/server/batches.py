"""Batches of stateless runs: many items that run side by side, and the result lines of those that have ended.

Lines are numbered in the order in which the items end; a reader follows them from any number that is still kept. A
resumable batch continues without a reader for some minutes, so that a client whose connection breaks off can continue
reading where it was, and no item runs twice. The size of unread lines is bounded: beyond the bound no further item is
begun. The caller defines what an item does. Batches are not stored in the database, and end with the server.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

from fumehood.bounds import MIB
from fumehood.cancellation import cancel_and_wait, consume_result, keep, when_done
from fumehood.errors import (
    BatchLinesLostError,
    BatchNotFoundError,
    BatchTakenOverError,
    OverloadedError,
    QuotaError,
)
from fumehood.server.responses import Line, WrittenLine
from fumehood.values.json_text import json_bytes
from fumehood.values.stateless import StatelessRequest

# Bounds of a resumable batch: lines that were not sent yet, and sent lines that may have been lost on the way.
_UNREAD_BYTES = 8 * MIB
_SENT_BYTES = 8 * MIB
# The bound of any other batch, whose reader is connected.
_PIECE_BYTES = MIB // 4
# How long a resumable batch waits for its reader to come back: while it runs, and when all of it was sent.
_KEPT_SECONDS = 300.0
_KEPT_AT_END_SECONDS = 60.0
_MAX_BATCHES_OF_KEY = 16
_MAX_BATCHES = 64
_RETRY_SECONDS = 5.0

Numbered = tuple[int, StatelessRequest]
Run = Callable[[int, StatelessRequest], Awaitable[Line]]


class Batch:
    """The items of a batch, and the result lines of those that have ended.

    Args:
        items: The items with their numbers; taken one by one when there is room.
        run: Runs an item and returns its line; an exception ends the whole batch.
        places: How many items run at the same time.
        is_resumable: Whether it continues without a reader.
    """

    def __init__(self, items: Iterable[Numbered], run: Run, *, places: int, is_resumable: bool) -> None:
        self.id = f"batch_{secrets.token_hex(12)}"
        self.is_resumable = is_resumable
        self._max_unread_bytes = _UNREAD_BYTES if is_resumable else _PIECE_BYTES
        self._max_sent_bytes = _SENT_BYTES if is_resumable else 0
        self._run = run
        self._left = iter(items)
        # Lines from `_first` on; those up to `_sent` have been given to a reader.
        self._lines: deque[bytes] = deque()
        self._first = 1
        self._sent = 0
        self._sent_bytes = 0
        self._unread_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._reader = object()
        self._work = asyncio.create_task(self._work_through(places))
        when_done(self._work, self._news.set)
        consume_result(self._work)

    @property
    def last(self) -> int:
        """The number of the newest line; 0 if there is none yet."""
        return self._first + len(self._lines) - 1

    def take(self) -> object:
        """Registers a new reader and returns its mark; the previous reader gets no further line."""
        self._reader = object()
        self._news.set()
        return self._reader

    def is_followed_by(self, reader: object) -> bool:
        """Returns whether this reader is still the current one."""
        return self._reader is reader

    async def follow(self, reader: object, cursor: int) -> AsyncGenerator[Line, None]:
        """Yields the lines after number `cursor`, to the end.

        Args:
            reader: The mark of the reader, from `take`.
            cursor: The number of the last line that the reader has; lines up to it are dropped.

        Raises:
            BatchLinesLostError: Lines after `cursor` were dropped, or `cursor` is the number of a line that does not
                exist yet.
            BatchTakenOverError: Another reader has taken over.
        """
        if not self._first - 1 <= cursor <= self.last:
            raise BatchLinesLostError(batch_id=self.id, cursor=cursor, first=self._first - 1, last=self.last)

        self._drop(until=cursor)

        while self.is_followed_by(reader):
            if cursor < self.last:
                cursor += 1
                line = self._lines[cursor - self._first]
                self._note_sent(cursor)
                yield WrittenLine("", line)
            elif self._work.done():
                # Raises the error that has ended the batch early, if one has.
                self._work.result()
                return
            else:
                self._news.clear()
                await self._news.wait()

        raise BatchTakenOverError(batch_id=self.id)

    async def end(self) -> None:
        """Ends the batch: running items are cancelled, and no further item is begun."""
        await cancel_and_wait(self._work)

    @property
    def is_over(self) -> bool:
        """True when all items have ended and a reader has received all lines."""
        return self._work.done() and self._sent == self.last

    async def _work_through(self, places: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(places):
                group.create_task(self._work_in_place())

    async def _work_in_place(self) -> None:
        while True:
            await self._room.wait()
            numbered = next(self._left, None)

            if numbered is None:
                return

            self._add(await self._run(*numbered))

    def _add(self, line: Line) -> None:
        written: bytes = line.json if isinstance(line, WrittenLine) else json_bytes(line)
        # Its number is known only now: those that are written in a thread overtake one another.
        self._lines.append(b'{"cursor":%d,' % (self.last + 1) + written[1:])
        self._unread_bytes += len(self._lines[-1])
        self._news.set()

        if self._unread_bytes > self._max_unread_bytes:
            self._room.clear()

    def _note_sent(self, cursor: int) -> None:
        if cursor <= self._sent:
            return

        self._sent = cursor
        size = len(self._lines[cursor - self._first])
        self._unread_bytes -= size
        self._sent_bytes += size

        if self._unread_bytes <= self._max_unread_bytes:
            self._room.set()

        # The newest stays, whatever its size: it is the one that is most likely to be lost on its way.
        while self._first < cursor and self._sent_bytes > self._max_sent_bytes:
            self._drop(until=self._first)

    def _drop(self, until: int) -> None:
        while self._lines and self._first <= until:
            size = len(self._lines.popleft())

            if self._first <= self._sent:
                self._sent_bytes -= size
            else:
                self._unread_bytes -= size

            self._first += 1

        self._sent = max(self._sent, until)

        if self._unread_bytes <= self._max_unread_bytes:
            self._room.set()


class Batches:
    """The resumable batches of all keys, by id."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Batch]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def begin(
        self, key_id: str, items: Iterable[Numbered], run: Run, *, places: int, is_resumable: bool
    ) -> Batch:
        """Begins a batch of a key.

        Raises:
            QuotaError: The batch is resumable, and the key has the largest number of these already.
            OverloadedError: The server has the largest number of resumable batches already.
        """
        if is_resumable:
            self._check_room(key_id)

        batch = Batch(items, run, places=places, is_resumable=is_resumable)

        if is_resumable:
            self._kept[batch.id] = (key_id, batch)

        return batch

    def get(self, key_id: str, batch_id: str) -> Batch:
        """Returns a resumable batch of a key; raises BatchNotFoundError if the key has no batch with this id."""
        owner, batch = self._kept.get(batch_id, ("", None))

        if batch is None or owner != key_id:
            raise BatchNotFoundError(batch_id=batch_id)

        return batch

    async def read(self, batch: Batch, cursor: int, *, is_new: bool = False) -> AsyncGenerator[Line, None]:
        """Yields the lines of `Batch.follow`.

        A batch that loses its reader ends at once or, if resumable, after some minutes.

        Args:
            batch: The batch.
            cursor: The number of the last line that the reader has.
            is_new: Whether the reader has begun the batch; the first line of a resumable one is then its id.
        """
        self._stop_timer(batch.id)
        reader = batch.take()

        try:
            if is_new and batch.is_resumable:
                yield {"batch_id": batch.id, "cursor": 0}

            async with aclosing(batch.follow(reader, cursor)) as lines:
                async for line in lines:
                    yield line
        finally:
            if batch.is_followed_by(reader):
                await self._leave(batch)

    async def end(self, batch_id: str) -> None:
        """Ends a batch, and removes it."""
        self._stop_timer(batch_id)
        _, batch = self._kept.pop(batch_id, ("", None))

        if batch is not None:
            await batch.end()

    async def end_of(self, key_id: str) -> None:
        """Ends all batches of a key."""
        for batch_id in [name for name, (owner, _) in self._kept.items() if owner == key_id]:
            await self.end(batch_id)

    async def close(self) -> None:
        """Ends all batches."""
        for batch_id in [*self._kept]:
            await self.end(batch_id)

    def _check_room(self, key_id: str) -> None:
        of_key = sum(owner == key_id for owner, _ in self._kept.values())

        if of_key >= _MAX_BATCHES_OF_KEY:
            raise QuotaError(
                quota="resumable batches at once",
                used=of_key,
                maximum=_MAX_BATCHES_OF_KEY,
                retry_after_seconds=_RETRY_SECONDS,
            )

        if len(self._kept) >= _MAX_BATCHES:
            raise OverloadedError(
                reason=f"{len(self._kept)} resumable batches run", retry_after_seconds=_RETRY_SECONDS
            )

    async def _leave(self, batch: Batch) -> None:
        if not batch.is_resumable:
            await batch.end()
        elif batch.id in self._kept:
            seconds = _KEPT_AT_END_SECONDS if batch.is_over else _KEPT_SECONDS
            loop = asyncio.get_running_loop()
            self._timers[batch.id] = loop.call_later(seconds, lambda: keep(self.end(batch.id)))

    def _stop_timer(self, batch_id: str) -> None:
        if (timer := self._timers.pop(batch_id, None)) is not None:
            timer.cancel()
