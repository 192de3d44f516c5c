"""What ran and what runs, for those who look on: in pages, with the running one, and without a trace."""

from __future__ import annotations

import pytest

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
