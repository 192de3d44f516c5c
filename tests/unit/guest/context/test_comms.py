"""Comms: what the package `comm` of user code says to the host, and what the host says to it."""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("comm") is None, reason="needs the package comm in the test environment"
)

TARGET = """
import comm
def opened(channel, message):
    print('opened', message['content']['data'])
    channel.on_msg(lambda said: channel.send({'twice': said['content']['data']['x'] * 2}, buffers=said['buffers']))
    channel.on_close(lambda said: print('closed'))
comm.get_comm_manager().register_target('doubler', opened)
"""


def test_code_opens_talks_and_closes(context):
    """Three messages, in order with what is printed."""
    outcome = context.run(
        "import comm\n"
        "print('before')\n"
        "one = comm.create_comm(target_name='there', data={'a': 1})\n"
        "one.send({'b': [1.5, None]}, buffers=[b'xy', memoryview(b'z')])\n"
        "one.close()\n"
    )
    assert outcome.kinds == ["stream", "comm_open", "comm_msg", "comm_close"]
    (opening, data, _), (_, second, buffers), _ = outcome.comms
    assert (opening["target_name"], data) == ("there", {"a": 1})
    assert (second, buffers) == ({"b": [1.5, None]}, [b"xy", b"z"])
    assert len({header["comm_id"] for header, _, _ in outcome.comms}) == 1


def test_the_host_opens_talks_and_closes(context):
    """Handlers run like a cell: what they print and send comes before the reply."""
    context.run(TARGET)
    opened = context.comm("comm_open", "c1", {"hello": 1}, target_name="doubler")
    assert opened.stdout == "opened {'hello': 1}\n"
    told = context.comm("comm_msg", "c1", {"x": 21}, b"\0\1", b"")
    [(header, data, buffers)] = told.comms
    assert (header["type"], header["comm_id"], data, buffers) == (
        "comm_msg",
        "c1",
        {"twice": 42},
        [b"\0\1", b""],
    )
    assert context.comm("comm_close", "c1", {}).stdout == "closed\n"
    assert context.run("1").reply["execution_count"] == 2


def test_a_comm_that_nobody_knows_is_no_error(context):
    """With the package and without it."""
    assert context.comm("comm_msg", "nobody", {}).reply["status"] == "ok"
    context.run("import comm")
    assert context.comm("comm_msg", "nobody", {}).reply["status"] == "ok"
    assert context.comm("comm_close", "nobody", {}).reply["status"] == "ok"


def test_nothing_is_imported_for_it(context):
    """The package is looked at only when somebody else has imported it."""
    context.comm("comm_msg", "nobody", {})
    assert context.run("import sys; 'comm' in sys.modules").text == "False"


def test_a_handler_that_fails_is_reported(context):
    """On standard error, where the package logs it; the context goes on."""
    context.run(
        "import comm\none = comm.create_comm(target_name='t', comm_id='c')\none.on_msg(lambda said: 1 / 0)"
    )
    outcome = context.comm("comm_msg", "c", {})
    assert "ZeroDivisionError" in outcome.stderr
    assert context.run("1").text == "1"


def test_a_handler_can_be_interrupted(context):
    """As a cell can."""
    context.run(
        "import comm\n"
        "def forever(said):\n"
        "    print('working', flush=True)\n"
        "    while True: pass\n"
        "one = comm.create_comm(target_name='t', comm_id='c')\n"
        "one.on_msg(forever)\n"
    )
    context.send_comm("comm_msg", "c", {})
    outcome = context.finish(
        on_message=lambda header, _: context.interrupt() if header["type"] == "stream" else None
    )
    assert outcome.error is not None
    assert outcome.error[0] == "KeyboardInterrupt"
    assert context.run("1").text == "1"


@pytest.mark.parametrize(
    ("data", "simpler"),
    [
        ("{'x': float('nan')}", {"x": None}),
        ("{'x': 10 ** 30}", {"x": str(10**30)}),
        ("{1: 'a', '1': 'b'}", {"1": "b"}),
        ("{'x': {1, }}", {"x": [1]}),
        ("{'x': '\\ud800'}", {"x": "\ud800"}),
    ],
)
def test_what_the_host_would_refuse_is_made_simpler(data, simpler, context):
    """User code cannot break the wire by accident."""
    outcome = context.run(f"import comm; comm.create_comm(target_name='t', data={data})")
    assert outcome.comms[0][1] == simpler


@pytest.mark.parametrize(
    "attempt",
    [
        "comm.create_comm(target_name='t', data={'x': [0] * 200_000})",
        "comm.create_comm(target_name='t', data={'x': 'y' * (11 << 20)})",
        "comm.create_comm(target_name='t', buffers=[b'x'] * 300)",
        "comm.create_comm(target_name='t', buffers=[bytes(11 << 20)])",
        "comm.create_comm(target_name='t' * 300)",
        "comm.create_comm(target_name='t', comm_id='c' * 300)",
    ],
)
def test_what_cannot_be_sent_fails_in_the_code(attempt, context):
    """With an error that says why."""
    outcome = context.run(f"import comm\n{attempt}")
    assert outcome.error is not None
    assert outcome.error[0] == "ValueError"
    assert outcome.comms == []


def test_a_task_may_go_on_talking(context):
    """After its cell, under that cell's id."""
    context.run(
        "import asyncio, comm\n"
        "one = comm.create_comm(target_name='t')\n"
        "async def later():\n"
        "    one.send({'late': 1})\n"
        "task = asyncio.create_task(later())\n"
    )
    header, _ = context.next_message()
    assert header["type"] == "comm_msg"
    assert context.background


def test_a_forked_child_is_silent(context):
    """The channel is its parent's."""
    outcome = context.run(
        "import comm, os\n"
        "one = comm.create_comm(target_name='t')\n"
        "pid = os.fork()\n"
        "one.send({'from': 'child' if pid == 0 else 'parent'})\n"
        "if pid: os.waitpid(pid, 0)\n"
    )
    assert [data for _, data, _ in outcome.comms] == [{}, {"from": "parent"}]


def test_bash_has_no_comms(bash_context):
    """A message to it does nothing."""
    assert bash_context.comm("comm_msg", "c", {}).reply["status"] == "ok"
    bash_context.run("echo a")
    assert bash_context.fd_out == "a\n"
