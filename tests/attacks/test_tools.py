"""C01 to C05: a guest that forges calls of tools, floods them, keeps them, and listens for what it should not hear.

A function of the host's is called with arguments that fit its schema, by the execution that was given it, while that
runs, and no more often than was allowed; the guest hears its value or one line. The control is the honest call,
and the same message sent by hand.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest
from tests.attacks.test_wire import SPEAKER

from fumehood import AsyncSandbox, HostTool, Limits, ProtocolViolationError, SandboxError, ToolCallEvent
from fumehood.values.requests import ExecuteRequest, ToolAnswer, ToolSpec
from fumehood_wire.frames import CODES

MIB = 1 << 20
CALLER = (
    SPEAKER
    + '''
def now():
    found = [one.id for one in gc.get_objects() if type(one).__name__ == 'GuestExecution' and hasattr(one, 'id')]
    return max((name for name in found if name[-1:].isdigit()), key=lambda name: int(name.rpartition('-')[2]))

def call(number=1, content=b'{"query":"forged"}', **changes):
    return frame({'type': 'tool_request', 'id': now(), 'at': 1.0, 'call': number, 'name': 'search', **changes}, content)

def go_on_behind(number):
    """Lets the next honest call have a higher number than this."""
    line = next(cell.cell_contents for cell in search.__closure__ if hasattr(cell.cell_contents, '_calls'))
    line._calls = number

def before():
    prefix, _, count = now().rpartition('-')
    return f'{prefix}-{int(count) - 1}'
'''
)


@pytest.fixture
def caller(make):
    """A sandbox whose context can forge calls."""
    mine = make(limits=Limits(grace_seconds=0.1))
    mine.run(CALLER)
    return mine


class Search:
    """A tool that notes what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, query: str) -> str:
        self.asked.append(query)
        return query.upper()


class Held:
    """A tool whose answers are large; it knows how many of them there are at a time.

    Args:
        size_bytes: Of each.
        calls: After how many nothing more is waited for.
        on_last: Called at the last of them.
    """

    class Answer(str):
        """Text that tells when it goes."""

    def __init__(self, size_bytes, calls, on_last):
        self._size_bytes = size_bytes
        self._calls = calls
        self._on_last = on_last
        self._now = 0
        self.asked = 0
        self.most = 0

    def __call__(self, query: str) -> str:
        answer = self.Answer("x" * self._size_bytes)
        weakref.finalize(answer, self._gone)
        self.asked += 1
        self._now += 1
        self.most = max(self.most, self._now)

        if self.asked == self._calls:
            self._on_last()

        return answer

    def _gone(self):
        self._now -= 1


class HeldApart(Held):
    """The same as a coroutine function."""

    async def __call__(self, query: str) -> str:
        return super().__call__(query)


def attack(caller, code, tool):
    """Runs code that breaks the wire; a breach that comes after the reply is noticed by the next call."""
    caller.sandbox.run_code(code, tools={} if tool is None else {"search": tool}, timeout=60)
    caller.sandbox.run_code("1")


def test_c01_an_honest_call_and_one_by_hand_arrive(caller):
    """The control: what is refused below is refused for what it says."""
    tool = Search()
    execution = caller.sandbox.run_code(
        "answer = search(query='honest')\nraw(call(2))\nanswer", tools={"search": tool}
    )
    assert execution.text == "'HONEST'"
    assert execution.error is None
    caller.sandbox.run_code("1")
    # The second may have come with the end of the cell, and is then nobody's.
    assert tool.asked in (["honest"], ["honest", "forged"])
    assert caller.run("print(1)") == "1\n"


BREACHES = {
    "a tool that was not given": ("raw(call(name='delete_everything'))", "order"),
    "a name that is none": ("raw(call(name='../search'))", "field"),
    "a long name": ("raw(call(name='x' * 1000))", "field"),
    "a number twice": ("raw(call(5), call(5))", "order"),
    "a number backwards": ("raw(call(5), call(4))", "order"),
    "number zero": ("raw(call(0))", "field"),
    "a number beyond all": ("raw(call(10**9))", "field"),
    "no number": ("raw(call(True))", "field"),
    "a flood": ("raw(*[call(n + 1) for n in range(5000)])", "order"),
    "the execution before": ("raw(call(id=before()))", "order"),
    "the execution to come": ("raw(call(id=now() + '0'))", "order"),
    "somebody else's execution": ("raw(call(id='0123456789abcdef-1'))", "order"),
    "after its end": ("raw(reply(id=now()), call())", "order"),
    "arguments that are a list": ("raw(call(1, b'[1]'))", "payload"),
    "arguments that are no JSON": ("raw(call(1, b'query'))", "syntax"),
    "arguments with NaN": ("raw(call(1, b'{\"query\":NaN}'))", "number"),
    "deep arguments": ("raw(call(1, b'{\"query\":' + b'[' * 99 + b']' * 99 + b'}'))", "depth"),
    "an argument twice": ('raw(call(1, b\'{"query":"a","query":"b"}\'))', "duplicate_key"),
    "many arguments": ("raw(call(1, b'{\"query\":[' + b'1,' * 200_000 + b'1]}'))", "nodes"),
    "arguments of 2 MiB": ("raw(call(1, b'{\"query\":\"' + b'x' * (2 << 20) + b'\"}'))", "payload"),
    "an unknown field": ("raw(call(approved=True))", "field"),
    "a reply as the host says it": (
        "raw(frame({'type': 'tool_reply', 'id': now(), 'call': 1, 'ok': True}))",
        "unknown_type",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_c01_a_forged_call_is_a_typed_error(breach, caller, host_memory):
    """The sandbox has ended, and the function has not been called for it."""
    code, rule = BREACHES[breach]
    assert rule in CODES
    tool = Search()
    before = host_memory()

    with pytest.raises(ProtocolViolationError) as caught:
        attack(caller, code, tool)

    assert f"({rule})" in str(caught.value)
    assert len(tool.asked) <= 100
    assert set(tool.asked) <= {"forged"}
    assert host_memory() - before < 32 * MIB
    assert not caller.sandbox.is_running()


def test_c01_without_a_tool_none_is_called(caller):
    """Without tools there is no one to ask."""
    with pytest.raises(ProtocolViolationError, match=r"\(order\)"):
        attack(caller, "raw(call())", None)


def test_c02_forged_arguments_do_not_reach_the_function(caller):
    """The schema is held on the caller's side: no name, no type and no value that it does not allow."""
    seen = []

    def search(query: str) -> None:
        seen.append(query)

    forged = [
        b'{"query":7}',
        b"{}",
        b'{"query":"x","self":1}',
        b'{"query":"x","__class__":"y"}',
        b'{"query":{"a":1}}',
        b'{"query":null}',
        b'{"":""}',
        rb'{"query":"\ud800"}',
        rb'{"query":"\uDFFF"}',
    ]
    code = (
        f"raw(*[call(n + 1, content) for n, content in enumerate({forged!r})])\n"
        "go_on_behind(90)\n"
        "search(query='last')"
    )
    execution = caller.sandbox.run_code(code, tools={"search": search})
    assert execution.error is None
    assert seen == ["last"]
    assert [call.ok for call in execution.tool_calls] == [False] * len(forged) + [True]


def test_c03_calls_that_wait_are_bounded(caller, host_memory):
    """A hundred calls of a mebibyte each to a function that never answers: a few wait, the others are refused."""
    entered = []

    async def search(query: str) -> None:
        entered.append(len(query))
        await asyncio.Event().wait()

    before = host_memory()
    code = (
        "big = b'{\"query\":\"' + b'x' * 1_000_000 + b'\"}'\n"
        "raw(*[call(n + 1, big) for n in range(99)])\n"
        "go_on_behind(99)\n"
        "search(query='x' * 1_000_000)"
    )
    execution = caller.sandbox.run_code(code, tools={"search": HostTool(search, awaited=False)})
    assert "the calls that wait hold more than" in execution.error.value
    assert len(entered) <= 8
    assert len(execution.tool_calls) == 100
    assert host_memory() - before < 96 * MIB


@pytest.mark.parametrize("kind", [Held, HeldApart])
def test_c03_answers_that_are_not_read_are_bounded(kind, caller, host_memory):
    """A guest that never reads makes the host hold no more than its bound."""
    before = host_memory()
    code = (
        "import os, time\n"
        "raw(*[call(n + 1) for n in range(100)])\n"
        "while not os.path.exists('enough'): time.sleep(0.01)"
    )
    held = kind(3 * MIB, 100, lambda: caller.sandbox.files.write("enough", b""))
    tools = {"search": HostTool(held, awaited=False)}
    execution = caller.sandbox.run_code(code, tools=tools, timeout=60)
    assert execution.error is None
    assert sum(call.ok for call in execution.tool_calls) == 64 // 3
    assert held.asked == 100
    # One that is on its way, and one that has just been given.
    assert held.most <= 2
    assert host_memory() - before < 160 * MIB


def test_c03_a_guest_that_does_not_stop_calling_is_stopped(caller):
    """Time limits hold while calls are under way, whatever the code does with the interrupt."""
    execution = caller.sandbox.run_code(
        "while True:\n    try: search(query='x')\n    except BaseException: pass",
        tools={"search": Search()},
        timeout=0.5,
    )
    assert execution.error.kind == "time_limit"
    assert len(execution.tool_calls) <= 100


def test_c04_nothing_of_the_host_is_in_an_error(caller, canary):
    """Neither what an exception says, nor what caused it, nor where."""

    def search(query: str) -> None:
        secret = canary
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise ValueError(f"{secret} in {__file__}", secret) from error

    execution = caller.sandbox.run_code(
        "try: search(query='x')\n"
        "except ToolError as error:\n"
        "    import traceback\n"
        "    found = [repr(error), vars(error), repr(error.__cause__), repr(error.__context__), error.args]\n"
        "    found.append(traceback.format_exc())\n"
        "    found.append([one for one in gc.get_objects() if type(one) is dict and 'ok' in one])\n"
        "print(found)",
        tools={"search": search},
    )
    heard = "".join(execution.logs.stdout)
    assert "search() failed with ValueError" in heard
    assert canary not in heard
    assert __file__ not in heard


def test_c04_the_function_itself_does_not_go_in(caller, canary):
    """Its name, its docstring and its arguments' names do; its code, its defaults and what it holds do not."""

    def search(query: str = canary, *, held=canary) -> str:  # type: ignore[no-untyped-def]
        """Looks."""
        return "ok"

    looked = (
        "import inspect\n"
        "print(repr(search), search.__doc__, inspect.signature(search), search.__defaults__, search.__kwdefaults__)\n"
        "print([repr(cell.cell_contents) for cell in search.__closure__])"
    )
    tools = {
        "search": HostTool(search, parameters={"type": "object", "properties": {"query": {"type": "string"}}})
    }
    assert canary not in caller.run(looked, tools=tools)


def test_c05_an_answer_goes_to_its_own_call_only():
    """Whoever answers with a name of another execution, or another call, or twice, answers nobody."""

    async def main():
        async with AsyncSandbox() as first, AsyncSandbox() as second:
            backend = first._sandbox_handle.backend
            request = ExecuteRequest(code="search()", tools=(ToolSpec(name="search"),))
            running = [backend.execute(one.id, request) for one in (first, second)]
            calls = []

            for events in running:
                async for event in events:
                    if isinstance(event, ToolCallEvent):
                        calls.append(event)
                        break

            mine, other = calls
            wrong = [
                (first.id, other.execution_id, other.request_id),
                (first.id, other.execution_id, mine.request_id + "0"),
                (first.id, mine.execution_id, other.request_id),
                (second.id, mine.execution_id, mine.request_id),
                (first.id, "", ""),
            ]

            for sandbox_id, execution_id, request_id in wrong:
                answer = ToolAnswer(execution_id=execution_id, request_id=request_id, value="wrong")
                await backend.answer_tool(sandbox_id, answer)

            for sandbox, call, value in ((first, mine, "mine"), (second, other, "other")):
                for said in (value, "again"):
                    answer = ToolAnswer(
                        execution_id=call.execution_id, request_id=call.request_id, value=said
                    )
                    await backend.answer_tool(sandbox.id, answer)

            return [[event async for event in events][-1].execution.text for events in running]

    assert asyncio.run(main()) == ["'mine'", "'other'"]


def test_c05_a_neighbour_is_not_disturbed(make, caller):
    """While one sandbox forges, the calls of another have their own answers."""
    neighbour = make()
    ended = threading.Event()

    def forge():
        try:
            attack(caller, "raw(*[call(n + 1, id=f'{now()[:16]}-{n}') for n in range(2000)])", Search())
        except SandboxError:
            ended.set()

    helper = threading.Thread(target=forge)
    helper.start()

    for number in range(20):
        text = neighbour.sandbox.run_code(f"search(query='n{number}')", tools={"search": Search()}).text
        assert text == f"'N{number}'"

    helper.join()
    assert ended.is_set()
