"""The record of an execution: bounded in every dimension that a guest could grow."""

from __future__ import annotations

import json
import os
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.bounds import MIB
from fumehood.values.events import (
    ClearOutputEvent,
    ErrorEvent,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.values.execution import ExecutionError
from fumehood.values.limits import Limits, Usage
from fumehood.values.results import CHART_MIME, DATA_MIME, Result
from fumehood.values.sandbox import Truncation
from fumehood.values.transcript import MAX_LOG_ENTRIES, Transcript


def transcript(**limits: object) -> Transcript:
    return Transcript(execution_id="e", context_id="c", limits=Limits(**limits))


def result(text: str, display_id: str | None = None) -> Result:
    return Result(parts={"text/plain": text.encode()}, display_id=display_id)


def shown(text: str, display_id: str | None = None, *, update: bool = False) -> ResultEvent:
    return ResultEvent(result=result(text, display_id), at_seconds=0, is_update=update)


def test_output_is_kept_in_order_with_its_times():
    """Both streams are one sequence."""
    record = transcript()
    record.add(StdoutEvent(text="a", at_seconds=0.1))
    record.add(StderrEvent(text="b", at_seconds=0.2))
    record.add(StdoutEvent(text="c", at_seconds=0.3))
    logs = record.finish(usage=Usage()).logs

    assert [(entry.stream, entry.text, entry.at_seconds) for entry in logs.entries] == [
        ("stdout", "a", 0.1),
        ("stderr", "b", 0.2),
        ("stdout", "c", 0.3),
    ]
    assert (logs.stdout, logs.stderr, str(logs)) == (["a", "c"], ["b"], "abc")


NOTICE = re.compile(
    r"\n\[\.\.\. ([0-9,]+) bytes(?:, ([0-9,]+) lines,)? of standard (?:output|error) left out here \.\.\.\]\n"
)


def ends(text: str) -> tuple[str, int, int, str]:
    """The head, how many bytes and lines are said to be missing behind it, and the tail."""
    parts = NOTICE.split(text)

    if len(parts) == 1:
        return text, 0, 0, ""

    head, size_bytes, lines, tail = parts
    return head, int(size_bytes.replace(",", "")), int((lines or "0").replace(",", "")), tail


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30), st.integers(1, 40))
def test_what_is_kept_and_what_is_dropped_is_all_there_was(pieces, limit):
    """Head and tail are those of the whole, and the bytes and lines between them are counted exactly."""
    record = transcript(stdout_bytes=limit)
    passed = [record.add(StdoutEvent(text=piece, at_seconds=0)) for piece in pieces]
    held_back = record.held_back()
    execution = record.finish(usage=Usage())
    whole = "".join(pieces)
    head, missing, lines, tail = ends("".join(execution.logs.stdout))

    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len((head + tail).encode()) <= limit
    assert len((head + tail).encode()) + missing == len(whole.encode())
    assert missing == execution.truncated.stdout_bytes
    assert lines == whole.encode()[len(head.encode()) : len(whole.encode()) - len(tail.encode())].count(b"\n")

    heard = "".join(event.text for event in [*passed, *held_back] if isinstance(event, StdoutEvent))
    begun, left_out, _, end = ends(heard)
    assert whole.startswith(begun)
    assert whole.endswith(end)
    assert len((begun + end).encode()) + left_out == len(whole.encode()) or not end
    assert record.held_back() == []


def test_the_last_lines_of_a_flood_are_kept():
    """A quarter of the limit is head, the rest is tail, for each stream by itself, in one order."""
    record = transcript(stdout_bytes=4_000, stderr_bytes=4_000)

    for number in range(10_000):
        record.add(StdoutEvent(text=f"{number}\n", at_seconds=number))

    record.add(StderrEvent(text="failed", at_seconds=10_000))
    record.add(StdoutEvent(text="result: 42\n", at_seconds=10_001))
    execution = record.finish(usage=Usage())
    head, missing, lines, tail = ends("".join(execution.logs.stdout))

    assert (len(head), len(tail)) == (1_000, 3_000)
    assert tail.endswith("9999\nresult: 42\n")
    assert (
        missing == execution.truncated.stdout_bytes == sum(len(f"{n}\n") for n in range(10_000)) + 11 - 4_000
    )
    assert lines == 10_001 - head.count("\n") - tail.count("\n")
    assert [entry.stream for entry in execution.logs.entries][-2:] == ["stderr", "stdout"]
    assert execution.truncated.stderr_bytes == 0


def test_a_follower_gets_the_tail_at_the_end():
    """What was passed on while the code ran is not repeated, and what was left out between is counted."""
    record = transcript(stdout_bytes=100)
    passed = [record.add(StdoutEvent(text=f"{number:09}\n", at_seconds=0)) for number in range(30)]
    assert [event is not None for event in passed] == [True] * 10 + [False] * 20

    first, *others = record.held_back()
    assert ends(first.text)[1] == 125
    assert (
        "".join(event.text for event in others) == "".join(f"{number:09}\n" for number in range(22, 30))[5:]
    )
    assert record.add(StdoutEvent(text="late\n", at_seconds=1)) is None
    assert [event.text for event in record.held_back()] == ["late\n"]


def test_what_the_guest_dropped_is_added():
    """Both sides cut, and the caller is told the sum."""
    record = transcript(stdout_bytes=1)
    record.add(StdoutEvent(text="abc", at_seconds=0))
    dropped = Truncation(stdout_bytes=10, stderr_bytes=20, results=30)
    truncated = record.finish(usage=Usage(), dropped_by_guest=dropped).truncated

    assert truncated == Truncation(stdout_bytes=12, stderr_bytes=20, results=30)


def test_output_in_tiny_pieces_costs_bounded_memory():
    """A guest that sends one byte at a time, switching streams, cannot make the record large."""
    record = transcript()
    tracemalloc.start()

    for _ in range(80_000):
        record.add(StdoutEvent(text="a", at_seconds=0))
        record.add(StderrEvent(text="b", at_seconds=0))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    execution = record.finish(usage=Usage())

    assert len(execution.logs.entries) <= MAX_LOG_ENTRIES
    assert "".join(execution.logs.stdout) == "a" * 80_000
    assert peak < 5 * MIB


def test_output_in_small_pieces_costs_about_its_bytes():
    """When there are enough entries, no piece becomes an object of its own any more."""
    record = transcript()

    for _ in range(MAX_LOG_ENTRIES):
        record.add(StdoutEvent(text="a", at_seconds=0))

    tracemalloc.start()

    for number in range(100_000):
        record.add(StdoutEvent(text=f"{number % 90 + 10}", at_seconds=0))

    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 4 * 200_000
    assert len("".join(record.finish(usage=Usage()).logs.stdout)) == MAX_LOG_ENTRIES + 200_000


def test_lone_surrogates_do_not_break_the_record():
    """Text that cannot be encoded is marked."""
    record = transcript()
    assert record.add(StdoutEvent(text="a\ud800b", at_seconds=0)).text == "a?b"


def test_results_are_cut_in_number():
    """The first ones stay, the rest is counted."""
    record = transcript(result_count=2)
    passed = [record.add(shown(str(number))) for number in range(5)]
    execution = record.finish(usage=Usage())

    assert [item.text for item in execution.results] == ["0", "1"]
    assert [event is not None for event in passed] == [True, True, False, False, False]
    assert execution.truncated.results == 3


def test_results_are_cut_in_total():
    """A hundred results of the largest size do not become a gigabyte."""
    record = transcript(result_bytes=10 * MIB)

    for _ in range(20):
        record.add(ResultEvent(result=Result(parts={"image/png": bytes(10 * MIB)}), at_seconds=0))

    execution = record.finish(usage=Usage())
    assert len(execution.results) == 6
    assert execution.truncated.results == 14


def test_what_comes_with_a_result_counts_by_what_it_costs():
    """An empty object is two characters and sixty bytes: a hundred results of nothing else would be gigabytes."""
    record = transcript()
    metadata = {"a": [{} for _ in range(30_000)]}

    for _ in range(20):
        record.add(ResultEvent(result=Result(parts={}, metadata=metadata), at_seconds=0))

    execution = record.finish(usage=Usage())
    assert 0 < len(execution.results) < 10
    assert execution.truncated.results == 20 - len(execution.results)


COSTLY = {
    "lists": b"[" + b"[]," * 499_000 + b"1]",
    "objects": b"[" + b"{}," * 499_000 + b"1]",
    "in one another": b'{"a":' * 900 + b"1" + b"}" * 900,
    "members": b"{" + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}",
    "numbers": b"[" + b"1," * 999_000 + b"1]",
}
# What counts is one function for every format.
COSTLY_PARTS = [
    (mime, name)
    for mime in ("application/json", DATA_MIME, CHART_MIME)
    for name in COSTLY
    if mime == "application/json" or name == "lists" or os.environ.get("EVERY_CASE")
]


@pytest.mark.parametrize(("mime", "name"), COSTLY_PARTS)
def test_json_counts_by_what_it_costs_to_read(mime, name):
    """Whoever writes a result for a client reads it: what a cell shows must not take the host seconds and gigabytes."""
    text = COSTLY[name]
    record = transcript(result_count=1000)
    values = text.count(b"[") + text.count(b"{") + text.count(b":")

    # Twice as many as the bytes alone would let pass, or as there may be.
    for _ in range(min(1000, 128 * MIB // len(text))):
        record.add(ResultEvent(result=Result(parts={mime: text}), at_seconds=0))

    kept = len(record.finish(usage=Usage()).results)
    assert kept * values * 100 <= 64 * MIB
    assert kept * text.count(b",") <= 4_000_000


def test_ordinary_tables_are_kept():
    """As many as there may be by default, each as large as the guest gives any; and text with commas is text."""
    record = transcript()
    table = json.dumps({f"c{number}": list(range(1000)) for number in range(10)}).encode()
    text = json.dumps(["a, [b]: {c}" * 10_000] * 10).encode()

    for _ in range(50):
        record.add(ResultEvent(result=Result(parts={DATA_MIME: table}), at_seconds=0))
        record.add(
            ResultEvent(result=Result(parts={"application/json": text[:100_000] + b'"]'}), at_seconds=0)
        )

    assert len(record.finish(usage=Usage()).results) == 100


def test_an_update_replaces_the_result_in_its_place():
    """Updates cost no room, and do not move what they update."""
    record = transcript(result_count=2)
    record.add(shown("1", "d"))
    record.add(shown("x"))

    for number in range(100):
        record.add(shown(str(number), "d", update=True))

    execution = record.finish(usage=Usage())
    assert [item.text for item in execution.results] == ["99", "x"]
    assert execution.truncated.results == 0


def test_an_update_of_something_shown_elsewhere_is_shown_here():
    """Nothing is lost because it was displayed by an earlier cell."""
    record = transcript()
    record.add(shown("new", "elsewhere", update=True))
    record.add(shown("newer", "elsewhere", update=True))
    assert [item.text for item in record.finish(usage=Usage()).results] == ["newer"]


def test_clearing_takes_results_at_once_or_with_the_next():
    """`wait` keeps them until there is something new."""
    record = transcript()
    record.add(shown("1"))
    record.add(ClearOutputEvent(at_seconds=0))
    record.add(shown("2"))
    record.add(ClearOutputEvent(at_seconds=0, wait=True))
    assert [item.text for item in record.finish(usage=Usage()).results] == ["2"]

    record.add(shown("3"))
    record.add(shown("4"))
    assert [item.text for item in record.finish(usage=Usage()).results] == ["3", "4"]


def test_clearing_frees_the_room():
    """An animation may show more than the limit over time."""
    record = transcript(result_count=1)

    for number in range(10):
        record.add(ClearOutputEvent(at_seconds=0, wait=True))
        record.add(shown(str(number)))

    execution = record.finish(usage=Usage())
    assert [item.text for item in execution.results] == ["9"]
    assert execution.truncated.results == 0


def test_errors_and_questions_are_bounded():
    """A guest's words are cut, and the cut is marked."""
    record = transcript()
    error = ExecutionError(kind="exception", name="N\x1b" * 500, value="v" * 10**6, traceback="t" * 10**6)
    passed = record.add(ErrorEvent(error=error, at_seconds=0)).error

    assert len(passed.name) <= 200
    assert "\x1b" not in passed.name
    assert passed.value.endswith(f"({10**6 - 64 * 1024} characters cut off)")
    assert len(passed.traceback) < 300_000
    assert record.finish(usage=Usage()).error == passed

    question = InputRequestEvent(execution_id="e", request_id="r", prompt="p" * 10**6, at_seconds=0)
    assert len(record.add(question).prompt) == 4096


def test_a_stop_from_outside_replaces_what_the_code_said():
    """The reason for the end is the host's to tell."""
    record = transcript()
    own = ExecutionError(kind="exception", name="KeyboardInterrupt", value="")
    record.add(ErrorEvent(error=own, at_seconds=0))
    outside = ExecutionError(kind="time_limit", name="TimeLimitExceeded", value="state kept")
    assert record.finish(usage=Usage(), error=outside).error == outside
