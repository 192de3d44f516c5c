"""What a provider refuses or breaks off, and turns that are stopped half way: typed errors, and talk that can go on."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import aclosing

import pytest
from tests.llm.scripted_server import DIALECTS, Call, Dialect, Reply, Request, ScriptedServer

from fumehood import AsyncSandbox
from fumehood.llm import (
    AsyncAgent,
    CellStarted,
    CodeWritten,
    ModelAnswerError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextLengthError,
    ModelError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequestError,
    OutputWritten,
    TextWritten,
    TurnFinished,
)

# Says that it runs, and then never ends by itself.
ENDLESS = "n = 5\nprint('running', flush=True)\nimport time\nwhile True: time.sleep(0.01)"
_PATIENCE_SECONDS = 30.0
# One that is not computed from a sandbox, so that none is started where no code runs.
PROMPT = "You run Python."
# The SDKs say by this header of a server that they should not try again, and by the other that at once.
NO_RETRY = {"x-should-retry": "false"}
AT_ONCE = {"retry-after-ms": "1"}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=401, error="authentication_error", text="bad key"), ModelAuthenticationError),
        (Reply(status=403, error="permission_error", text="not this model"), ModelAuthenticationError),
        (Reply(status=404, error="not_found_error", text="no such model"), ModelRequestError),
        (Reply(status=400, error="invalid_request_error", text="bad tool"), ModelRequestError),
        (Reply(status=400, error="context_length_exceeded", text="too long"), ModelContextLengthError),
        (
            Reply(status=400, error="invalid_request_error", text="prompt is too long: 9 tokens > 8 maximum"),
            ModelContextLengthError,
        ),
        (Reply(status=429, error="rate_limit_error", text="slower", headers=NO_RETRY), ModelRateLimitError),
        (Reply(status=500, error="api_error", text="our fault", headers=NO_RETRY), ModelOverloadedError),
        (Reply(status=529, error="overloaded_error", text="busy", headers=NO_RETRY), ModelOverloadedError),
        # In the middle of a stream.
        (Reply(text="It is", error="overloaded_error"), ModelOverloadedError),
        (Reply(text="It is", error="rate_limit_error"), ModelRateLimitError),
        (Reply(text="It is", cut="quiet"), ModelAnswerError),
        (Reply(text="It is", cut="hard"), ModelAnswerError),
    ],
    ids=[
        "401", "403", "404", "400", "context code", "context words", "429", "500", "529",
        "overloaded within", "rate limit within", "cut quietly", "cut hard",
    ],
)  # fmt: skip
def test_each_failure_has_a_class(dialect, reply, kind):
    """It says who failed and how, without the key; nothing of the turn stays, so it can be asked again."""

    def look(request: Request) -> None:
        assert [role for role, _ in request.said] == ["user"]

    async def scene() -> None:
        with ScriptedServer(dialect, reply, Reply(text="Now.", check=look)) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                with pytest.raises(ModelError) as caught:
                    await agent.ask("What is it?")

                assert type(caught.value) is kind
                assert caught.value.provider == dialect
                assert caught.value.hint
                assert "scripted-key" not in str(caught.value)
                assert reply.status == 200 or reply.text in caught.value.reason
                assert agent.history == ()
                assert (await agent.ask("What is it?")).text == "Now."

    asyncio.run(scene())


def test_a_busy_provider_is_asked_again_by_its_sdk_within_bounds(dialect):
    """Two times more, as the SDKs do, and then the caller hears of it, with the time to wait."""
    busy = Reply(status=429, error="rate_limit_error", text="slower", headers=AT_ONCE)

    async def scene() -> None:
        with ScriptedServer(dialect, busy, busy, Reply(text="At last."), busy, busy, busy) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                assert (await agent.ask("Now?")).text == "At last."

                with pytest.raises(ModelRateLimitError) as caught:
                    await agent.ask("Now?")

        assert caught.value.retry_after_seconds == 0.001
        assert len(server.requests) == 6

    asyncio.run(scene())


def test_a_long_wait_is_reported(dialect):
    """How long, in the provider's own number."""
    busy = Reply(
        status=429, error="rate_limit_error", text="slower", headers={**NO_RETRY, "retry-after": "90"}
    )

    async def scene() -> None:
        with ScriptedServer(dialect, busy) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                with pytest.raises(ModelRateLimitError, match="90 s") as caught:
                    await agent.ask("Now?")

        assert caught.value.retry_after_seconds == 90.0

    asyncio.run(scene())


def test_no_peer_is_there(dialect):
    """A closed port is a connection error, also to those who know only Python's own."""

    async def scene(port: int) -> None:
        from fumehood.llm import AnthropicMessages, OpenAIChat, OpenAIResponses

        kinds = {"openai-chat": OpenAIChat, "openai": OpenAIResponses, "anthropic": AnthropicMessages}
        provider = kinds[dialect]("m", base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)

        async with AsyncAgent(provider, system_prompt=PROMPT) as agent:
            with pytest.raises(ConnectionError) as caught:
                await agent.ask("Is anybody there?")

        await provider.close()
        assert type(caught.value) is ModelConnectionError

    # Taken, so that nobody else gets it meanwhile; and closed to all.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        asyncio.run(scene(taken.getsockname()[1]))


def test_without_a_key_the_way_out_is_reported(dialect, monkeypatch):
    """Before anything is sent."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def scene() -> None:
        async with AsyncAgent(
            f"{dialect}:m", base_url="http://127.0.0.1:9/v1", system_prompt=PROMPT
        ) as agent:
            with pytest.raises(PermissionError, match="API_KEY"):
                await agent.ask("May I?")

    asyncio.run(scene())


def test_a_failure_after_code_has_run_keeps_what_was_done(dialect):
    """Cells that ran stay in the conversation: the user can say that it should go on."""

    def look(request: Request) -> None:
        assert request.outputs[0].strip() == "7"
        assert [role for role, _ in request.said] == ["user", "user"]

    async def scene() -> None:
        script = (
            Reply(calls=[Call("print(7)")]),
            Reply(text="It", cut="quiet"),
            Reply(text="Seven.", check=look),
        )

        with ScriptedServer(dialect, *script) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                with pytest.raises(ModelAnswerError):
                    await agent.ask("Seven?")

                assert len(agent.last_answer.cells) == 1
                assert agent.last_answer.stopped == "failed"
                assert (await agent.ask("Go on.")).text == "Seven."

    asyncio.run(scene())


def test_a_stream_that_is_left_while_the_model_writes(dialect):
    """The request ends at once; what was written stays, with a word about its end."""

    def look(request: Request) -> None:
        assert [role for role, _ in request.said] == ["user", "assistant", "user"]
        assert "interrupted" in request.said[1][1]
        assert request.said[1][1].startswith("It is a")

    async def scene() -> None:
        with ScriptedServer(
            dialect, Reply(text="It is a", hold=True), Reply(text="Yes.", check=look)
        ) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                seen = ""

                async with aclosing(agent.stream("What is it?")) as events:
                    async for event in events:
                        assert isinstance(event, TextWritten)
                        seen += event.text

                        if seen == "It is a":
                            break

                assert server.left.wait(_PATIENCE_SECONDS)
                assert agent.last_answer.stopped == "cancelled"
                assert agent.last_answer.text == "It is a"
                assert agent.last_answer.usage.uncounted_requests == 1
                assert (await agent.ask("Well?")).stopped == "answered"

    asyncio.run(scene())


def test_a_turn_that_is_cancelled_while_the_model_writes_code(dialect):
    """`cancel` lets the stream come to its end, with an answer that says so; the code is not run."""

    def look(request: Request) -> None:
        assert request.outputs == []

    async def scene() -> None:
        held = Reply(text="So:", calls=[Call("print('never')")], hold=True)

        with ScriptedServer(dialect, held, Reply(text="Fine.", check=look)) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                last = None

                async with aclosing(agent.stream("Print.")) as events:
                    async for event in events:
                        if isinstance(event, CodeWritten):
                            agent.cancel()

                        last = event

                assert isinstance(last, TurnFinished)
                assert last.answer.stopped == "cancelled"
                assert last.answer.cells == ()
                assert server.left.wait(_PATIENCE_SECONDS)
                assert not agent.cancel()
                assert (await agent.ask("Well?")).text == "Fine."

    asyncio.run(scene())


@pytest.mark.parametrize("way", ["cancel", "leave", "task"])
def test_a_turn_that_is_stopped_in_a_cell(way):
    """The cell is interrupted, its variables stay, and each call has an output that says what happened."""

    def look(request: Request) -> None:
        stopped, never_begun = request.outputs
        assert stopped.startswith("running\n")
        assert "interrupted this code while it ran" in stopped
        assert "Nothing was run" in never_begun

    async def scene() -> None:
        script = (
            Reply(calls=[Call(ENDLESS), Call("print('never')")]),
            Reply(calls=[Call("print(n + 1)")], check=look),
            Reply(text="Six."),
        )

        with ScriptedServer("anthropic", *script) as server:
            async with (
                AsyncSandbox() as sandbox,
                AsyncAgent(**server.arguments, system_prompt=PROMPT, sandbox=sandbox) as agent,
            ):
                await _stop_in_the_cell(agent, way)
                assert agent.last_answer.stopped == "cancelled"
                assert [cell.code for cell in agent.last_answer.cells] == [ENDLESS]
                answer = await agent.ask("And now?")
                assert answer.cells[0].result.text.strip() == "6"

    asyncio.run(scene())


async def _stop_in_the_cell(agent: AsyncAgent, way: str) -> None:
    running = asyncio.Event()

    async def listen() -> None:
        async with aclosing(agent.stream("Run.")) as events:
            async for event in events:
                if isinstance(event, OutputWritten):
                    running.set()

                    if way == "cancel":
                        assert agent.cancel()
                    elif way == "leave":
                        return

    task = asyncio.create_task(listen())
    await running.wait()

    if way == "task":
        task.cancel()

    await asyncio.wait({task})
    assert task.cancelled() == (way == "task")


def test_a_sandbox_that_cannot_be_had_leaves_the_talk_usable():
    """An error that is not the model's goes to the caller; the call that was not run has an output."""

    def look(request: Request) -> None:
        assert "what it has done is not known" in request.outputs[0]

    class Broken:
        """A tool whose machine is gone."""

        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        async def run(self, code: str, **_: object):
            raise OSError("no machine")

    async def scene() -> None:
        script = Reply(calls=[Call("print(1)")]), Reply(text="I see.", check=look)

        with ScriptedServer("openai-chat", *script) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as working:
                async with AsyncAgent(
                    **server.arguments, system_prompt=PROMPT, interpreter=Broken(working.interpreter)
                ) as agent:
                    with pytest.raises(OSError, match="no machine"):
                        await agent.ask("Run.")

                    assert (await agent.ask("Well?")).text == "I see."

    asyncio.run(scene())


def test_two_questions_at_once_are_answered_one_after_the_other():
    """A conversation has one order."""

    async def scene() -> None:
        with ScriptedServer("openai", Reply(text="First."), Reply(text="Second.")) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                answers = await asyncio.gather(agent.ask("One?"), agent.ask("Two?"))

        assert [answer.text for answer in answers] == ["First.", "Second."]
        assert [role for role, _ in server.requests[1].said] == ["user", "assistant", "user"]

    asyncio.run(scene())


def test_closing_ends_what_is_under_way():
    """No request and no cell outlives the agent."""

    async def scene() -> None:
        with ScriptedServer("openai", Reply(calls=[Call(ENDLESS)])) as server:
            agent = AsyncAgent(**server.arguments, system_prompt=PROMPT)
            running = asyncio.Event()
            seen: list[object] = []

            async def listen() -> None:
                async with aclosing(agent.stream("Run.")) as events:
                    async for event in events:
                        seen.append(event)

                        if isinstance(event, CellStarted):
                            running.set()

            task = asyncio.create_task(listen())
            await running.wait()
            await agent.close()
            await task
            assert seen[-1].answer.stopped == "cancelled"

    asyncio.run(scene())


def test_a_turn_that_is_cancelled_before_it_began():
    """At the very first moment, and with nobody asked."""

    async def scene() -> None:
        with ScriptedServer("openai") as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                asking = asyncio.create_task(agent.ask("Well?"))

                while not agent.cancel():
                    await asyncio.sleep(0)

                assert (await asking).stopped == "cancelled"
                assert agent.history == ()

    asyncio.run(scene())


def test_closing_does_not_wait_for_a_stream_that_nobody_reads():
    """It is held, and no longer read: the turn ends, and the stream says so when it is read again."""

    async def scene() -> None:
        with ScriptedServer("openai", Reply(calls=[Call(ENDLESS)])) as server:
            agent = AsyncAgent(**server.arguments, system_prompt=PROMPT)
            events = agent.stream("Run.")

            while not isinstance(await anext(events), OutputWritten):
                pass

            await agent.close()
            *_, last = [event async for event in events]
            assert last.answer.stopped == "cancelled"

    asyncio.run(scene())


def test_threads_of_the_engine_are_not_blocked_by_a_slow_reader():
    """A reader that stops reading stops the turn, not the program: nothing piles up without bound."""

    before = threading.active_count()

    async def scene() -> None:
        code = "for number in range(5_000): print(number, flush=True)"

        with ScriptedServer("openai-chat", Reply(calls=[Call(code)]), Reply(text="Done.")) as server:
            async with AsyncAgent(**server.arguments, system_prompt=PROMPT) as agent:
                async with aclosing(agent.stream("Count.")) as events:
                    printed = ""

                    async for event in events:
                        if isinstance(event, OutputWritten):
                            printed += event.text

        assert printed.split() == [str(number) for number in range(5_000)]
        assert threading.active_count() - before < 50

    asyncio.run(scene())
