"""What two descriptions of a namespace say about each variable, without a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from fumehood.engine import moments
from fumehood.values.moments import Comparison, Moment
from fumehood.values.questions import SeenVariables
from fumehood_guest.context import variables
from fumehood_wire.payloads import parse_variables


def _described(namespace):
    count, payload = variables.list_variables(namespace, {}, marks=True)
    return SeenVariables(count=count, found=tuple(parse_variables(payload)))


def _compared(before, after, *, are_marked=True):
    moment = Moment(id="one", name=None, at=datetime.now(UTC), position=1)
    found = Comparison(before=moment, after=moment, context_id="default", state="current")
    return moments._with_variables(found, before, after, are_marked=are_marked)


@pytest.mark.parametrize("short", ["before", "after", "both"])
@pytest.mark.parametrize("are_marked", [True, False])
def test_what_there_was_no_time_to_examine_is_neither_same_nor_changed(monkeypatch, short, are_marked):
    """It was not compared; that a name is new, or gone, is known without a look at its value."""
    earlier, later = {"x": [1], "y": 2, "gone": 3}, {"x": [9], "y": 2, "new": 4}
    seen = {"before": _described(earlier), "after": _described(later)}
    monkeypatch.setattr(variables, "_MARK_SECONDS", 0)

    for moment, namespace in (("before", earlier), ("after", later)):
        if short in (moment, "both"):
            seen[moment] = _described(namespace)

    compared = _compared(seen["before"], seen["after"], are_marked=are_marked)
    assert [(one.name, one.kind) for one in compared.variables] == [("gone", "deleted"), ("new", "added")]
    assert (compared.same_variables, compared.more_variables) == (0, 2)


def test_the_time_for_a_look_is_that_of_the_processor(monkeypatch):
    """A process that stands still meanwhile has lost none of it, and neither has one whose clock was replaced."""
    leap = iter(range(0, 10_000, 100)).__next__
    monkeypatch.setattr(variables, "time", SimpleNamespace(monotonic=leap, thread_time=leap))
    compared = _compared(_described({"x": [1], "y": 2}), _described({"x": [9], "y": 2}))
    assert [one.name for one in compared.variables] == ["x"]
    assert (compared.same_variables, compared.more_variables) == (1, 0)


def test_names_beyond_a_cut_list_are_counted_once(monkeypatch):
    """Beside those that were listed and not examined."""
    monkeypatch.setattr(variables, "MAX_VARIABLES", 3)
    namespace = {f"v{number}": number for number in range(5)}
    assert _compared(_described(namespace), _described(namespace)).more_variables == 2
    monkeypatch.setattr(variables, "_MARK_SECONDS", 0)
    assert _compared(_described(namespace), _described(namespace)).more_variables == 5
