"""Events of an execution that wait for a slow reader: bounded, whatever they carry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fumehood.engine import backend
from fumehood.errors import SlowReaderError
from fumehood.values.events import CommEvent, ErrorEvent, Event, InputRequestEvent, ResultEvent
from fumehood.values.execution import Execution, ExecutionError
from fumehood.values.limits import Limits
from fumehood.values.results import Result

_LONG = "x" * 100_000
_ERROR = ExecutionError(kind="exception", name="E", value="", traceback=_LONG)
_EVENTS: dict[str, Event] = {
    "errors": ErrorEvent(error=_ERROR, at_seconds=0),
    "questions": InputRequestEvent(execution_id="e", request_id="r", prompt=_LONG, at_seconds=0),
    "metadata": ResultEvent(result=Result(parts={}, metadata={"a": _LONG}), at_seconds=0),
    "small metadata": ResultEvent(result=Result(parts={}, metadata={"a": [{}] * 1000}), at_seconds=0),
    "comms": CommEvent(kind="comm_msg", comm_id="c", metadata={"a": _LONG}, at_seconds=0),
}


@pytest.mark.parametrize("event", _EVENTS.values(), ids=_EVENTS)
def test_whatever_an_event_carries_is_bounded_while_it_waits(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "SLOW_READER_BYTES", 1_000_000)

    async def flood(emit: Callable[[Event], None]) -> Execution:
        for _ in range(100):
            emit(event)
            await asyncio.sleep(0)

        raise AssertionError("nothing has ended it")

    seen = 0

    async def read() -> None:
        nonlocal seen

        async for _ in backend.followed(Limits(stdout_bytes=1, stderr_bytes=1), flood):
            seen += 1
            await asyncio.sleep(0.1)

    with pytest.raises(SlowReaderError):
        asyncio.run(read())

    assert 0 < seen < 12
