"""Tools inside: whoever waits gets its own answer, threads and coroutines together, and nothing outlives its cell."""

from __future__ import annotations

import json

import pytest


def tool(name, *required, awaited=False, description="", optional=()):
    return {
        "name": name,
        "description": description,
        "required": list(required),
        "optional": list(optional),
        "awaited": awaited,
    }


SEARCH = tool("search", "query", description="Looks for words.", optional=("limit",))
FETCH = tool("fetch", "key", awaited=True)


class Host:
    """Runs cells whose calls of tools are answered by a function, at once or, with `hold`, several together.

    The function gets name and arguments; what it raises is answered as an error.
    """

    def __init__(self, context):
        self.context = context
        self.calls = []
        self._waiting = []

    def run(
        self, code, answer=lambda name, arguments: arguments, *, hold=1, tools=(SEARCH, FETCH), **options
    ):
        def on_message(header, payload):
            if header["type"] != "tool_request":
                return

            self.calls.append((header["name"], json.loads(payload)))
            self._waiting.append((header["call"], *self.calls[-1]))

            if len(self._waiting) < hold:
                return

            # The last one first: nobody may rely on an order.
            waiting, self._waiting = self._waiting[::-1], []

            for call, name, arguments in waiting:
                try:
                    self.context.answer_tool(call, answer(name, arguments))
                except LookupError as error:
                    self.context.answer_tool(call, str(error), ok=False)

        given = {"tools": list(tools), "tool_calls": 100, **options}
        return self.context.run(code, on_message=on_message, **given)


@pytest.fixture
def host(context):
    return Host(context)


def refuse(name, arguments):
    raise LookupError("no such row")


def test_a_call_gives_its_answer(host):
    """Arguments by name, JSON both ways; what was printed before comes before."""
    outcome = host.run(
        "print('before', end='')\nsearch(query='ä', limit=None)", lambda name, given: [given, 1.5]
    )

    assert outcome.kinds == ["stream", "tool_request", "execute_result"]
    assert host.calls == [("search", {"query": "ä", "limit": None})]
    assert outcome.text == "[{'query': 'ä', 'limit': None}, 1.5]"


def test_an_error_of_the_host_is_a_tool_error(host):
    """It can be caught, and the cell goes on."""
    code = "try: search(query='x')\nexcept ToolError as error: seen = (str(error), error.tool)\nseen"
    assert host.run(code, refuse).text == "('no such row', 'search')"
    assert host.run("search(query='x')", refuse).error == ("ToolError", "no such row")


def test_a_tool_describes_itself(host):
    """Code that was written by a model may ask for help, and calls by position by mistake."""
    assert host.run(
        "import inspect\nstr(inspect.signature(search)), search.__doc__, search.__name__"
    ).text == ("('(*, query, limit=Ellipsis)', 'Looks for words.', 'search')")
    assert (
        host.run("inspect.iscoroutinefunction(search), inspect.iscoroutinefunction(fetch)").text
        == "(False, True)"
    )
    outcome = host.run("search('x')")
    assert outcome.error == (
        "TypeError",
        "search() takes its arguments by name: search(query=..., limit=...)",
    )
    assert host.calls == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("float('nan')", "query is nan"),
        ("[1, {'a': float('inf')}]", "query[1]['a'] is inf"),
        ("{1: 2}", "query has the key 1"),
        ("object()", "query is of type object"),
        ("'\\ud800'", "query is text that UTF-8 cannot hold"),
        ("{1, 2}", "query is of type set"),
        ("b'x'", "query is of type bytes"),
        ("10 ** 20", "query has more than 20 digits"),
        ("__import__('functools').reduce(lambda one, _: [one], range(40), 1)", "is nested more than 30 deep"),
        ("[0] * 60_000", "query holds more than 50,000 values"),
        ("'x' * (1 << 20)", "the largest is 'query'"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(host, value, words):
    """The message names the argument, and nothing is sent."""
    name, text = host.run(f"search(query={value})").error
    assert name == "ToolError"
    assert words in text
    assert host.calls == []


def test_threads_wait_together(host):
    """Eight threads ask; they are answered in the other order when all have asked, and each gets its own."""
    outcome = host.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(lambda n: search(query=n)['query'], range(8)))\n"
        "found",
        hold=8,
    )
    assert outcome.text == str(list(range(8)))


def test_coroutines_wait_together(host):
    """The loop goes on meanwhile."""
    outcome = host.run(
        "import asyncio\n"
        "ticks = 0\n"
        "async def tick():\n"
        "    global ticks\n"
        "    while True:\n"
        "        ticks += 1\n"
        "        await asyncio.sleep(0)\n"
        "ticking = asyncio.create_task(tick())\n"
        "found = await asyncio.gather(*(fetch(key=n) for n in range(5)))\n"
        "ticking.cancel()\n"
        "[one['key'] for one in found], ticks > 0",
        hold=5,
    )
    assert outcome.text == "([0, 1, 2, 3, 4], True)"


def test_threads_loops_and_the_main_thread_share_the_channel(host):
    """Two threads block, a third has a loop of its own, and the main loop's coroutines wait: nobody takes another's."""
    code = (
        "import asyncio, threading\n"
        "found = dict()\n"
        "def block(n): found[n] = search(query=n)['query']\n"
        "async def both(): return await asyncio.gather(fetch(key=20), fetch(key=21))\n"
        "def loop(): found['loop'] = [one['key'] for one in asyncio.run(both())]\n"
        "threads = [threading.Thread(target=block, args=(n,)) for n in (1, 2)] + [threading.Thread(target=loop)]\n"
        "for one in threads: one.start()\n"
        "{main}\n"
        "for one in threads: one.join()\n"
        "sorted(found.items(), key=str)"
    )
    expected = "[('loop', [20, 21]), ('main', 30), (1, 1), (2, 2)]"
    waiting = "found['main'] = (await fetch(key=30))['key']"
    blocking = "found['main'] = search(query=30)['query']"

    for _ in range(10):
        assert host.run(code.format(main=waiting), hold=5).text == expected
        assert host.run(code.format(main=blocking), hold=5).text == expected


def test_a_plain_tool_blocks_in_a_coroutine(host):
    """As any function does; a coroutine that waits is answered all the same."""
    code = (
        "import asyncio\n"
        "async def plain(): return search(query=1)['query']\n"
        "async def waiting(): return (await fetch(key=2))['key']\n"
        "await asyncio.gather(waiting(), plain())"
    )
    assert host.run(code, hold=2).text == "[2, 1]"


def test_input_and_tools_wait_together(host, context):
    """A thread waits for a tool while the main thread waits for a line."""

    def on_message(header, _payload):
        if header["type"] == "input_request":
            context.answer("typed")
        elif header["type"] == "tool_request":
            context.answer_tool(header["call"], header["call"])

    outcome = context.run(
        "import threading\n"
        "found = []\n"
        "asking = threading.Thread(target=lambda: found.append(search(query=1)))\n"
        "asking.start()\n"
        "line = input()\n"
        "asking.join()\n"
        "line, found",
        tools=[SEARCH],
        tool_calls=9,
        allow_stdin=True,
        on_message=on_message,
    )
    assert outcome.text == "('typed', [1])"


def test_an_interrupt_ends_the_wait_and_spares_the_next_call(host, context):
    """The call that was given up is answered late, to nobody; the next one gets its own answer."""
    late = []

    def on_message(header, _payload):
        if header["type"] != "tool_request":
            return

        if not late:
            late.append(header["call"])
            context.interrupt()
        else:
            context.answer_tool(late[0], "late")
            context.answer_tool(header["call"], "in time")

    code = "try: search(query=1)\nexcept KeyboardInterrupt: pass\nsearch(query=2)"
    outcome = context.run(code, tools=[SEARCH], tool_calls=9, on_message=on_message)
    assert outcome.text == "'in time'"


def test_a_handler_of_a_signal_may_ask_in_the_middle_of_a_wait(host, context):
    """Its call is answered first; then the one that it has interrupted."""

    def on_message(header, payload):
        if header["type"] != "tool_request":
            return

        asked.append((header["call"], json.loads(payload)["query"]))

        if len(asked) == 2:
            for call, query in reversed(asked):
                context.answer_tool(call, query)

    asked = []
    # Until it is heard: CPython can miss a signal that comes just before a call that blocks.
    code = (
        "import signal\n"
        "found = []\n"
        "def ask(*_):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    found.append(search(query='inner'))\n"
        "signal.signal(signal.SIGALRM, ask)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)\n"
        "found.append(search(query='outer'))\n"
        "found"
    )
    assert context.run(code, tools=[SEARCH], tool_calls=9, on_message=on_message).text == "['inner', 'outer']"
    assert host.run("search(query=7)['query']").text == "7"


def test_a_coroutine_may_give_up(host, context):
    """A timeout of the code's own ends its wait; the answer is nobody's."""

    def on_message(header, _payload):
        if header["type"] == "stream":
            for call in asked:
                context.answer_tool(call, call)
        elif header["type"] == "tool_request":
            asked.append(header["call"])

    asked = []
    code = (
        "import asyncio\n"
        "try: await asyncio.wait_for(fetch(key=1), 0.01)\n"
        "except asyncio.TimeoutError: print('gave up')\n"
        "'on'"
    )
    assert context.run(code, tools=[FETCH], tool_calls=9, on_message=on_message).text == "'on'"
    assert host.run("(await fetch(key=5))['key']").text == "5"


def test_tools_are_gone_after_their_execution(host, context):
    """The names vanish, what they hid comes back, and a kept one says why it does not work."""
    context.run("search = 'mine'")
    assert host.run("kept = search\nmine = fetch\nsearch(query=1)['query']").text == "1"
    assert context.run("search, 'fetch' in globals()").text == "('mine', False)"
    assert context.run("kept(query=1)").error == (
        "ToolError",
        "search() was given to an execution that has ended",
    )
    assert host.run("kept(query=1)").error == (
        "ToolError",
        "search() was given to an execution that has ended",
    )
    assert "has ended" in host.run("await mine(key=1)").error[1]
    assert len(host.calls) == 1


def test_what_the_code_makes_of_a_name_is_its_own(host, context):
    """A name that was given another value keeps it."""
    host.run("search = 5")
    assert context.run("search").text == "5"


def test_who_waits_beyond_the_end_of_the_cell_is_reported(host, context):
    """Threads and tasks that still wait get a ToolError, and the context serves on."""
    asked = []

    def on_message(header, _payload):
        if header["type"] in ("tool_request", "input_request"):
            asked.append(header["type"])

            if len(asked) == 4:
                context.answer("")

    outcome = context.run(
        "import asyncio, threading\n"
        "found = []\n"
        "def block(n):\n"
        "    try: search(query=n)\n"
        "    except ToolError as error: found.append(str(error))\n"
        "async def waiting():\n"
        "    try: await fetch(key=1)\n"
        "    except ToolError as error: found.append(str(error))\n"
        "threads = [threading.Thread(target=block, args=(n,)) for n in range(2)]\n"
        "for one in threads: one.start()\n"
        "task = asyncio.create_task(waiting())\n"
        "await asyncio.sleep(0)\n"
        "input()",
        tools=[SEARCH, FETCH],
        tool_calls=9,
        allow_stdin=True,
        on_message=on_message,
    )
    assert outcome.error is None
    found = context.run("for one in threads: one.join()\nawait task\nfound")
    assert found.text.count("not answered before its execution ended") == 3
    assert host.run("search(query=7)['query'], (await fetch(key=8))['key']").text == "(7, 8)"


def test_a_forked_child_has_no_way_to_the_host(host):
    """It is told so at once, and its parent calls on."""
    outcome = host.run(
        "import os\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    try: search(query=1)\n"
        "    except ToolError as error: os.write(write, str(error).encode())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.read(read, 1000).decode(), search(query=2)['query']"
    )
    assert "forked" in outcome.text
    assert outcome.text.endswith("2)")
    assert host.calls == [("search", {"query": 2})]


def test_calls_are_counted_inside_too(host):
    """An honest program hears of the limit without asking the host."""
    outcome = host.run("[search(query=n)['query'] for n in range(4)]", tool_calls=3)
    assert outcome.error == ("ToolError", "search(): this execution has made all of its 3 calls of tools")
    assert len(host.calls) == 3


def test_a_cell_without_tools_has_none(context):
    """Nothing is in its namespace."""
    assert context.run("'ToolError' in globals(), 'search' in globals()").text == "(False, False)"
