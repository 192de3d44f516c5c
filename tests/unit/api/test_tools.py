"""Running tools over a scripted sandbox: what comes of odd functions, odd answers and odd ends."""

from __future__ import annotations

import asyncio

import pytest

from fumehood import (
    HostTool,
    HostUnavailableError,
    InvalidArgumentError,
    SandboxClosedError,
    ToolCallEvent,
    ToolError,
)
from fumehood.api import tools as tool_running
from fumehood.api.tools import ToolRunner, ready_tools


def call_of(name="tool", **arguments):
    return ToolCallEvent(
        execution_id="e", request_id="e/tool-1", name=name, arguments=arguments, at_seconds=0
    )


async def run(tools, *calls, approve=None, send=None, until=None):
    """Follows calls until as many answers have come, and gives them."""
    answers = []
    enough = asyncio.Event()

    async def keep(answer):
        answers.append(answer)

        if len(answers) == len(calls):
            enough.set()

    async def events():
        for call in calls:
            yield call

        await (until or enough).wait()

    runner = ToolRunner(ready_tools(tools), approve, send or keep)

    async for _ in runner.follow(events()):
        pass

    return answers


def one(function, call=None, **options):
    (answer,) = asyncio.run(run({"tool": function}, call or call_of(), **options))
    return answer


def test_a_value_and_an_error_go_back_under_the_name_of_the_call():
    """The ordinary way."""
    answer = one(lambda n: {"n": n}, call_of(n=5))
    assert (answer.execution_id, answer.request_id) == ("e", "e/tool-1")
    assert (answer.value, answer.error) == ({"n": 5}, None)


def test_a_call_of_what_was_not_given_is_an_error():
    """Whoever is at the other end: nothing is looked up elsewhere."""
    assert one(lambda: 1, call_of("__import__")).error == "__import__() is not known here"


def test_empty_and_endless_errors_are_bounded():
    """What the code hears is a line or so."""

    def fail(text):
        raise ToolError(text)

    assert one(lambda: fail("")).error == "tool() failed"
    assert len(one(lambda: fail("x" * 10**6)).error or "") == 16_000


def test_what_is_awaitable_is_awaited():
    """A plain function may give a coroutine; an object may be called."""

    class Asking:
        async def __call__(self, n: int) -> int:
            return n + 1

    async def later():
        return "later"

    assert one(lambda: later()).value == "later"
    assert ready_tools({"tool": Asking()})["tool"].spec.awaited
    assert one(Asking(), call_of(n=1)).value == 2


def test_a_timeout_of_the_functions_own_is_reported_as_such():
    """It is not mistaken for the limit."""

    def fail():
        raise TimeoutError("a secret")

    async def cancelled():
        raise asyncio.CancelledError

    assert one(fail).error == "tool() failed with TimeoutError"
    assert one(cancelled).error == "tool() failed with CancelledError"


def test_what_the_callback_says_is_yes_no_or_text():
    """Anything else is a mistake of the caller's, and told to the caller."""
    with pytest.raises(InvalidArgumentError, match="on_tool_call"):
        one(lambda: 1, approve=lambda call: 1, until=asyncio.Event())


def test_who_cannot_answer_is_reported():
    """An answer that does not arrive ends the run; a sandbox that has ended says so by its events."""

    async def broken(answer):
        raise HostUnavailableError(host="h", reason="gone", outcome_unknown=True)

    with pytest.raises(HostUnavailableError):
        asyncio.run(run({"tool": lambda: 1}, call_of(), send=broken, until=asyncio.Event()))

    over = asyncio.Event()

    async def closed(answer):
        over.set()
        raise SandboxClosedError(sandbox_id="s", reason="killed")

    assert asyncio.run(run({"tool": lambda: 1}, call_of(), send=closed, until=over)) == []


def test_functions_end_with_their_execution(monkeypatch, caplog):
    """They are cancelled; one that does not listen is left alone, and the log says so."""
    monkeypatch.setattr(tool_running, "_CLEANUP_SECONDS", 0.05)
    heard = []

    async def main():
        began = asyncio.Event()
        release = asyncio.Event()

        async def deaf():
            began.set()

            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    heard.append("cancelled")

        assert await run({"tool": HostTool(deaf)}, call_of(), until=began) == []
        release.set()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert heard == ["cancelled"]
    assert "goes on although its execution has ended" in caplog.text
