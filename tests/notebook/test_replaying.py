"""Records run again: the first cell that differs is named, and what cannot be fixed is said."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fumehood import Determinism, Execution, InvalidArgumentError, Logs, Result, Sandbox, areplay, replay
from fumehood.notebook.comparison import compare_cell
from fumehood.values.execution import RecordedCell

CHANCE = """
import random, secrets, time, datetime, uuid, numpy, os
print(random.random(), numpy.random.rand(), numpy.random.default_rng().random(), secrets.token_hex(4), uuid.uuid4())
print(os.urandom(4), time.time(), time.strftime("%c"), datetime.datetime.now(), datetime.date.today(), time.ctime())
print(type(datetime.datetime.now()) is datetime.datetime, time.localtime()[:6], time.asctime(), time.gmtime(0)[:6])
print(datetime.datetime.utcnow(), datetime.datetime.now(datetime.timezone.utc), [n for n in dir() if "fumehood" in n])
"""


def test_what_depends_on_nothing_is_the_same():
    with Sandbox() as sandbox:
        sandbox.run_code("x = 40\nprint(object())")
        sandbox.run_code("input()", stdin="seen\n")
        sandbox.restart_code_context("default")
        sandbox.run_code("'x' in dir()")
        sandbox.run_code("1 / 0")
        record = sandbox.get_record()

    report = replay(record)
    assert report.is_same, str(report)
    assert report.first_difference is None
    assert str(report) == "4 cells, no difference"
    assert [cell.is_fresh for cell in report.record.cells] == [True, False, True, False]
    assert any("hash seed" in line for line in report.not_fixed)


def test_the_first_cell_that_differs_is_named():
    with Sandbox() as sandbox:
        sandbox.run_code("import os; x = 1")
        sandbox.run_code("print('a' * 500 + str(os.path.exists('/mnt/data/given')))\nx")
        sandbox.run_code("open('/mnt/data/given').read()")
        sandbox.files.write("/mnt/data/given", "here")
        sandbox.run_code("open('/mnt/data/given').read()")
        record = sandbox.get_record()

    report = replay(record)
    assert not report.is_same
    assert report.first_difference is report.cells[3]
    assert [difference.what for difference in report.cells[3].differences] == ["result 1", "error"]
    assert str(report).startswith("cell 4 differs: result 1: expected 'text/plain', got nothing")


def test_chance_and_time_differ_unless_they_are_fixed():
    with Sandbox() as sandbox:
        execution = sandbox.run_code(CHANCE)
        assert execution.error is None
        record = sandbox.get_record()

    assert [difference.what for difference in replay(record).cells[0].differences] == ["stdout"]
    first = replay(record, deterministic=True)
    second = replay(first.record, deterministic=True)
    assert second.is_same, str(second)
    assert "2000-01-01 00:00:00.0" in str(second.record.cells[0].execution.logs)
    assert not replay(first.record, deterministic=Determinism(seed=1)).is_same


def test_a_record_of_bash():
    with Sandbox() as sandbox:
        sandbox.run_code("X=1; echo $X", language="bash")
        record = sandbox.get_record("bash")

    assert asyncio.run(areplay(record)).is_same


def test_what_the_record_has_lost_is_said():
    with Sandbox() as sandbox:
        sandbox.run_code("print(1)")
        sandbox.run_code("print(2)")
        record = sandbox.get_record()

    lost = replace(
        record.cells[0], execution=replace(record.cells[0].execution, logs=Logs()), outputs_dropped=True
    )
    report = replay(replace(record, cells=(lost, record.cells[1]), dropped_cells=1, dropped_outputs=1))
    assert not report.is_same
    assert report.first_difference is None
    assert str(report) == "2 cells, no difference; 2 could not be compared"


def test_cells_that_were_undone_are_not_run():
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")
        checkpoint = sandbox.checkpoint()
        sandbox.run_code("x = 2")
        sandbox.rollback(checkpoint)
        sandbox.run_code("x")
        record = sandbox.get_record()

    report = replay(record)
    assert report.is_same, str(report)
    assert [cell.is_skipped for cell in report.cells] == [False, True, False]
    assert len(report.record.cells) == 2


def execution(*results: Result) -> Execution:
    return Execution(id="x", context_id="default", results=results)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (
            [{"image/png": b"a"}],
            [{"image/png": b"bc"}],
            "result 1 image/png: expected '1 bytes', got '2 bytes'",
        ),
        (
            [{"text/plain": b"\x1b[2J"}],
            [{"text/plain": b"x"}],
            "result 1 text/plain: expected '\\x1b[2J', got 'x'",
        ),
        ([{"a/b": b"1"}], [{"text/plain": b"1"}], "result 1 a/b: expected '1 bytes', got nothing"),
        ([], [{"text/plain": b"1"}], "result 1: expected nothing, got 'text/plain'"),
        ([{"text/plain": b"<A at 0x7f0000000001>"}], [{"text/plain": b"<A at 0x7f0000000002>"}], None),
    ],
)
def test_differences_are_reported_as_text(before, now, what):
    cell = RecordedCell(code="x", execution=execution(*(Result(parts=parts) for parts in before)))
    compared = compare_cell(1, cell, execution(*(Result(parts=parts) for parts in now)))
    assert compared.is_same is (what is None)
    assert what is None or str(compared.differences[0]) == what


def test_what_is_no_record_is_refused():
    with pytest.raises(InvalidArgumentError, match="record"):
        replay({"cells": []})  # type: ignore[arg-type]


def test_odd_starts_are_refused():
    from datetime import datetime

    with pytest.raises(InvalidArgumentError, match="clock_start"):
        Determinism(clock_start=datetime(2020, 1, 1))

    with pytest.raises(InvalidArgumentError, match="clock_start"):
        Determinism(clock_start="2020")  # type: ignore[arg-type]

    with pytest.raises(InvalidArgumentError, match="seed"):
        Determinism(seed=-1)
