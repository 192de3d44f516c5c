"""Many runs in one request: all are answered, and no more answers wait than there are places."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from fumehood.errors import InvalidArgumentError
from fumehood.server.drain import Drain
from fumehood.server.principal import Principal
from fumehood.server.queue import FairQueue
from fumehood.server.routes.execute import execute_batch
from fumehood.server.schemas.execute import BatchBody, ExecuteBody
from fumehood.values.execution import Execution, LogEntry, Logs
from fumehood.values.sandbox import Isolation
from fumehood.values.stateless import StatelessReply, StatelessRequest

_COUNT = 60
_PLACES = 3


@pytest.fixture(autouse=True)
def counted_anew() -> Iterator[None]:
    """What there is before the test is not looked at when answers are counted."""
    gc.freeze()
    yield
    gc.unfreeze()


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
        self.held: list[int] = []
        self.may_read = asyncio.Event()
        self.gone = asyncio.Event()
        self._services: Any = SimpleNamespace(
            queue=FairQueue(places=_PLACES, capacity=_COUNT),
            backend_for=lambda principal: self.backend,
            settings=SimpleNamespace(queue_seconds=60.0),
            drain=Drain(),
        )

    async def follow(self) -> None:
        app = SimpleNamespace(state=SimpleNamespace(services=self._services))
        scope = {"type": "http", "headers": [], "app": app}
        body = BatchBody(requests=[ExecuteBody(code=f"run {number}") for number in range(_COUNT)])
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
            found = gc.get_objects()
            self.held.append(sum(type(one) is dict and "index" in one and "reply" in one for one in found))


async def _some_turns() -> None:
    # As many turns of the loop as it takes to see that nothing more comes.
    for _ in range(2000):
        await asyncio.sleep(0)


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
    assert max(batch.held) <= 2 * _PLACES


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
