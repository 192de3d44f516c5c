"""Turns of an agent, in each provider's dialect, by the unmodified SDKs against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from tests.llm.scripted_server import DIALECTS, Call, Dialect, Reply, Request, ScriptedServer

from fumehood import InvalidArgumentError
from fumehood.llm import (
    AgentEvent,
    AsyncAgent,
    CellFinished,
    CellStarted,
    CodeWritten,
    FileUploaded,
    OutputWritten,
    Price,
    ResultShown,
    TextWritten,
    TurnFinished,
)

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@asynccontextmanager
async def agent_of(
    server: ScriptedServer, *, system_prompt: str | None = "You run Python.", **options: Any
) -> AsyncIterator[AsyncAgent]:
    options["system_prompt"] = system_prompt

    async with AsyncAgent(**server.arguments, **options) as agent:
        yield agent


async def events_of(agent: AsyncAgent, prompt: str, **options: Any) -> list[AgentEvent]:
    async with aclosing(agent.stream(prompt, **options)) as events:
        return [event async for event in events]


def of_kind(events: list[AgentEvent], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_plain_answer(dialect):
    """Text comes as it is written, and once more as a whole."""

    def look(request: Request) -> None:
        assert request.tools == ["run_code"]
        assert "Python 3." in request.system
        assert request.system.endswith("Be brief.")
        assert request.said == [("user", "What is it?")]

    async def scene() -> None:
        with ScriptedServer(dialect, Reply(text="It is a fume hood.", check=look)) as server:
            async with agent_of(server, system_prompt=None, instructions="Be brief.") as agent:
                events = await events_of(agent, "What is it?")

        answer = events[-1].answer
        texts = [event.text for event in of_kind(events, TextWritten)]
        assert "".join(texts) == answer.text == "It is a fume hood."
        assert len(texts) > 1
        assert answer.stopped == "answered"
        assert answer.cells == ()
        assert [type(event) for event in events[-1:]] == [TurnFinished]

    asyncio.run(scene())


def test_one_call(dialect):
    """Code is seen while it is written, runs, and its output goes back under the name of its call."""
    code = "for word in ['out', 'put']:\n    print(word)\n6 * 7"

    def look(request: Request) -> None:
        assert request.outputs[0].split() == ["out", "put", "42"]
        assert request.pictures == 0

    async def scene() -> None:
        script = Reply(text="I will see.", calls=[Call(code)]), Reply(text="It is 42.", check=look)

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                events = await events_of(agent, "How much?")

        written = of_kind(events, CodeWritten)
        assert "".join(event.text for event in written) == code
        assert len(written) > 2
        assert [event.code for event in of_kind(events, CellStarted)] == [code]
        assert "".join(event.text for event in of_kind(events, OutputWritten)) == "out\nput\n"
        assert [event.result.text for event in of_kind(events, ResultShown)] == ["42"]
        answer = events[-1].answer
        assert answer.text == "It is 42."
        assert [cell.code for cell in answer.cells] == [code]
        assert answer.cells[0].result.execution.text == "42"

    asyncio.run(scene())


def test_several_calls_in_one_message(dialect):
    """They run one after the other over the same variables, and each has its own output."""
    calls = [Call("n = 20"), Call("n += 1\nprint(n)"), Call("print(n * 2)")]

    def look(request: Request) -> None:
        assert [output.strip() for output in request.outputs][1:] == ["21", "42"]

    async def scene() -> None:
        with ScriptedServer(dialect, Reply(calls=calls), Reply(text="Done.", check=look)) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Count.")

        assert [cell.code for cell in answer.cells] == [call.code for call in calls]
        assert len({cell.call_id for cell in answer.cells}) == 3

    asyncio.run(scene())


def test_calls_that_all_have_the_same_number():
    """As some servers of Chat Completions send them: told apart by their ids."""

    async def scene() -> None:
        calls = [Call("print(1)"), Call("print(2)")]

        with ScriptedServer("openai-chat", Reply(calls=calls, loose=True), Reply(text="Done.")) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Count.")

        assert [cell.result.text.strip() for cell in answer.cells] == ["1", "2"]

    asyncio.run(scene())


def test_an_error_then_a_repair(dialect):
    """The model reads what went wrong and tries again; a failure that is repaired is forgotten."""

    def look(request: Request) -> None:
        assert "ZeroDivisionError" in request.outputs[-1]
        assert "line 2" in request.outputs[-1]

    def look_again(request: Request) -> None:
        assert request.outputs[-1].strip() == "0.5"

    async def scene() -> None:
        script = (
            Reply(calls=[Call("a = 1\nprint(a / 0)")]),
            Reply(text="I divide by two.", calls=[Call("print(a / 2)")], check=look),
            Reply(text="A half.", check=look_again),
        )

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                events = await events_of(agent, "Divide.")

        finished = of_kind(events, CellFinished)
        assert [event.cell.result.is_error for event in finished] == [True, False]
        assert events[-1].answer.stopped == "answered"
        assert events[-1].answer.text == "A half."

    asyncio.run(scene())


def test_max_repairs_is_reached(dialect):
    """So many failures in a row and no more; what was left of the message has an answer too, and talk goes on."""

    def look(request: Request) -> None:
        # The script's server has seen that each call has its output.
        assert "too many calls before" in request.outputs[-1]
        assert request.last_user == "Go on."

    async def scene() -> None:
        script = (
            Reply(calls=[Call("print('fine')"), Call("nothing_1")]),
            Reply(calls=[Call("nothing_2"), Call("print('never')")]),
            Reply(text="I give up.", check=look),
        )

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server, max_repairs=2) as agent:
                answer = await agent.ask("Try.")
                assert answer.stopped == "max_repairs"
                assert [cell.result.is_error for cell in answer.cells] == [False, True, True]
                assert (await agent.ask("Go on.")).text == "I give up."

    asyncio.run(scene())


def test_max_steps_is_reached(dialect):
    """A model that never comes to an end is not asked for ever."""

    async def scene() -> None:
        script = [Reply(text=f"Step {step}.", calls=[Call("1")]) for step in range(3)]

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server, max_steps=3) as agent:
                answer = await agent.ask("Work.")

        assert answer.stopped == "max_steps"
        assert answer.usage.requests == 3
        assert answer.text == "Step 2."

    asyncio.run(scene())


def test_images_go_back(dialect):
    """A figure reaches a model that can see, where its dialect has a place for it."""

    def look(request: Request) -> None:
        assert request.pictures == 1

        if dialect == "openai-chat":
            # A tool's answer is text here: pictures follow as a message of the user.
            assert [item["role"] for item in request.items][-2:] == ["tool", "user"]

    async def scene() -> None:
        script = Reply(calls=[Call(FIGURE)]), Reply(text="A line.", check=look)

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Draw.")

        assert answer.cells[0].result.images[0].data.startswith(b"\x89PNG")

    asyncio.run(scene())


def test_a_model_without_eyes_gets_no_images(dialect):
    """It is told that there was one."""

    def look(request: Request) -> None:
        assert request.pictures == 0
        assert "cannot be shown" in request.outputs[0]

    async def scene() -> None:
        with ScriptedServer(dialect, Reply(calls=[Call(FIGURE)]), Reply(text="Blind.", check=look)) as server:
            async with agent_of(server, images=False) as agent:
                await agent.ask("Draw.")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (Call(arguments='{"code": "print(1'), "no JSON"),
        (Call(arguments='["print(1)"]'), "array"),
        (Call(arguments='{"kode": "print(1)"}'), "no text 'code'"),
        (Call("print(1)", tool="run_perl"), "no tool"),
    ],
    ids=["no JSON", "no object", "no code", "no such tool"],
)
def test_malformed_calls(dialect, call, told):
    """What cannot be read is not run: the model hears what was wrong, and the conversation can be sent again."""

    def look(request: Request) -> None:
        assert told in request.outputs[0]
        assert "Nothing was run" in request.outputs[0]

    async def scene() -> None:
        script = Reply(calls=[call]), Reply(calls=[Call("print('ok')")], check=look), Reply(text="Better.")

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Try.")

        assert [cell.result.is_error for cell in answer.cells] == [True, False]
        assert answer.text == "Better."

    asyncio.run(scene())


def test_a_message_that_was_cut_off_runs_nothing(dialect):
    """Half a program is none."""

    def look(request: Request) -> None:
        assert request.outputs == []

    async def scene() -> None:
        cut = Reply(
            text="Now:", calls=[Call(arguments="{\"code\": \"open('/mnt/data/x', 'w')")], end="length"
        )

        with ScriptedServer(dialect, cut, Reply(text="Shorter.", check=look)) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Write a lot.")
                assert answer.stopped == "length"
                assert answer.cells == ()
                assert answer.text == "Now:"
                assert (await agent.ask("Shorter.")).stopped == "answered"

    asyncio.run(scene())


def test_a_refusal(dialect):
    """A model that will not is no error: the turn says so."""

    def look(request: Request) -> None:
        assert request.outputs == []
        assert [text.splitlines()[0] for _, text in request.said] == [
            "Do that.",
            "I cannot do that.",
            "Then this.",
        ]

    async def scene() -> None:
        refusal = Reply(text="I cannot do that.", calls=[Call("print('never')")], end="refused")

        with ScriptedServer(dialect, refusal, Reply(text="Done.", check=look)) as server:
            async with agent_of(server) as agent:
                answer = await agent.ask("Do that.")
                assert answer.stopped == "refused"
                assert answer.text == "I cannot do that."
                assert answer.cells == ()
                assert (await agent.ask("Then this.")).text == "Done."

    asyncio.run(scene())


def test_the_conversation_goes_on(dialect):
    """Later turns have the earlier ones before them, variables live on, and `reset` forgets talk but not state."""

    def look(request: Request) -> None:
        roles = [role for role, _ in request.said]
        assert roles == ["user", "assistant", "user"]
        assert request.outputs[0].strip() == "41"

    def look_fresh(request: Request) -> None:
        assert [role for role, _ in request.said] == ["user"]

    async def scene() -> None:
        script = (
            Reply(calls=[Call("n = 41\nprint(n)")]),
            Reply(text="Kept."),
            Reply(calls=[Call("print(n + 1)")], check=look),
            Reply(text="42."),
            Reply(calls=[Call("print(n)")], check=look_fresh),
            Reply(text="Still there."),
        )

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                await agent.ask("Keep 41.")
                assert (await agent.ask("One more.")).cells[0].result.text.strip() == "42"
                agent.reset()
                assert agent.history == ()
                assert (await agent.ask("And now?")).cells[0].result.text.strip() == "41"

    asyncio.run(scene())


def test_files_go_in_and_come_out(dialect, tmp_path):
    """What is uploaded is told to the model, what it makes is named in the answer."""
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n")

    def look(request: Request) -> None:
        assert "/mnt/data/sales.csv (8 bytes)" in request.last_user

    async def scene() -> None:
        code = "text = open('/mnt/data/sales.csv').read()\nopen('/mnt/data/copy.csv', 'w').write(text * 2)"
        script = Reply(calls=[Call(code)], check=look), Reply(text="See [it](sandbox:/mnt/data/copy.csv).")

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server) as agent:
                events = await events_of(agent, "Double it.", files=[tmp_path / "sales.csv"])

                assert of_kind(events, FileUploaded) == [
                    FileUploaded(path="/mnt/data/sales.csv", size_bytes=8)
                ]
                answer = events[-1].answer
                assert [(file.path, file.size_bytes) for file in answer.files] == [("/mnt/data/copy.csv", 16)]
                assert agent.files == answer.files
                # Nobody can open an address within the sandbox: the stream and the answer name the file.
                assert answer.text == "See it (copy.csv)."
                assert "".join(event.text for event in of_kind(events, TextWritten)) == answer.text

    asyncio.run(scene())


def test_tokens_are_the_providers_and_prices_the_callers(dialect):
    """Sums of what the provider counted; a cost only by a price that was given."""
    prices = {"scripted": Price(input=2.0, output=10.0, cached=0.5)}

    async def scene() -> None:
        script = (
            Reply(calls=[Call("1")], tokens=(100, 20)),
            Reply(text="One.", tokens=(200, 30)),
            Reply(text="Two.", tokens=(300, 1)),
        )

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server, prices=prices) as agent:
                usage = (await agent.ask("First.")).usage
                await agent.ask("Second.")
                total = agent.usage

        assert (usage.requests, usage.uncounted_requests) == (2, 0)
        assert (usage.tokens.input_tokens, usage.tokens.output_tokens) == (300, 50)
        assert usage.tokens.cached_tokens == 8
        assert usage.cost == pytest.approx((292 * 2.0 + 8 * 0.5 + 50 * 10.0) / 1e6)
        assert (total.requests, total.tokens.input_tokens) == (3, 600)

    asyncio.run(scene())


def test_without_a_price_there_is_no_cost(dialect):
    """Nothing is made up."""

    async def scene() -> None:
        with ScriptedServer(dialect, Reply(text="One.")) as server:
            async with agent_of(server, prices={"another": Price(input=1, output=1)}) as agent:
                usage = (await agent.ask("First.")).usage

        assert usage.tokens.input_tokens == 10
        assert usage.cost is None

    asyncio.run(scene())


def test_host_tools_reach_the_code(dialect):
    """Functions of the caller can be called by the model's code."""
    asked: list[str] = []

    def look_up(word: str) -> str:
        asked.append(word)
        return word.upper()

    async def scene() -> None:
        script = Reply(calls=[Call("print(look_up(word='hood'))")]), Reply(text="HOOD.")

        with ScriptedServer(dialect, *script) as server:
            async with agent_of(server, tools={"look_up": look_up}) as agent:
                answer = await agent.ask("Look it up.")

        assert answer.cells[0].result.text.strip() == "HOOD"
        assert asked == ["hood"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "gpt-x"},
        {"model": "smoke:gpt-x"},
        {"model": "openai:"},
        {"model": 5},
        {"model": "openai:x", "max_steps": 0},
        {"model": "openai:x", "max_repairs": True},
    ],
    ids=lambda arguments: str(list(arguments.items())[-1]),
)
def test_bad_arguments_are_refused_at_once(arguments):
    """Before anything is asked or started."""
    with pytest.raises(InvalidArgumentError):
        AsyncAgent(**arguments)


@pytest.mark.parametrize("given", ["", "   ", None])
def test_a_prompt_is_some_text(given):
    """An empty one is a mistake of the caller."""

    async def scene() -> None:
        async with AsyncAgent("openai:x", api_key="k") as agent:
            with pytest.raises(InvalidArgumentError, match="prompt"):
                await agent.ask(given)

    asyncio.run(scene())


def test_files_that_are_not_there_are_refused_at_once(tmp_path):
    """No model is asked about a file that cannot be uploaded."""

    async def scene() -> None:
        async with AsyncAgent("openai:x", api_key="k") as agent:
            with pytest.raises(InvalidArgumentError, match="files"):
                await agent.ask("Look.", files=[tmp_path / "nothing.csv"])

    asyncio.run(scene())
