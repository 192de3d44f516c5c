"""The synchronous agent, one question at a time, conversations as notebooks, and models of one's own."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator

import nbformat
import pytest
from tests.llm.scripted_server import Call, Reply, ScriptedServer

from fumehood import InvalidArgumentError, Sandbox
from fumehood.llm import (
    Agent,
    Answer,
    AsyncAgent,
    CodeInterpreter,
    ModelCell,
    ModelError,
    OutputWritten,
    Price,
    TextWritten,
    ToolResult,
    TurnFinished,
    aask,
    ask,
)
from fumehood.llm.costs import TokenUsage
from fumehood.llm.providers.base import CodeCall, CodeWritten, ModelMessage, ModelRequest, Written

PROMPT = "You run Python."


def test_ask_starts_and_ends_all_that_it_needs(tmp_path):
    """One call: a file goes in, code runs, an answer comes."""
    (tmp_path / "words.txt").write_text("fume hood")
    script = Reply(calls=[Call("print(len(open('/mnt/data/words.txt').read()))")]), Reply(text="9.")

    with ScriptedServer("openai", *script) as server:
        answer = ask("How long?", **server.arguments, files=[tmp_path / "words.txt"])

    assert answer.text == str(answer) == "9."
    assert answer.cells[0].result.text.strip() == "9"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_files_of_an_answer_outlive_its_sandbox(asynchronous):
    """Their content comes with them; one that is too large is named without it."""
    code = "open('/mnt/data/sum.txt', 'w').write('42'); open('/mnt/data/vast.bin', 'wb').truncate(65 << 20)"

    with ScriptedServer("openai", Reply(calls=[Call(code)]), Reply(text="Written.")) as server:
        answer = (
            asyncio.run(aask("Add.", **server.arguments)) if asynchronous else ask("Add.", **server.arguments)
        )

    assert {file.name: file.data for file in answer.files} == {"sum.txt": b"42", "vast.bin": None}
    assert len(repr(answer.files)) < 1_000


def test_a_stream_of_events_in_a_thread_without_a_loop():
    """The same events as the asynchronous one has."""
    with ScriptedServer("anthropic", Reply(calls=[Call("print(1)")]), Reply(text="One.")) as server:
        with Agent(**server.arguments, system_prompt=PROMPT) as agent:
            events = list(agent.stream("Print."))

    assert isinstance(events[-1], TurnFinished)
    assert events[-1].answer is agent.last_answer
    assert "".join(event.text for event in events if isinstance(event, TextWritten)) == "One."


@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_a_turn_is_stopped_from_outside(way):
    """By leaving the loop, or from another thread."""
    endless = "print('running', flush=True)\nwhile True: pass"

    with ScriptedServer("openai-chat", Reply(calls=[Call(endless)]), Reply(text="Fine.")) as server:
        with Agent(**server.arguments, system_prompt=PROMPT) as agent:
            for event in agent.stream("Run."):
                if isinstance(event, OutputWritten) and way == "leave":
                    break

                if isinstance(event, OutputWritten):
                    thread = threading.Thread(target=agent.cancel)
                    thread.start()
                    thread.join()

            # Leaving a loop closes the iterator when nobody holds it any more, which is at once.
            assert agent.last_answer.stopped == "cancelled"
            assert agent.ask("Well?").text == "Fine."


@pytest.mark.parametrize("way", ["ask", "Agent.ask", "Agent.stream"])
def test_tools_run_in_the_callers_thread(way):
    """So they may use whatever belongs to it, a sandbox too."""
    threads: list[threading.Thread] = []

    with Sandbox() as sandbox:

        def count(word: str) -> int:
            threads.append(threading.current_thread())
            return int(sandbox.run_code(f"len({word!r})").text)

        script = Reply(calls=[Call("print(count(word='hood'))")]), Reply(text="4.")

        with ScriptedServer("openai", *script) as server:
            given = {**server.arguments, "tools": {"count": count}}

            if way == "ask":
                answer = ask("Count.", **given)
            else:
                with Agent(**given, system_prompt=PROMPT) as agent:
                    answer = (
                        agent.ask("Count.") if way == "Agent.ask" else list(agent.stream("Count."))[-1].answer
                    )

    assert answer.cells[0].result.text.strip() == "4"
    assert threads == [threading.current_thread()]


def test_a_sandbox_of_the_callers_stays_the_callers():
    """It is used and not killed, and so is an interpreter."""
    with Sandbox() as sandbox, CodeInterpreter(sandbox) as interpreter:
        with ScriptedServer("openai", Reply(calls=[Call("n = 3")]), Reply(text="Set.")) as server:
            with Agent(**server.arguments, interpreter=interpreter, system_prompt=PROMPT) as agent:
                agent.ask("Set n.")

            with pytest.raises(InvalidArgumentError, match="interpreter"):
                Agent(**server.arguments, interpreter=interpreter, sandbox=sandbox)

        assert sandbox.run_code("n").text == "3"


def test_a_conversation_is_a_valid_notebook(tmp_path):
    """Prompts and prose, code with what it printed, showed and raised, and nothing that a front end could not read."""
    code = "print('out')\nimport sys; print('err', file=sys.stderr)\nfrom IPython.display import HTML\nHTML('<b>x</b>')"
    script = (
        Reply(text="I *look*.", calls=[Call(code), Call("1 / 0")]),
        Reply(text="Broken.", calls=[Call(arguments="{")]),
        Reply(text="That is it."),
    )

    with ScriptedServer("anthropic", *script) as server:
        with Agent(**server.arguments, system_prompt=PROMPT) as agent:
            agent.ask("Look.")
            text = agent.to_notebook(tmp_path / "chat.ipynb")
            assert (tmp_path / "chat.ipynb").read_text() == text
            assert len(agent.cells) == 3
            agent.reset()
            assert nbformat.reads(agent.to_notebook(), as_version=4).cells == []

    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    kinds = [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert kinds == [
        ("markdown", "**You:** Look."),
        ("markdown", "I *look*."),
        ("code", code),
        ("code", "1 / 0"),
        ("markdown", "Broken."),
        ("code", ""),
        ("markdown", "That is it."),
    ]
    outputs = notebook.cells[2].outputs
    assert [output.get("name", output.output_type) for output in outputs] == [
        "stdout",
        "stderr",
        "execute_result",
    ]
    assert outputs[2].data["text/html"] == "<b>x</b>"
    assert notebook.cells[3].outputs[0].ename == "ZeroDivisionError"
    assert "Nothing was run" in notebook.cells[5].outputs[0].text


class OwnModel:
    """A model of the caller's own: it asks for one sum, and then says what came out."""

    name = "own"
    model = "adder"

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        assert request.tool is not None
        last = request.messages[-1]

        if hasattr(last, "call_id"):
            yield TextWritten(text=last.text)
            yield ModelMessage(text=last.text.strip(), tokens=TokenUsage(input_tokens=1_000_000))
        else:
            yield CodeWritten(call_id="a", text="print(2 + 2)")
            yield ModelMessage(calls=(CodeCall(id="a", code="print(2 + 2)"),), tokens=TokenUsage())

    async def close(self) -> None:
        raise AssertionError("it is the caller's")


def test_a_provider_is_a_small_thing():
    """A model of one's own, with a price of one's own."""
    with Agent(OwnModel(), prices={"adder": Price(input=3.0, output=1.0)}, system_prompt=PROMPT) as agent:
        answer = agent.ask("Add.")

    assert answer.text == "4"
    assert answer.usage.cost == 3.0


@pytest.mark.parametrize("option", [{"base_url": "http://x"}, {"api_key": "k"}, {"images": False}])
def test_options_that_a_provider_has_itself_are_refused_beside_it(option):
    """They would do nothing."""
    with pytest.raises(InvalidArgumentError, match="model='own'"):
        Agent(OwnModel(), **option)


class SilentModel(OwnModel):
    """A model that breaks the protocol."""

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        yield TextWritten(text="Hm")

    async def close(self) -> None: ...


def test_a_provider_without_a_message_is_reported():
    """It is the provider that is wrong, and the error names it."""
    with Agent(SilentModel(), system_prompt=PROMPT) as agent, pytest.raises(ModelError, match="own:adder"):
        agent.ask("Add.")


def test_no_sdk_is_loaded_before_a_model_is_asked():
    """Whoever only names a model does not pay for it."""
    code = (
        "import sys; from fumehood.llm import Agent; Agent('openai:m'); Agent('anthropic:m'); "
        "print({'openai', 'anthropic', 'rich', 'jiter'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_two_faces_are_the_same():
    """Name by name, parameter by parameter."""

    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {"last_answer"}

    def shape(function: object) -> list[tuple[str, object]]:
        return [(item.name, item.default) for item in inspect.signature(function).parameters.values()]

    assert names(Agent) == names(AsyncAgent)
    assert shape(Agent.__init__) == shape(AsyncAgent.__init__)
    assert shape(ask) == shape(aask)

    for name in names(Agent):
        ours, theirs = vars(Agent)[name], vars(AsyncAgent)[name]
        assert isinstance(ours, property) == isinstance(theirs, property)
        assert isinstance(ours, property) or shape(ours) == shape(theirs)


def test_an_answer_is_one_line():
    """However long its text is, and however much it made."""
    cell = ModelCell(call_id="1", code="1", result=ToolResult(text="1"))
    answer = Answer(text="line\n" * 100, stopped="answered", cells=(cell,))
    assert (repr(answer).count("\n"), len(repr(answer)) < 150) == (0, True)
    assert repr(answer).endswith("stopped='answered', 1 cell)")
