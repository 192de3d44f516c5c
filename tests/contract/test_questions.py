"""Questions to a context, and comms, over the port that every backend implements."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from fumehood import ContextNotFoundError, InvalidArgumentError, SandboxNotFoundError
from fumehood.api.handle import default_backend
from fumehood.port.backend import Backend
from fumehood.values.events import CommEvent, ExecutionFinished, ExecutionStarted, StdoutEvent
from fumehood.values.limits import Limits
from fumehood.values.questions import (
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
)
from fumehood.values.requests import CreateContext, ExecuteRequest, InputAnswer, RemoveContext, SandboxSpec

ENDLESS = "class Endless:\n    def __dir__(self):\n        while True: pass\nit = Endless()\nkept = 1"
Run = Callable[[Coroutine[Any, Any, Any]], Any]
needs_comm = pytest.mark.skipif(
    importlib.util.find_spec("comm") is None, reason="needs the package comm in the test environment"
)
needs_widgets = pytest.mark.skipif(
    importlib.util.find_spec("ipywidgets") is None, reason="needs ipywidgets in the test environment"
)


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs on a loop that is not the engine's."""
    with asyncio.Runner() as runner:
        yield runner.run


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[Backend, str]]:
    backend = default_backend()
    info = await backend.create(SandboxSpec(limits=Limits(grace_seconds=0.2), **options))
    try:
        yield backend, info.id
    finally:
        await backend.kill(info.id)


async def execute(backend: Backend, sandbox: str, code: str, **options: Any) -> list[Any]:
    async with aclosing(backend.execute(sandbox, ExecuteRequest(code=code, **options))) as events:
        return [event async for event in events]


async def tell(backend: Backend, sandbox: str, context_id: str | None = None, **fields: Any) -> list[Any]:
    async with aclosing(backend.send_comm(sandbox, CommMessage(**fields), context_id)) as events:
        return [event async for event in events]


def test_each_question_has_its_answer(run):
    """About what the context knows; the questions are no executions."""

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            await execute(backend, sandbox, "def double(number):\n    'Twice as much.'\ndoubtful = 1")
            completion = await backend.ask(sandbox, CompleteCode(code="x = 1; doub + 1", cursor=11))
            assert completion == CodeCompletion(matches=("double", "doubtful"), start=7, end=11)
            inspection = await backend.ask(sandbox, InspectCode(code="double(1)", cursor=2))
            assert isinstance(inspection, CodeInspection)
            assert "Twice as much." in inspection.data["text/plain"]
            assert await backend.ask(sandbox, InspectCode(code="nobody", cursor=2)) == CodeInspection()
            assert await backend.ask(sandbox, CheckComplete(code="if x:")) == CodeCompleteness(
                status="incomplete", indent="    "
            )
            execution = await backend.run(sandbox, ExecuteRequest(code="1"))
            assert execution.execution_count == 2

    run(talk())


def test_contexts_have_answers_of_their_own(run):
    """By id; bash says whether code is whole, and nothing else."""

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            (python,) = await backend.context_call(sandbox, CreateContext())
            await execute(backend, sandbox, "only_here = 1", context_id=python.id)
            there = CompleteCode(code="only_h", cursor=6, context_id=python.id)
            assert (await backend.ask(sandbox, there)).matches == ("only_here",)
            assert (await backend.ask(sandbox, CompleteCode(code="only_h", cursor=6))).matches == ()
            (bash,) = await backend.context_call(sandbox, CreateContext(language="bash"))
            check = CheckComplete(code="for a in b", context_id=bash.id)
            assert (await backend.ask(sandbox, check)).status == "incomplete"
            empty = await backend.ask(sandbox, CompleteCode(code="ec", cursor=2, context_id=bash.id))
            assert empty == CodeCompletion(matches=(), start=2, end=2)
            await backend.context_call(sandbox, RemoveContext(context_id=python.id))

            with pytest.raises(ContextNotFoundError):
                await backend.ask(sandbox, there)

            with pytest.raises(ContextNotFoundError):
                await tell(backend, sandbox, "nobody", kind="comm_msg", comm_id="c")

            with pytest.raises(SandboxNotFoundError):
                await backend.ask("nobody", CheckComplete(code="1"))

    run(talk())


def test_a_question_waits_for_what_runs(run):
    """It is asked when the code before has ended, and sees what that has made."""

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            request = ExecuteRequest(code="made_late = input()", allow_input=True)

            async with aclosing(backend.execute(sandbox, request)) as events:
                async for event in events:
                    if isinstance(event, ExecutionStarted):
                        question = CompleteCode(code="made_l", cursor=6)
                        asking = asyncio.create_task(backend.ask(sandbox, question))
                    elif hasattr(event, "prompt"):
                        assert not asking.done()
                        answer = InputAnswer(
                            execution_id=event.execution_id, request_id=event.request_id, text="x"
                        )
                        await backend.answer_input(sandbox, answer)

            assert (await asking).matches == ("made_late",)

    run(talk())


def test_an_interrupt_ends_a_question(run):
    """A look at an object that never ends: the answer is empty, the state is kept."""

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            await execute(backend, sandbox, ENDLESS)
            asking = asyncio.create_task(backend.ask(sandbox, CompleteCode(code="it.", cursor=3)))

            while not await backend.interrupt(sandbox, None):
                await asyncio.sleep(0)

            assert await asking == CodeCompletion(matches=(), start=3, end=3)
            assert (await backend.run(sandbox, ExecuteRequest(code="kept"))).text == "1"

    run(talk())


def test_a_cancelled_caller_ends_the_question(run):
    """The context is free for the next."""

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            await execute(backend, sandbox, ENDLESS)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(backend.ask(sandbox, CompleteCode(code="it.", cursor=3)), 0.1)

            assert (await backend.run(sandbox, ExecuteRequest(code="kept"))).text == "1"

    run(talk())


@needs_comm
def test_comms_speak_in_both_directions(run):
    """What code sends comes as events; what it is sent runs its handlers, whose output comes as events too."""
    code = (
        "import comm\n"
        "one = comm.create_comm(target_name='there', comm_id='c1', data={'a': 1}, buffers=[b'xy'])\n"
        "def heard(message):\n"
        "    print('heard', message['content']['data'], [bytes(one) for one in message['buffers']])\n"
        "    one.send({'thanks': True})\n"
        "one.on_msg(heard)\n"
    )

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            events = await execute(backend, sandbox, code)
            (comm,) = (event for event in events if isinstance(event, CommEvent))
            assert (comm.kind, comm.comm_id, comm.target_name) == ("comm_open", "c1", "there")
            assert (comm.data, comm.buffers) == ({"a": 1}, (b"xy",))
            events = await tell(
                backend, sandbox, kind="comm_msg", comm_id="c1", data={"b": 2}, buffers=(b"\0",)
            )
            assert isinstance(events[0], ExecutionStarted)
            assert isinstance(events[-1], ExecutionFinished)
            assert "".join(event.text for event in events if isinstance(event, StdoutEvent)) == (
                "heard {'b': 2} [b'\\x00']\n"
            )
            assert [event.data for event in events if isinstance(event, CommEvent)] == [{"thanks": True}]

    run(talk())


@needs_widgets
def test_a_slider_of_ipywidgets_moves(run):
    """The value that a front end sets is the value that code sees, and its observers run."""
    code = (
        "import ipywidgets\n"
        "slider = ipywidgets.IntSlider(value=3)\n"
        "slider.observe(lambda change: print(change.new), 'value')\n"
        "slider\n"
    )

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            events = await execute(backend, sandbox, code)
            opened_models = {
                event.data["state"]["_model_name"]: event.comm_id
                for event in events
                if isinstance(event, CommEvent) and event.kind == "comm_open"
            }
            view = events[-1].execution.results[0].parts["application/vnd.jupyter.widget-view+json"]
            assert opened_models["IntSliderModel"].encode() in view
            update = {"method": "update", "state": {"value": 42}, "buffer_paths": []}
            events = await tell(
                backend, sandbox, kind="comm_msg", comm_id=opened_models["IntSliderModel"], data=update
            )
            assert [event.text for event in events if isinstance(event, StdoutEvent)] == ["42\n"]
            assert (await backend.run(sandbox, ExecuteRequest(code="slider.value"))).text == "42"

    run(talk())


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "comm_shout"},
        {"comm_id": ""},
        {"comm_id": "c" * 300},
        {"data": []},
        {"data": {"x": float("nan")}},
        {"data": {"x": object()}},
        {"data": {"x": "y" * (5 << 20)}},
        {"buffers": [b"x"]},
        {"buffers": ("x",)},
        {"buffers": (bytes(9 << 20),)},
    ],
)
def test_a_comm_message_that_cannot_be_is_refused(wrong):
    """Before anything is sent."""
    with pytest.raises(InvalidArgumentError):
        CommMessage(**{"kind": "comm_msg", "comm_id": "c", **wrong})


def test_a_comm_message_too_deep_for_the_wire_is_refused(run):
    """And the context is none the worse for it."""
    deep: dict[str, Any] = {}

    for _ in range(50):
        deep = {"x": deep}

    async def talk() -> None:
        async with opened() as (backend, sandbox):
            with pytest.raises(InvalidArgumentError):
                await tell(backend, sandbox, kind="comm_msg", comm_id="c", data=deep)

            assert (await backend.run(sandbox, ExecuteRequest(code="1"))).text == "1"

    run(talk())
