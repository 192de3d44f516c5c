"""Tools: functions of the caller's that code inside calls while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from fumehood import (
    ExecutionFinished,
    HostTool,
    InvalidArgumentError,
    Limits,
    SandboxClosedError,
    ToolCall,
    ToolCallEvent,
    ToolError,
)


class Shelf:
    """Tools that note how they were called."""

    def __init__(self):
        self.calls = []
        self.cancelled = threading.Event()
        self.entered = threading.Event()
        self.at_once = 0
        self.most_at_once = 0

    def search(self, query: str, limit: int = 3) -> list[str]:
        """Looks for words."""
        self.calls.append((query, limit))
        return [f"{query}{number}" for number in range(limit)]

    async def fetch(self, key: int) -> int:
        """Gives the key back when two have asked."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)

        while self.most_at_once < 2:
            await asyncio.sleep(0.001)

        self.at_once -= 1
        return key

    async def never(self) -> None:
        """Waits until it is cancelled."""
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def shelf():
    return Shelf()


def outcomes(execution):
    return [(call.name, call.ok) for call in execution.tool_calls]


def test_a_plain_function_is_called_plainly(sandbox, shelf):
    """Arguments by name, a JSON value back, and the execution tells of it."""
    execution = sandbox.run_code(
        "rows = search(query='x', limit=2); print(rows)\nsearch(query='y')", tools={"search": shelf.search}
    )
    assert execution.logs.stdout == ["['x0', 'x1']\n"]
    assert execution.text == "['y0', 'y1', 'y2']"
    assert shelf.calls == [("x", 2), ("y", 3)]
    assert outcomes(execution) == [("search", True), ("search", True)]
    assert all(call.seconds >= 0 for call in execution.tool_calls)


def test_coroutines_run_at_the_same_time(sandbox, shelf):
    """An `async def` is awaited inside; one that waits for the other gets it."""
    execution = sandbox.run_code(
        "import asyncio\nawait asyncio.gather(fetch(key=1), fetch(key=2))", tools={"fetch": shelf.fetch}
    )
    assert execution.text == "[1, 2]"
    assert shelf.most_at_once == 2


def test_an_async_function_may_be_called_plainly(sandbox, shelf):
    """What code inside awaits is the caller's choice; threads inside wait at the same time."""
    execution = sandbox.run_code(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool: found = list(pool.map(lambda n: fetch(key=n), (1, 2)))\n"
        "found",
        tools={"fetch": HostTool(shelf.fetch, awaited=False)},
    )
    assert execution.text == "[1, 2]"


def test_a_plain_function_runs_where_the_caller_waits(sandbox, shelf):
    """As the other callbacks do, so it may use what belongs to that thread; of several threads inside one by one."""
    threads = []

    def where(n: int) -> int:
        threads.append(threading.get_ident())
        return n

    execution = sandbox.run_code(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: found = list(pool.map(lambda n: where(n=n), range(8)))\n"
        "found == list(range(8))",
        tools={"where": where},
    )
    assert execution.text == "True"
    assert threads == [threading.get_ident()] * 8


def test_a_tool_may_use_the_sandbox(face, shelf):
    """A callback is no special place."""
    sandbox = face.open()

    def store(text: str) -> None:
        if face.is_sync:
            sandbox.files.write("stored", text)
            return None

        return sandbox.async_impl.files.write("stored", text)

    # A plain function that gives something to await is awaited.
    tools = {"store": HostTool(store)} if face.is_sync else {"store": lambda text: _noted(store(text))}
    assert sandbox.run_code("store(text='x')\nopen('/home/user/stored').read()", tools=tools).text == "'x'"


async def _noted(awaitable):
    await awaitable


def test_text_of_all_kinds_goes_both_ways(sandbox):
    """Characters beyond the first plane, separators, controls; halves of characters do not."""
    text = "ä😀\x00\u2028\x85\x1b"
    execution = sandbox.run_code(f"echo(text={text!r}) == {text!r}", tools={"echo": lambda text: text})
    assert execution.text == "True"
    halves = sandbox.run_code("echo(text='')", tools={"echo": lambda text: "\ud800"})
    assert "no JSON value" in halves.error.value
    told = sandbox.run_code("fail()", tools={"fail": lambda: _raise(ToolError("half \ud800"))})
    assert told.error.value == r"half \ud800"


def _raise(error):
    raise error


def test_a_tool_error_is_reported_and_nothing_else(sandbox, caplog):
    """The message of a ToolError goes in; of any other exception the name of its type and no word more."""

    class NoSuchRowError(ToolError):
        pass

    def fail(how: str) -> None:
        if how == "mine":
            raise ToolError("ask for less")

        if how == "named":
            raise NoSuchRowError("row 7")

        raise ValueError("/root/secret")

    code = (
        "def told(how):\n"
        "    try: fail(how=how)\n"
        "    except ToolError as error: return str(error)\n"
        "[told('mine'), told('named'), told('other')]"
    )
    with caplog.at_level(logging.WARNING, logger="fumehood.api"):
        execution = sandbox.run_code(code, tools={"fail": fail})

    assert execution.text == "['ask for less', 'NoSuchRowError: row 7', 'fail() failed with ValueError']"
    assert outcomes(execution) == [("fail", False)] * 3
    # The caller hears all of it.
    assert "/root/secret" in caplog.text


def test_arguments_are_held_against_the_schema(sandbox, shelf):
    """Before the function is called; the code may catch it and ask rightly."""
    code = (
        "def told(**given):\n"
        "    try: search(**given)\n"
        "    except ToolError as error: return str(error)\n"
        "print(told(query=7)); print(told(limit=1)); print(told(query='x', more=1)); print(told(query=object()))"
    )
    printed = "".join(sandbox.run_code(code, tools={"search": shelf.search}).logs.stdout).splitlines()
    assert printed == [
        "search(): the argument 'query' is of type integer, and must be of type string",
        "search(): the argument 'query' is missing",
        "search(): the argument 'more' is not known; known are: query, limit",
        "search(): the argument query is of type object, which JSON does not know",
    ]
    assert shelf.calls == []


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, {1, 2}, object(), "x" * (5 << 20), 10**30])
def test_what_a_tool_gives_is_json(sandbox, value, caplog):
    """Anything else is an error inside and a warning outside, and the value stays out."""
    execution = sandbox.run_code("give()", tools={"give": lambda: value})
    assert execution.error.name == "ToolError"
    assert "no JSON value" in execution.error.value
    assert "gave no JSON" in caplog.text


def test_large_values_go_both_ways(sandbox):
    """As far as the bounds allow."""
    given = []
    tools = {"echo": lambda data: given.append(data) or data * 4}
    execution = sandbox.run_code(
        "len(echo(data='ä' * 100_000)), len(echo(data='x' * 1_000_000))", tools=tools
    )
    assert execution.text == "(400000, 4000000)"
    assert [len(one) for one in given] == [100_000, 1_000_000]


@pytest.mark.parametrize(
    ("said", "result"),
    [(True, "['x0']"), (None, "['x0']"), (False, "the call of search() was denied"), ("not on Sundays",) * 2],
)
def test_a_call_can_be_denied(sandbox, shelf, said, result):
    """The callback sees name and arguments before the function is called; a text is what the code sees."""
    asked = []

    def approve(call):
        asked.append(call)
        return said

    execution = sandbox.run_code(
        "try: found = search(query='x', limit=1)\nexcept ToolError as error: found = str(error)\nprint(found)",
        tools={"search": shelf.search},
        on_tool_call=approve,
    )
    assert execution.logs.stdout == [f"{result}\n"]
    assert asked == [ToolCall(execution_id=execution.id, name="search", arguments={"query": "x", "limit": 1})]
    assert bool(shelf.calls) == (said is True or said is None)


def test_the_callback_may_be_asynchronous(sandbox, shelf):
    """On both faces."""

    async def approve(call):
        await asyncio.sleep(0)
        return "no"

    execution = sandbox.run_code("search(query='x')", tools={"search": shelf.search}, on_tool_call=approve)
    assert (execution.error.name, execution.error.value) == ("ToolError", "no")


def test_what_the_callback_raises_ends_the_run(sandbox, shelf):
    """Nothing is called, the code is interrupted, and the context serves on."""

    def approve(call):
        raise LookupError("who am I to say")

    with pytest.raises(LookupError, match="who am I"):
        sandbox.run_code(
            "search(query='x')\nwhile True: pass", tools={"search": shelf.search}, on_tool_call=approve
        )

    assert shelf.calls == []
    assert sandbox.run_code("6 * 7").text == "42"


def test_ctrl_c_in_a_tool_is_raised(sync_face, shelf):
    """It is the caller's, whatever runs in its thread; the code is interrupted."""
    sandbox = sync_face.open()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code("interrupt()\nwhile True: pass", tools={"interrupt": interrupt})

    assert sandbox.run_code("6 * 7").text == "42"


def test_each_call_is_an_event(sandbox, shelf):
    """It comes before its answer."""
    code = "print('before')\nsearch(query='x', limit=1)\nprint('after')"
    events = list(sandbox.stream_code(code, tools={"search": shelf.search}))
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["ExecutionStarted", "StdoutEvent", "ToolCallEvent", "StdoutEvent", "ExecutionFinished"]
    call = events[2]
    assert isinstance(call, ToolCallEvent)
    assert (call.name, call.arguments) == ("search", {"query": "x", "limit": 1})
    assert call.execution_id == events[0].execution_id
    assert call.at_seconds > 0
    assert outcomes(events[-1].execution) == [("search", True)]


def test_a_call_has_its_time(sandbox, shelf):
    """It fails, the function is cancelled, and the cell goes on."""
    execution = sandbox.run_code(
        "try: await never()\nexcept ToolError as error: print(error)\n'on'",
        tools={"never": HostTool(shelf.never, timeout=0.2)},
    )
    assert execution.logs.stdout == ["never() took longer than 0.2 s\n"]
    assert execution.text == "'on'"
    assert outcomes(execution) == [("never", False)]
    assert shelf.cancelled.wait(10)


def test_a_plain_function_that_takes_too_long_is_not_waited_for_inside(sandbox):
    """Its answer comes too late and is dropped; the code hears of it in time."""
    heard = []

    def slow() -> str:
        time.sleep(0.3)
        return "late"

    execution = sandbox.run_code(
        "try: slow()\nexcept ToolError as error: print(error)\nquick()",
        tools={"slow": HostTool(slow, timeout=0.05), "quick": lambda: heard.append(1) or "quick"},
    )
    assert execution.logs.stdout == ["slow() took longer than 0.05 s\n"]
    assert execution.text == "'quick'"


def test_calls_are_counted(sandbox, shelf):
    """Of each tool, and all together; the cell goes on."""
    code = (
        "def last(tool):\n"
        "    try:\n"
        "        for number in range(1000): tool(query='x', limit=0)\n"
        "    except ToolError as error: return number, str(error)\n"
        "print(last(few)); print(last(search))"
    )
    execution = sandbox.run_code(
        code, tools={"few": HostTool(shelf.search, max_calls=2), "search": shelf.search}
    )
    few, many = "".join(execution.logs.stdout).splitlines()
    assert few == "(2, 'few() may be called 2 times by one execution')"
    assert many == "(97, 'search(): this execution has made all of its 100 calls of tools')"
    assert len(shelf.calls) == 99
    assert len(execution.tool_calls) == 100
    more = sandbox.run_code(
        "[search(query='x', limit=0) for _ in range(150)]",
        tools={"search": HostTool(shelf.search, max_calls=150)},
    )
    assert more.error is None


def test_the_time_limit_holds_while_a_tool_is_waited_for(face, shelf):
    """The wait is interrupted, the function cancelled, and the state kept."""
    sandbox = face.open(limits=Limits(grace_seconds=5))
    sandbox.run_code("kept = 1")
    execution = sandbox.run_code("await never()", tools={"never": shelf.never}, timeout=0.3)
    assert execution.error.kind == "time_limit"
    assert not execution.state_lost
    # On a slow machine it may not even have begun.
    assert shelf.cancelled.wait(10) or not shelf.entered.is_set()
    another = Shelf()
    tools = {"never": HostTool(another.never, awaited=False)}
    blocked = sandbox.run_code("never()", tools=tools, timeout=0.3)
    assert blocked.error.kind == "time_limit"
    assert outcomes(blocked) == [("never", False)] or not (outcomes(blocked) or another.entered.is_set())
    assert sandbox.run_code("kept").text == "1"


def test_leaving_the_stream_cancels_the_function(sandbox, shelf):
    """Nobody would hear of it."""
    events = sandbox.stream_code("await never()", tools={"never": shelf.never})

    for event in events:
        if isinstance(event, ToolCallEvent):
            break

    assert shelf.entered.wait(30)
    events.close()
    assert shelf.cancelled.wait(30)
    assert sandbox.run_code("1").text == "1"


def test_an_interrupt_from_elsewhere_ends_a_call(sync_face, shelf):
    """And the function with it."""
    sandbox = sync_face.open()

    def interrupt():
        assert shelf.entered.wait(30)
        sandbox.interrupt()

    helper = threading.Thread(target=interrupt)
    helper.start()
    execution = sandbox.run_code("await never()", tools={"never": shelf.never})
    helper.join()
    assert execution.error.kind == "interrupted"
    assert shelf.cancelled.is_set()


def test_a_kill_ends_a_call(sync_face, shelf):
    """The caller hears that the sandbox is gone, and the function is cancelled."""
    sandbox = sync_face.open()

    def kill():
        assert shelf.entered.wait(30)
        sandbox.kill()

    helper = threading.Thread(target=kill)
    helper.start()

    with pytest.raises(SandboxClosedError):
        sandbox.run_code("await never()", tools={"never": shelf.never})

    helper.join()
    assert shelf.cancelled.is_set()


def test_a_paused_sandbox_gets_its_answer_when_it_goes_on(sync_face):
    """The call waits with everything else in it."""
    sandbox = sync_face.open()

    def pause() -> str:
        assert sandbox.pause()
        assert sandbox.resume()
        assert sandbox.pause()
        resume.start()
        return "went on"

    resume = threading.Timer(0.1, sandbox.resume)
    assert sandbox.run_code("pause()", tools={"pause": pause}).text == "'went on'"
    resume.join()


def test_cancelling_the_run_cancels_the_function(async_face, shelf):
    """And the sandbox is at rest afterwards."""
    sandbox = async_face.open().async_impl

    async def main():
        task = asyncio.create_task(sandbox.run_code("await never()", tools={"never": shelf.never}))
        await asyncio.to_thread(shelf.entered.wait, 30)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task

        assert shelf.cancelled.is_set()
        assert (await sandbox.run_code("6 * 7")).text == "42"

    async_face.runner.run(main())


def test_tools_are_there_for_one_execution(sandbox, shelf):
    """The next one does not know them, and a reference that was kept says so."""
    sandbox.run_code("kept = search; kept(query='x')", tools={"search": shelf.search})
    assert sandbox.run_code("search(query='x')").error.name == "NameError"
    error = sandbox.run_code("kept(query='x')").error
    assert (error.name, error.value) == ("ToolError", "search() was given to an execution that has ended")
    again = sandbox.run_code("kept(query='x')", tools={"search": shelf.search})
    assert "has ended" in again.error.value
    assert len(shelf.calls) == 1


def test_a_transaction_may_call_tools(sandbox, shelf):
    """What they did outside stays done; what the code made of it is undone with the rest."""
    code = "rows = search(query='x', limit=1)\n"
    failed = sandbox.run_code(code + "1 / 0", tools={"search": shelf.search}, transactional=True)
    assert (failed.error.name, outcomes(failed)) == ("ZeroDivisionError", [("search", True)])
    assert sandbox.run_code("'rows' in globals(), 'search' in globals()").text == "(False, False)"
    kept = sandbox.run_code(code + "rows", tools={"search": shelf.search}, transactional=True)
    assert (kept.error, kept.text) == (None, "['x0']")
    assert sandbox.run_code("rows").text == "['x0']"
    assert len(shelf.calls) == 2


def test_a_context_of_its_own_has_tools_too(sandbox, shelf):
    """Several contexts call at the same time, each for itself."""
    context = sandbox.create_code_context()
    execution = sandbox.run_code(
        "search(query='c', limit=1)", context=context, tools={"search": shelf.search}
    )
    assert execution.text == "['c0']"
    assert sandbox.run_code("'search' in globals()").text == "False"


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([], "mapping"),
        ({"not a name": lambda: None}, "tool name"),
        ({"class": lambda: None}, "tool name"),
        ({"ToolError": lambda: None}, "tool name"),
        ({"x": 5}, "a function or a HostTool"),
        ({"x": HostTool(lambda: None, name="y")}, "as the mapping names it"),
        ({"x": HostTool(lambda: None, timeout=0)}, "timeout"),
        ({"x": HostTool(lambda: None, max_calls=0)}, "max_calls"),
        ({"x": HostTool(lambda: None, description=5)}, "description"),
        ({"x": HostTool(lambda: None, parameters={"type": "array"})}, "JSON Schema"),
        ({"x": HostTool(lambda: None, parameters={"properties": {"a": {"type": "text"}}})}, "JSON Schema"),
        ({f"tool_{n}": lambda: None for n in range(65)}, "at most 64"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_before_anything_runs(sandbox, tools, words):
    """The error names it."""
    if tools == []:
        tools = [print]

    with pytest.raises(InvalidArgumentError, match=words):
        sandbox.run_code("open('/home/user/ran', 'w')", tools=tools)

    assert not sandbox.files.exists("ran")


def test_bash_has_no_tools(sandbox, shelf):
    """It is said before anything runs."""
    with pytest.raises(InvalidArgumentError, match="tools"):
        sandbox.run_code("search", language="bash", tools={"search": shelf.search})

    context = sandbox.create_code_context(language="bash")

    with pytest.raises(InvalidArgumentError, match="tools"):
        sandbox.run_code("search", context=context, tools={"search": shelf.search})


def test_a_forked_child_has_no_tools(sandbox, shelf):
    """It is told so; the cell that forked it calls on."""
    execution = sandbox.run_code(
        "import os\n"
        "if os.fork() == 0:\n"
        "    try: search(query='child')\n"
        "    except ToolError as error: print(error)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "search(query='parent', limit=1)",
        tools={"search": shelf.search},
    )
    assert execution.text == "['parent0']"
    assert shelf.calls == [("parent", 1)]


def test_the_last_event_of_a_stream_is_still_the_end(sandbox, shelf):
    """With tools as without."""
    events = list(sandbox.stream_code("1", tools={"search": shelf.search}))
    assert isinstance(events[-1], ExecutionFinished)
    assert events[-1].execution.tool_calls == ()
