"""Large results for Jupyter's clients are written beside the loop; what clients get, and in what order, is the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fumehood.dialects.jupyter.audience import Client
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.kernel_state import KernelRequest
from fumehood.dialects.jupyter.messages import compose, decode_default, decode_v1
from fumehood.dialects.jupyter.shell import _pass_on
from fumehood.dialects.jupyter.spec import find_spec
from fumehood.values.events import CommEvent, Event, ResultEvent, StdoutEvent
from fumehood.values.results import Result

VALUES: list[Any] = [1.5, {"a": [None, "\ud800", "\u2028"]}, "x"] * 40_000
LARGE = json.dumps([*VALUES, float("nan")]).encode()
EVENTS: list[Event] = [
    StdoutEvent(text="before", at_seconds=0.0),
    ResultEvent(result=Result(parts={"application/json": LARGE}, metadata={"m": 1}), at_seconds=0.0),
    CommEvent(kind="comm_msg", comm_id="c", data={"v": VALUES}, metadata={}, buffers=(b"x",), at_seconds=0.0),
    StdoutEvent(text="after", at_seconds=0.0),
]


async def passed_on(events: list[Event]) -> tuple[list[list[Any]], int]:
    """What a client of each framing gets, and how often the loop came round meanwhile."""
    kernel = Kernel("kernel", "sandbox", find_spec("python3"))
    clients = [Client("", None, speaks_v1=v1) for v1 in (False, True)]  # type: ignore[arg-type]
    asked = compose("shell", "execute_request", {"code": ""}, session="s")
    request = KernelRequest(asked, 100, "s", None)  # type: ignore[arg-type]
    beats = 0

    for client in clients:
        kernel.audience.join(client)

    async def pass_all() -> None:
        for event in events:
            await _pass_on(kernel, request, event, 1)

    passing = asyncio.create_task(pass_all())

    while not passing.done():
        await asyncio.sleep(0.001)
        beats += 1

    await passing
    kernel.audience.close()
    framings = (decode_default, decode_v1)
    got = []

    for client, decode in zip(clients, framings, strict=True):
        frames = [await client.next_frame() for _ in events]
        # As a client of the shell channel would send it: this reader takes nothing else.
        got.append([_as_from_client(decode, frame) for frame in frames])

    kernel.die()
    return got, beats


def _as_from_client(decode: Any, frame: Any) -> Any:
    shell = frame.replace('"channel":"iopub"', '"channel":"shell"') if isinstance(frame, str) else frame
    shell = shell.replace(b"iopub", b"shell") if isinstance(shell, bytes) else shell
    return decode(shell)


@pytest.mark.timeout(60)
def test_others_are_served_while_a_large_message_is_written() -> None:
    """Of a result and of a widget; small messages stay where they are among them."""
    got, beats = asyncio.run(passed_on(EVENTS))

    for messages in got:
        before, result, comm, after = messages
        assert (before.content["text"], after.content["text"]) == ("before", "after")
        shown = result.content["data"]["application/json"]
        assert shown == comm.content["data"]["v"] + [None]
        assert shown[:3] == [1.5, {"a": [None, "?", "\u2028"]}, "x"]
        assert result.content["metadata"] == {"m": 1}
        assert comm.buffers == (b"x",)
        assert result.parent_header["msg_type"] == "execute_request"

    # Written on the loop, there would be none but a few.
    assert beats > 20


def test_without_clients_a_large_message_goes_nowhere() -> None:
    """Nothing is written, and nothing fails."""

    async def pass_on() -> None:
        kernel = Kernel("kernel", "sandbox", find_spec("python3"))
        asked = compose("shell", "execute_request", {"code": ""}, session="s")
        await _pass_on(kernel, KernelRequest(asked, 100, "s", None), EVENTS[1], 1)  # type: ignore[arg-type]
        kernel.die()

    asyncio.run(pass_on())
