"""Large answers leave the loop: others are served while they are written, and what is written is the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.off_loop import json_in_pieces
from fumehood.server import responses
from fumehood.server.responses import event_data, json_bytes
from fumehood.values.events import Event, ResultEvent
from fumehood.values.execution import Execution, Logs
from fumehood.values.limits import Usage
from fumehood.values.plain_data import as_data
from fumehood.values.results import Result, read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
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
    response, beats = asyncio.run(beats_during(responses.large_answer(whole)))
    assert response.body == json_bytes(as_data(whole))
    # Written on the loop, there would be none but the last.
    assert beats > 5


def test_others_are_served_while_a_large_line_is_written() -> None:
    """Of a stream; small events are lines at once, and the order stays."""

    async def events() -> AsyncGenerator[Event, None]:
        for part in (b"1", LARGE, b"2"):
            yield ResultEvent(result=Result(parts={"application/json": part}), at_seconds=0.0)

    async def lines() -> list[Any]:
        return [line async for line in responses._event_lines(events())]

    (small, large, last), beats = asyncio.run(beats_during(lines()))
    assert (small["result"]["json"], last["result"]["json"]) == (1, 2)
    assert large["type"] == "result"
    [event] = [ResultEvent(result=Result(parts={"application/json": LARGE}), at_seconds=0.0)]
    assert large.json == json_bytes(event_data(event))
    assert beats > 5


def test_objects_of_very_many_members_are_not_read() -> None:
    """One call would read them, which nothing can interrupt; text with as many colons is none of them."""
    members = b"{" + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}"
    assert len(read_json(members)) == 100_000  # type: ignore[arg-type]
    assert read_json(members[:-1] + b',"more":1}') is None
    times = json.dumps(["12:30:45"] * 100_000).encode()
    assert len(read_json(times)) == 100_000  # type: ignore[arg-type]
