"""Large answers leave the loop: others are served while they are written, and what is written is the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from fumehood.client.connection import ServerAddress
from fumehood.off_loop import json_in_pieces
from fumehood.server import responses
from fumehood.server.responses import event_data, json_bytes
from fumehood.values.codec import read_value
from fumehood.values.events import Event, ExecutionFinished, ResultEvent
from fumehood.values.execution import Execution, Logs
from fumehood.values.limits import Usage
from fumehood.values.plain_data import as_data
from fumehood.values.results import Result, read_json
from fumehood.values.sandbox import Isolation
from fumehood.values.stateless import StatelessReply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)
ORDINARY = Request({"type": "http", "headers": []})
OF_A_SERVER = Request(
    {
        "type": "http",
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in ServerAddress(url="http://host", is_host=True).headers.items()
        ],
    }
)
LARGE = b"[" + b"1," * 400_000 + b"1]"


def execution(*parts: bytes) -> Execution:
    results = tuple(Result(parts={"application/json": part, "text/plain": b"x"}) for part in parts)
    return Execution(
        id="e", context_id="default", results=results, logs=Logs(entries=()), error=None, usage=Usage()
    )


async def beats_during(work: Any) -> tuple[Any, int]:
    """How often the loop came round while something was done."""
    task = asyncio.ensure_future(work)
    beats = 0

    while not task.done():
        await asyncio.sleep(0.001)
        beats += 1

    return task.result(), beats


@given(JSON)
def test_json_in_pieces_is_json(value: Any) -> None:
    """Piece by piece comes to the same as in one call."""
    assert json_in_pieces(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert json_in_pieces(value, is_ascii=True) == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize(
    "value", [[1] * 5000, [{}] * 5000, {str(n): [n] for n in range(5000)}, [[[1] * 50]] * 900]
)
def test_large_json_in_pieces_is_json(value: Any) -> None:
    """The same of values that take many pieces."""
    assert json_in_pieces(value) == json.dumps(value, separators=(",", ":"))


def test_others_are_served_while_a_large_answer_is_written() -> None:
    """And the answer is what it would be if it were small."""
    whole = execution(LARGE, LARGE)
    response, beats = asyncio.run(beats_during(responses.large_answer(ORDINARY, whole)))
    assert response.body == json_bytes(as_data(whole))
    # Written on the loop, there would be none but the last.
    assert beats > 5


def test_others_are_served_while_a_large_line_is_written() -> None:
    """Of a stream; small events are lines at once, and the order stays."""

    async def events() -> AsyncGenerator[Event, None]:
        for part in (b"1", LARGE, b"2"):
            yield ResultEvent(result=Result(parts={"application/json": part}), at_seconds=0.0)

    async def lines() -> list[Any]:
        return [line async for line in responses._event_lines(events(), lambda event: event)]

    (small, large, last), beats = asyncio.run(beats_during(lines()))
    assert (small["result"]["json"], last["result"]["json"]) == (1, 2)
    assert large["type"] == "result"
    [event] = [ResultEvent(result=Result(parts={"application/json": LARGE}), at_seconds=0.0)]
    assert large.json == json_bytes(event_data(event))
    assert beats > 5


@pytest.mark.parametrize("part", [b'{"a":[1,2]}', b"no JSON", b"\xff", b'["\\ud800", NaN]', b"1" * 50_000])
def test_a_server_gets_the_parts_of_results_as_they_are(part: bytes) -> None:
    """From a host daemon: also those that are not the JSON they claim to be."""
    whole = execution(part, part)
    reply = StatelessReply(execution=whole, isolation=Isolation(level="none", layers=()))
    event = ResultEvent(result=whole.results[0], at_seconds=0.0)

    for value in (whole, reply, event, ExecutionFinished(execution=whole)):
        answer = asyncio.run(responses.large_answer(OF_A_SERVER, value))
        assert read_value(type(value), json.loads(answer.body)) == value


def test_a_server_reads_large_results_at_once() -> None:
    """As values they are parsed in one call, in which nothing else can run, and written again."""
    whole = execution(*[LARGE] * 3)

    def seconds(request: Request) -> float:
        body = asyncio.run(responses.large_answer(request, whole)).body
        began = time.thread_time()
        read = read_value(Execution, json.loads(body))
        taken = time.thread_time() - began
        assert read.results[0].json == json.loads(LARGE)
        return taken

    assert seconds(OF_A_SERVER) < seconds(ORDINARY) / 4


def test_objects_of_very_many_members_are_not_read() -> None:
    """One call would read them, which nothing can interrupt; text with as many colons is none of them."""
    members = b"{" + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}"
    assert len(read_json(members)) == 100_000  # type: ignore[arg-type]
    assert read_json(members[:-1] + b',"more":1}') is None
    times = json.dumps(["12:30:45"] * 100_000).encode()
    assert len(read_json(times)) == 100_000  # type: ignore[arg-type]
