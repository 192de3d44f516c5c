"""Many runs in one request: all are answered once, few answers wait, and a lost connection loses none of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from fumehood.errors import (
    BatchLinesLostError,
    BatchNotFoundError,
    BatchTakenOverError,
    InvalidArgumentError,
    QuotaError,
)
from fumehood.server import admission
from fumehood.server import batches as batches_module
from fumehood.server.batches import Batch, Batches
from fumehood.server.drain import Drain
from fumehood.server.principal import Principal
from fumehood.server.queue import FairQueue
from fumehood.server.routes.execute import execute_batch
from fumehood.server.schemas.execute import BatchBody
from fumehood.values.execution import Execution, LogEntry, Logs
from fumehood.values.sandbox import Isolation
from fumehood.values.stateless import StatelessReply, StatelessRequest

_COUNT = 60
_PLACES = 3


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class _Backend:
    """Answers at once and at length; every tenth run is refused."""

    def __init__(self) -> None:
        self.begun = 0

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        self.begun += 1
        await asyncio.sleep(0)

        if request.code.code.endswith("0"):
            raise InvalidArgumentError(field="code", value="x", allowed="y")

        logs = Logs(entries=(LogEntry(stream="stdout", text="x" * 300_000, at_seconds=0.0),))
        execution = Execution(id="e", context_id="c", logs=logs)
        return StatelessReply(execution=execution, isolation=Isolation(level="namespaces"))


class _Batch:
    """A batch whose client reads when it is let."""

    def __init__(self) -> None:
        self.backend = _Backend()
        self.body = b""
        self.ahead: list[int] = []
        self.may_read = asyncio.Event()
        self.gone = asyncio.Event()
        self._services: Any = SimpleNamespace(
            queue=FairQueue(places=_PLACES, capacity=_COUNT),
            backend_for=lambda principal: self.backend,
            settings=SimpleNamespace(queue_seconds=60.0),
            drain=Drain(),
            batches=Batches(),
        )

    async def follow(self) -> None:
        app = SimpleNamespace(state=SimpleNamespace(services=self._services))
        scope = {"type": "http", "headers": [], "app": app}
        body = BatchBody(requests=[{"code": f"run {number}"} for number in range(_COUNT)])
        request = Request(scope, self._receive)
        answer = await execute_batch(body, Principal(key_id="k"), self._services, request)
        await answer(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_read.wait()
        self.body += message.get("body", b"")

        if self.body.endswith(b"\n"):
            self.ahead.append(self.backend.begun - self.body.count(b"\n"))


async def _some_turns() -> None:
    # As many turns of the loop as it takes to see that nothing more comes.
    for _ in range(2000):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _kept_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the rights of the caller, which has no server here: on a busy machine one would be due."""
    monkeypatch.setattr(admission, "CHECK_SECONDS", 3600)


@on_loop
async def test_a_reader_who_stalls_stalls_the_batch() -> None:
    """What waits to be read holds its place, and is let go of when it was read."""
    batch = _Batch()
    following = asyncio.create_task(batch.follow())
    await _some_turns()
    assert 0 < batch.backend.begun <= 2 * _PLACES + 2

    batch.may_read.set()
    await following
    lines = [json.loads(line) for line in batch.body.splitlines()]
    assert sorted(line["index"] for line in lines) == list(range(_COUNT))
    assert {line["index"] for line in lines if "problem" in line} == set(range(0, _COUNT, 10))
    assert max(batch.ahead) <= 2 * _PLACES + 2


@on_loop
async def test_a_client_who_leaves_ends_the_batch() -> None:
    batch = _Batch()
    following = asyncio.create_task(batch.follow())
    await _some_turns()
    batch.gone.set()
    batch.may_read.set()
    await following
    assert batch.backend.begun < _COUNT
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- batches that outlive a connection


def _items(count: int) -> list[tuple[int, StatelessRequest]]:
    # What an item is makes no difference to the batch.
    return [(index, cast("StatelessRequest", None)) for index in range(count)]


class _Runs:
    """Runs items when they are let, and counts how often each was run."""

    def __init__(self, size: int = 10) -> None:
        self.counts: dict[int, int] = {}
        self.may_run = asyncio.Event()
        self.may_run.set()
        self._size = size

    async def __call__(self, index: int, request: StatelessRequest) -> dict[str, Any]:
        self.counts[index] = self.counts.get(index, 0) + 1
        await asyncio.sleep(0)
        await self.may_run.wait()
        return {"index": index, "reply": "x" * self._size}


async def _read(
    batches: Batches, batch: Batch, cursor: int, count: int | None = None
) -> list[dict[str, Any]]:
    """Reads so many lines, or all that are left, and leaves."""
    lines: list[dict[str, Any]] = []

    async with aclosing(batches.read(batch, cursor)) as coming:
        async for line in coming:
            lines.append(json.loads(line.json))  # type: ignore[attr-defined]

            if len(lines) == count:
                break

    return lines


@on_loop
async def test_a_reader_reads_on_where_it_was() -> None:
    """Whatever line the connection breaks off at, each item runs once and each line comes."""
    batches, runs = Batches(), _Runs()
    batch = batches.begin("key", _items(40), runs, places=4, is_resumable=True)
    lines: list[dict[str, Any]] = []

    for count in (1, 7, 3, 15, None):
        found = batches.get("key", batch.id)
        lines += await _read(batches, found, len(lines), count)

    assert [line["cursor"] for line in lines] == list(range(1, 41))
    assert sorted(line["index"] for line in lines) == list(range(40))
    assert set(runs.counts.values()) == {1}
    # What came last may have been lost on its way.
    assert [line["cursor"] for line in await _read(batches, batch, 38)] == [39, 40]
    await batches.close()


@on_loop
async def test_a_batch_goes_on_without_its_reader_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so much unread no further item is begun; as it is read, more are."""
    monkeypatch.setattr(batches_module, "_UNREAD_BYTES", 2000)
    batches, runs = Batches(), _Runs(size=500)
    batch = batches.begin("key", _items(100), runs, places=2, is_resumable=True)
    await _some_turns()
    assert 4 <= len(runs.counts) <= 7
    assert len(await _read(batches, batch, 0)) == 100
    await batches.close()


@on_loop
async def test_a_batch_that_no_reader_comes_back_to_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some minutes its runs end and it is forgotten; a reader who is back in time keeps it."""
    monkeypatch.setattr(batches_module, "_KEPT_SECONDS", 0.0)
    batches, runs = Batches(), _Runs()
    batch = batches.begin("key", _items(10), runs, places=1, is_resumable=True)
    await _read(batches, batch, 0, 1)
    runs.may_run.clear()
    assert len(runs.counts) < 10
    # Read on at once: the time of the first reader's absence counts for nothing.
    reading = asyncio.create_task(_read(batches, batch, 1))
    await _some_turns()
    assert batches.get("key", batch.id) is batch
    reading.cancel()
    await asyncio.wait([reading])
    await _some_turns()

    with pytest.raises(BatchNotFoundError, match="there is no batch"):
        batches.get("key", batch.id)

    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_loop
async def test_only_its_key_reads_a_batch_and_only_one_reader_at_a_time() -> None:
    batches, runs = Batches(), _Runs()
    batch = batches.begin("key", _items(10), runs, places=2, is_resumable=True)

    with pytest.raises(BatchNotFoundError):
        batches.get("other", batch.id)

    with pytest.raises(BatchNotFoundError):
        batches.get("key", "batch_" + "0" * 24)

    runs.may_run.clear()
    first = asyncio.create_task(_read(batches, batch, 0))
    await _some_turns()
    second = asyncio.create_task(_read(batches, batch, 0))
    await _some_turns()
    runs.may_run.set()

    with pytest.raises(BatchTakenOverError):
        await first

    assert len(await second) == 10
    await batches.close()


@on_loop
async def test_lines_that_are_no_longer_kept_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor before what is kept, or behind what has come, is refused and not answered with other lines."""
    monkeypatch.setattr(batches_module, "_SENT_BYTES", 1000)
    batches, runs = Batches(), _Runs(size=500)
    batch = batches.begin("key", _items(10), runs, places=1, is_resumable=True)
    assert len(await _read(batches, batch, 0)) == 10

    for cursor in (0, 11):
        with pytest.raises(BatchLinesLostError, match=f"from cursor {cursor} on: it can from [789] to 10"):
            await _read(batches, batch, cursor)

    await batches.close()


@on_loop
async def test_a_key_has_a_bounded_number_of_batches_and_loses_them_with_its_end() -> None:
    batches, runs = Batches(), _Runs()
    runs.may_run.clear()
    made = [batches.begin("key", _items(3), runs, places=1, is_resumable=True) for _ in range(16)]

    with pytest.raises(QuotaError, match="batches"):
        batches.begin("key", _items(3), runs, places=1, is_resumable=True)

    other = batches.begin("other", _items(3), runs, places=1, is_resumable=True)
    await batches.end_of("key")

    for batch in made:
        with pytest.raises(BatchNotFoundError):
            batches.get("key", batch.id)

    assert batches.get("other", other.id) is other
    await batches.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
