"""What ran and what runs, for those who look on: in pages, with the running one, and without a trace."""

from __future__ import annotations

import pytest
from tests.waiting import until

from fumehood import (
    ContextNotFoundError,
    ExecutionFinished,
    ExecutionNotFoundError,
    InvalidArgumentError,
    ResultEvent,
)


def test_pages_begin_and_end_at_positions(sandbox):
    """The newest come without a position; each page is in order; positions stay when older cells are dropped."""
    said = [sandbox.run_code(f"print({n}); {n}").id for n in range(5)]
    newest = sandbox.activity.executions(limit=2)
    assert [cell.id for cell in newest.items] == said[3:]
    assert [cell.position for cell in newest.items] == [3, 4]
    assert (newest.first_position, newest.end_position) == (0, 5)
    before = sandbox.activity.executions(before=3, limit=2)
    assert [cell.id for cell in before.items] == said[1:3]
    after = sandbox.activity.executions(after=1, limit=2)
    assert [cell.id for cell in after.items] == said[2:4]
    assert sandbox.activity.executions(after=4).items == ()

    cell = newest.items[1]
    assert (cell.state, cell.outcome, cell.code, cell.execution) == ("ended", "ok", "print(4); 4", None)
    assert cell.output_characters == 2
    (result,) = cell.results
    assert (result.is_main_result, result.parts[0].mime) == (True, "text/plain")
    whole = sandbox.activity.executions(after=3, whole=True).items[0]
    assert whole.execution.text == "4"
    assert sandbox.activity.execution(said[0]).execution.logs.stdout == ["0\n"]
    assert sandbox.activity.result_bytes(said[4], 0, "text/plain") == b"4"


def test_what_is_not_there_is_named(sandbox):
    """An execution, a result, a format and a context that are not there are errors, and make nothing."""
    ran = sandbox.run_code("1")

    with pytest.raises(ExecutionNotFoundError, match="'nothing'"):
        sandbox.activity.execution("nothing")

    for number, mime in ((1, "text/plain"), (0, "image/png")):
        with pytest.raises(InvalidArgumentError):
            sandbox.activity.result_bytes(ran.id, number, mime)

    with pytest.raises(ContextNotFoundError):
        sandbox.activity.executions(context="bash")

    assert [context.id for context in sandbox.list_code_contexts()] == ["default"]


def test_a_running_cell_is_shown_as_far_as_it_is(sandbox):
    """Its output and results so far, and nothing of what it will be; then it is the same cell, ended."""
    code = "print('begun', flush=True)\ndisplay(7)\nimport time\nwhile True: time.sleep(0.05)"
    events = sandbox.stream_code(code)
    assert any(isinstance(event, ResultEvent) for event in events)
    (cell,) = sandbox.activity.executions(whole=True).items
    assert (cell.state, cell.outcome, cell.usage, cell.code) == ("running", None, None, code)
    assert cell.execution.logs.stdout == ["begun\n"]
    assert sandbox.activity.result_bytes(cell.id, 0, "text/plain") == b"7"
    assert sandbox.activity.execution(cell.id).state == "running"
    assert sandbox.interrupt()
    assert any(isinstance(event, ExecutionFinished) for event in events)
    ended = sandbox.activity.execution(cell.id)
    assert (ended.state, ended.outcome, ended.position) == ("ended", "interrupted", cell.position)
    assert sandbox.activity.executions().end_position == 1


def test_looking_leaves_a_paused_sandbox_paused(face):
    """It is not resumed, though a call would; nothing is added to its record, and its time does not change."""
    sandbox = face.open(timeout=300, auto_resume=True, idle_timeout=200)
    ran = sandbox.run_code("print(1)")
    before = sandbox.get_info().ends_at
    assert [cell.id for cell in sandbox.activity.executions().items] == [ran.id]
    assert sandbox.get_info().ends_at == before
    sandbox.pause()
    assert [cell.id for cell in sandbox.activity.executions().items] == [ran.id]
    assert len(sandbox.get_record().cells) == 1
    assert sandbox.activity.execution(ran.id).execution.logs.stdout == ["1\n"]
    assert sandbox.get_info().state == "paused"
    # Control: a call of another kind resumes it.
    sandbox.run_code("2")
    assert sandbox.get_info().state == "running"


def test_followers_see_what_any_caller_runs(face):
    """Code, output, results by their size, the end with its outcome; the last event is that of the sandbox."""
    sandbox = face.open()
    sandbox.run_code("before = 1")
    events = sandbox.activity.events()
    here = next(iter(events))
    assert here.type == "here"
    other = face.connect(sandbox.id)
    ran = other.run_code("print('out')\ndisplay(1)\n1/0")
    checkpoint = other.checkpoint(name="here")
    seen = []

    while not seen or seen[-1].type != "checkpoint_made":
        seen.append(next(events))

    assert [event.type for event in seen] == [
        "execution_started",
        "output",
        "result",
        "error",
        "execution_finished",
        "checkpoint_made",
    ]
    started, output, result, error, finished, made = (event.fields for event in seen)
    assert (started["execution_id"], started["code"], started["position"]) == (
        ran.id,
        "print('out')\ndisplay(1)\n1/0",
        1,
    )
    assert (output["stream"], output["text"]) == ("stdout", "out\n")
    assert (result["number"], result["parts"]) == (0, [{"mime": "text/plain", "size_bytes": 1}])
    assert error["error"]["name"] == "ZeroDivisionError"
    assert (finished["outcome"], finished["state_lost"], finished["position"]) == ("exception", False, 1)
    assert made["checkpoint"]["id"] == checkpoint.id
    assert [event.seq for event in seen] == list(range(here.seq + 1, here.seq + 7))

    # Again, from a number; and to the end.
    again = sandbox.activity.events(after=seen[3].seq)
    assert [next(again).type for _ in range(3)] == ["here", "execution_finished", "checkpoint_made"]
    assert sandbox.activity.use().watchers == 2
    sandbox.kill()
    rest = list(again)
    assert (rest[-1].type, rest[-1].fields["reason"]) == ("ended", "killed")


def test_a_running_cell_says_which_events_are_in_it(sandbox):
    """A page reads the cell once and appends what comes later: nothing is missing and nothing comes twice."""
    coming = sandbox.activity.events()
    next(coming)
    code = "import time\nfor n in range(40): print(n, flush=True); time.sleep(0.01)"
    events = sandbox.stream_code(code)
    next(events)
    next(events)
    (cell,) = sandbox.activity.executions(whole=True).items
    assert cell.state == "running"
    text = "".join(cell.execution.logs.stdout)
    assert any(isinstance(event, ExecutionFinished) for event in events)

    for event in coming:
        if event.type == "execution_finished":
            break

        if event.type == "output" and event.seq > cell.seq:
            text += event.fields["text"]

    assert text.split() == [str(n) for n in range(40)]


# Everything in it that could run when it is looked at says so; what it says is asked for afterwards.
HOSTILE = """
ran = []

class Meta(type):
    def __getattribute__(cls, name): ran.append(f'Meta.{name}'); return type.__getattribute__(cls, name)
    def __instancecheck__(cls, one): ran.append('Meta.check'); return True
    def __repr__(cls): ran.append('Meta.repr'); return 'meta'

class Evil(metaclass=Meta):
    def __repr__(self): ran.append('repr'); return 'evil'
    __str__ = __repr__
    def __len__(self): ran.append('len'); return 1
    def __iter__(self): ran.append('iter'); return iter(())
    def __getattribute__(self, name): ran.append(f'get {name}'); return object.__getattribute__(self, name)
    def __eq__(self, other): ran.append('eq'); return True
    def __hash__(self): return 1
    def __sizeof__(self): ran.append('sizeof'); return 1
    @property
    def shape(self): ran.append('shape'); return (1, 1)

class Table(dict):
    def __iter__(self): ran.append('table iter'); return dict.__iter__(self)
    def items(self): ran.append('table items'); return dict.items(self)
    def __len__(self): ran.append('table len'); return 1

class Text(str):
    def __repr__(self): ran.append('text repr'); return 'text'

evil, table, text = Evil(), Table(a=1), Text('x')
held = [Evil(), {Evil(): Evil()}, Text('y')]
by_key = {Evil(): 1, Text('k'): Evil()}
many = {f'n{n}': n for n in range(3000)}
globals().update(many)
ran.clear()
"""


def test_variables_are_listed_and_shown_without_running_their_code(sandbox):
    """Names, classes, sizes, and of some a summary; nothing that a class of the guest's defines is called."""
    sandbox.run_code(HOSTILE)
    page = sandbox.activity.variables(text="evil")
    assert page.state == "current"
    assert ("evil", "Evil", "") in [(one.name, one.type, one.summary) for one in page.items]
    assert page.count > 3000

    for name in ("evil", "table", "text", "held", "by_key"):
        sandbox.activity.variable(name)

    held = sandbox.activity.variable("held").items[0]
    assert held.items == (("0", "Evil", ""), ("1", "dict", "1 items"), ("2", "Text", ""))
    assert sandbox.run_code("ran").text == "[]"
    # Control: it does tell when it is looked at in the usual way.
    assert "repr" in sandbox.run_code("repr(evil); ran").text


def test_variables_come_in_pages_and_details(sandbox):
    sandbox.run_code("a = 1; b = 'x' * 10_000; c = {'k': [1, 2], 'l': None}; _hidden = 1")
    first = sandbox.activity.variables(limit=2)
    one = first.items[0]
    assert (one.name, one.type, one.summary) == ("a", "int", "1")
    rest = sandbox.activity.variables(after=first.next_cursor)
    assert [one.name for one in rest.items] == ["c"]
    assert (rest.next_cursor, rest.count) == (None, 3)
    assert len(sandbox.activity.variable("b").items[0].text) == 4000
    assert sandbox.activity.variable("c").items[0].items == (
        ("'k'", "list", "2 items"),
        ("'l'", "NoneType", "None"),
    )
    assert sandbox.activity.variable("nothing").items == ()
    execution = sandbox.run_code("a = 2", changes=True)
    assert sandbox.activity.variable("a").items[0].since == execution.id
    # Looking is no execution.
    assert sandbox.activity.executions().end_position == 2
    assert sandbox.run_code("In[-1]").execution_count == 3


def test_frames_and_arrays_are_shown_by_their_first_rows(sandbox):
    found = sandbox.run_code("import importlib.util as u; bool(u.find_spec('pandas'))").text

    if found != "True":
        pytest.skip("needs pandas in the template")

    sandbox.run_code(
        "import numpy as np, pandas as pd\n"
        "days = pd.to_datetime(['2026-01-02'] * 2)\n"
        "frame = pd.DataFrame({'n': [1, 2], 'x': [0.5, None], 's': ['a', 'b'], 'd': days})\n"
        "series = frame['n']\narray = np.arange(6).reshape(2, 3)"
    )
    frame = sandbox.activity.variable("frame").items[0]
    assert frame.shape == (2, 4)
    assert [label for label, _ in frame.columns] == ["n", "x", "s", "d"]
    assert frame.rows[0][:2] == ("1", "0.5")
    assert frame.rows[0][3].startswith("2026-01-02")
    array = sandbox.activity.variable("array").items[0]
    assert (array.shape, array.rows) == ((2, 3), (("0", "1", "2"), ("3", "4", "5")))
    assert sandbox.activity.variable("series").items[0].rows == (("1",), ("2",))


def test_variables_never_wait(face):
    """While code runs, and while it is paused, those that were seen last come at once; other contexts have none."""
    sandbox = face.open(auto_resume=True)
    assert sandbox.activity.variables().state in ("none", "current")
    sandbox.run_code("a = 1")
    assert [one.name for one in sandbox.activity.variables().items] == ["a"]
    events = sandbox.stream_code("b = 2\nprint('begun', flush=True)\nwhile True: pass")
    next(events)
    next(events)
    page = sandbox.activity.variables()
    assert (page.state, [one.name for one in page.items]) == ("running", ["a"])
    assert page.as_of is not None
    assert sandbox.activity.variable("a").items[0].summary == "1"
    assert sandbox.interrupt()
    list(events)
    assert [one.name for one in sandbox.activity.variables().items] == ["a", "b"]
    sandbox.run_code("c=1", language="bash")
    assert sandbox.activity.variables(context="bash").state == "none"
    sandbox.pause()
    assert (sandbox.activity.variables().state, sandbox.get_info().state) == ("paused", "paused")

    with pytest.raises(ContextNotFoundError):
        sandbox.activity.variables(context="nothing")


def test_a_family_shows_who_was_forked_from_whom(sandbox):
    """From any of its members, with those that have ended and how each did last; a stranger is in none."""
    sandbox.run_code("x = 1")
    one, other = sandbox.forks(2)
    one.run_code("1/0")
    grandchild = other.fork()
    other.kill()
    expected = [(sandbox.id, None), (one.id, sandbox.id), (other.id, sandbox.id), (grandchild.id, other.id)]

    for member in (sandbox, one, grandchild):
        family = member.activity.family().items
        assert sorted((each.id, each.parent_id or "") for each in family) == sorted(
            (name, parent or "") for name, parent in expected
        )

    by_id = {each.id: each for each in family}
    assert (by_id[other.id].state, by_id[other.id].reason) == ("ended", "killed")
    assert (by_id[one.id].state, by_id[one.id].last_outcome) == ("running", "exception")
    one.kill()
    grandchild.kill()


def test_checkpoints_say_where_they_stand(sandbox):
    """Behind which cell, and from which other checkpoint their context goes on; a fresh context goes on from none."""
    first = sandbox.run_code("x = 1").id
    one = sandbox.checkpoint()
    sandbox.run_code("x = 2")
    two = sandbox.checkpoint()
    sandbox.rollback(one)
    three = sandbox.checkpoint()
    assert (one.position, one.execution_id, one.parent_checkpoint_id) == (1, first, None)
    assert (two.position, two.parent_checkpoint_id) == (2, one.id)
    assert (three.position, three.parent_checkpoint_id) == (2, one.id)
    sandbox.restart_code_context("default")
    assert sandbox.checkpoint().parent_checkpoint_id is None
    assert [info.is_lost for info in sandbox.list_checkpoints()] == [False] * 4
    events = sandbox.activity.events()
    next(events)
    sandbox.drop_checkpoint(two)
    assert next(events).fields == {"checkpoint_id": two.id}


def test_ports_are_listed_with_their_program(sandbox):
    """Each port once, with all of its addresses, the program that holds it, and nothing that does not listen."""
    assert sandbox.activity.ports().items == ()
    sandbox.run_code(
        "import socket\n"
        "one = socket.create_server(('127.0.0.1', 8001))\n"
        "two = socket.create_server(('0.0.0.0', 8002))\n"
        "six = socket.create_server(('::', 8002), family=socket.AF_INET6)\n"
        "out = socket.create_connection(('127.0.0.1', 8001))"
    )
    # An answer is kept for a second.
    ports = until(lambda: (found := sandbox.activity.ports()).items and found, "the ports are listed")
    assert ports.state == "current"
    assert [(each.port, each.addresses) for each in ports.items] == [
        (8001, ("127.0.0.1",)),
        (8002, ("0.0.0.0", "::")),
    ]
    own = int(sandbox.run_code("import os; os.getpid()").text)

    for each in ports.items:
        assert each.program.startswith("python")
        assert (each.pid, each.is_answered_outside) == (own, False)
        assert each.started_at is not None

    sandbox.run_code("one.close()")
    until(
        lambda: [each.port for each in sandbox.activity.ports().items] == [8002], "a port is listed no more"
    )
    # To look resumes nothing, and a paused one is seen too.
    sandbox.pause()
    assert [each.port for each in sandbox.activity.ports().items] == [8002]
    assert sandbox.get_info().state == "paused"
