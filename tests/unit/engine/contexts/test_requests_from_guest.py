"""The calls of one execution: what answers take that nobody reads."""

from __future__ import annotations

import asyncio
import json

from fumehood.bounds import MIB
from fumehood.engine.clock import SandboxClock
from fumehood.engine.contexts.requests_from_guest import ToolCalls
from fumehood.values.requests import MAX_ERROR_CHARACTERS, MAX_TOOL_CALLS, ToolAnswer, ToolSpec


def test_errors_count_like_answers():
    """What a function says of its failure may repeat what it was given, and a guest need not read it."""

    async def work() -> list[bytes]:
        sent: list[bytes] = []
        tool = ToolSpec(name="search", max_calls=MAX_TOOL_CALLS)
        calls = ToolCalls("e", (tool,), lambda _, payload: sent.append(payload), SandboxClock())
        # Six characters of JSON each.
        error = "\0" * MAX_ERROR_CHARACTERS

        for number in range(1, 2001):
            event = calls.asked({"call": number, "name": "search"}, b"{}", 0.0)
            calls.answer(ToolAnswer(execution_id="e", request_id=event.request_id, error=error))

        assert [outcome.ok for outcome in calls.over()] == [False] * 2000
        return sent

    sent = asyncio.run(work())
    assert len(sent) == 2000
    assert sum(map(len, sent)) < 65 * MIB
    assert json.loads(sent[0]) == "\0" * MAX_ERROR_CHARACTERS
    assert "all answers together take more" in json.loads(sent[-1])
