"""Two moments side by side: variables and files of checkpoints and of now, without a trace in the sandbox."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from tests.waiting import until

from fumehood import (
    CheckpointError,
    CheckpointNotFoundError,
    ContextNotFoundError,
    FileError,
    InvalidArgumentError,
)

_BEFORE = """
import numpy as np
number, items, same, gone, table = 1, [1, 2, 3], {"a": [1]}, "g", np.zeros(5000)
class Loud:
    def __repr__(self): open("/tmp/loud", "a").write("repr"); return "loud"
    def __del__(self): open("/tmp/loud", "a").write("del")
loud = Loud(); cycle = Loud(); cycle.me = cycle; del cycle
import gc, os, sys, threading
gc.set_threshold(1)
class Late:
    def __del__(self): open("/tmp/loud", "a").write("late")
def forked():
    cycle = Late(); cycle.me = cycle
    open("/tmp/loud", "a").write("fork")
os.register_at_fork(after_in_child=forked)
threading.Thread(target=threading.Event().wait, daemon=True).start()
own = os.getpid()
def heard(*event):
    if os.getpid() != own: open("/tmp/loud", "a").write("profile")
sys.setprofile(heard)
open("kept.txt", "w").write("one\\ntwo\\n"); open("gone.txt", "w").write("here"); open("still.txt", "w").write("still")
"""
_AFTER = """
items[1] = 9; same = {"a": [1]}; del gone; table[4321] = 1; added = (1, 2)
open("kept.txt", "w").write("one\\n2\\n"); open("new.txt", "w").write("new")
gc.set_threshold(10_000); os.remove("gone.txt"); sys.setprofile(None)
print(open("/tmp/loud").read())
if os.path.exists("/tmp/loud"): os.remove("/tmp/loud")
"""


def _answered(question, *arguments, **named):
    """Asks until the answer is current: on a busy machine there may be none within the time that a reader waits."""

    def ask():
        with suppress(CheckpointError):
            found = question(*arguments, **named)
            return found if found.state == "current" else None

    return until(ask, "an answer")


def _kinds(compared):
    variables = {one.name: one.kind for one in compared.variables}
    files = {one.path.removeprefix("/home/user/"): one.kind for one in compared.files}
    files.pop("/tmp/loud", None)
    return variables, files


def test_a_checkpoint_is_compared_with_now_and_with_another(sandbox):
    """Contents are compared, not summaries alone; going back is seen; and nothing that looks leaves a trace."""
    compare, variable = (
        partial(_answered, one) for one in (sandbox.activity.compare, sandbox.activity.variable)
    )
    assert sandbox.run_code(_BEFORE).error is None
    first = sandbox.checkpoint("first")
    # Two forks, since there is a thread, in which only the at-fork handler ran; the cycle was collected before.
    after = sandbox.run_code(_AFTER)
    assert (after.error, "".join(after.logs.stdout).strip().replace("del", "")) == (None, "forkfork")
    compared = compare("first")
    variables = {"items": "changed", "gone": "deleted", "table": "changed", "added": "added"}
    files = {"kept.txt": "modified", "new.txt": "created", "gone.txt": "deleted"}
    assert _kinds(compared) == (variables, files)
    assert (compared.state, compared.are_marked) == ("current", True)
    assert (compared.before.id, compared.before.name, compared.after.id) == (first.id, "first", "now")
    assert (compared.before.position, compared.after.position) == (1, 2)
    items = next(one for one in compared.variables if one.name == "items")
    assert (items.before.summary, items.after.type) == ("3 items", "list")
    assert variable("loud", at="first").items[0].type == "Loud"
    # No method, finalizer, profile function or at-fork handler of the guest has run.
    assert not sandbox.files.exists("/tmp/loud")

    second = sandbox.checkpoint("second")
    sandbox.run_code("items.clear(); open('kept.txt', 'w').write('other')")
    assert _kinds(compare("first", "second")) == (variables, files)
    sandbox.rollback(first)
    assert _kinds(compare("first")) == ({}, {})
    assert _kinds(compare(first.id, second.id)) == (variables, files)

    (before,) = variable("items", at="first").items
    (after,) = variable("items", at="second").items
    assert [one[2] for one in (*before.items, *after.items)] == ["1", "2", "3", "1", "9", "3"]
    assert "gone" in [
        one.name for one in _answered(sandbox.activity.variables, at="first", text="g", limit=5).items
    ]
    assert sandbox.activity.kept_file("second", "/home/user/kept.txt") == b"one\n2\n"
    assert sandbox.activity.executions().end_position == 3


def test_only_moments_that_are_there_are_compared(sandbox):
    """A moment, a file and an order of moments that are not there are errors; a fresh context is compared by looks."""
    sandbox.run_code("x = [1]; y = 2")
    sandbox.checkpoint("first")

    with pytest.raises(CheckpointNotFoundError):
        sandbox.activity.compare("nothing")

    with pytest.raises(InvalidArgumentError, match="now"):
        sandbox.activity.compare("now", "first")

    with pytest.raises(FileError):
        sandbox.activity.kept_file("first", "/home/user/nothing")

    with pytest.raises(ContextNotFoundError):
        sandbox.activity.variables(context="no-such", at="first")

    with pytest.raises(InvalidArgumentError, match="a checkpoint of the context"):
        sandbox.activity.variable("x", context=sandbox.create_code_context().id, at="first")

    assert _answered(sandbox.activity.variable, "nothing", at="first").items == ()
    sandbox.restart_code_context(sandbox.list_code_contexts()[0])
    sandbox.run_code("x = [2]; z = 3")
    compared = _answered(sandbox.activity.compare, "first")
    assert not compared.are_marked
    assert _kinds(compared)[0] == {"y": "deleted", "z": "added"}
