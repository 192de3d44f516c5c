"""The record of a context: what ran, in order, with what came of it, for whoever asks."""

from __future__ import annotations

import ast
import json

import pytest

from fumehood import ContextNotFoundError, InvalidArgumentError, Limits


def test_cells_are_kept_in_order_with_what_they_did(sandbox):
    said = [
        sandbox.run_code("x = 1"),
        sandbox.run_code("print('out'); import sys; print('err', file=sys.stderr); x + 1"),
        sandbox.run_code("1 / 0"),
        sandbox.run_code("input()", stdin="line\n"),
    ]
    record = sandbox.get_record()
    assert (record.sandbox_id, record.context_id, record.language) == (sandbox.id, "default", "python")
    assert [cell.code for cell in record.cells][:2] == [
        "x = 1",
        "print('out'); import sys; print('err', file=sys.stderr); x + 1",
    ]
    assert [cell.execution.id for cell in record.cells] == [execution.id for execution in said]
    assert [cell.execution.execution_count for cell in record.cells] == [1, 2, 3, 4]
    assert record.cells[1].execution.text == "2"
    assert record.cells[1].execution.logs.stderr == ["err\n"]
    assert record.cells[2].execution.error.name == "ZeroDivisionError"
    assert record.cells[3].stdin == "line\n"
    assert [cell.is_fresh for cell in record.cells] == [True, False, False, False]
    assert record.cells[1].execution.usage == said[1].usage
    assert record.cells[1].execution.started_at == said[1].started_at
    assert (record.dropped_cells, record.dropped_outputs) == (0, 0)


def test_each_context_has_its_own(sandbox):
    context = sandbox.create_code_context()
    sandbox.run_code("a = 1", context=context)
    sandbox.run_code("b = 2")
    sandbox.run_code("echo hello", language="bash")
    assert [cell.code for cell in sandbox.get_record(context).cells] == ["a = 1"]
    assert [cell.code for cell in sandbox.get_record().cells] == ["b = 2"]
    assert sandbox.get_record("bash").language == "bash"
    sandbox.remove_code_context(context)

    with pytest.raises(ContextNotFoundError):
        sandbox.get_record(context)


def test_a_restart_shows(sandbox):
    sandbox.run_code("x = 1")
    sandbox.restart_code_context("default")
    sandbox.run_code("x = 2")
    sandbox.run_code("x = 3")
    sandbox.run_code("import os; os._exit(1)")
    sandbox.run_code("x = 4")
    record = sandbox.get_record()
    assert [cell.is_fresh for cell in record.cells] == [True, True, False, False, True]
    assert record.cells[3].execution.state_lost


def test_a_restart_shows_after_going_back_and_in_a_fork(sandbox):
    """Who goes back to a fresh state has none, however many cells there were; who then restarts has none either."""
    sandbox.run_code("x = 1")
    full = sandbox.checkpoint()
    sandbox.restart_code_context("default")
    empty = sandbox.checkpoint()
    fork = sandbox.fork()

    with fork:
        assert fork.run_code("'x' in globals()").text == "False"
        assert [cell.is_fresh for cell in fork.get_record().cells] == [True, True]

    sandbox.run_code("y = 1")
    sandbox.rollback(empty)
    sandbox.run_code("a = 1")
    sandbox.rollback(full)
    sandbox.run_code("x = 2")
    sandbox.rollback(full)
    sandbox.restart_code_context("default")
    sandbox.run_code("z = 1")
    told = [(cell.code, cell.is_fresh, cell.is_undone) for cell in sandbox.get_record().cells]
    assert told == [
        ("x = 1", True, False),
        ("y = 1", True, True),
        ("a = 1", True, True),
        ("x = 2", False, True),
        ("z = 1", True, False),
    ]


def test_what_exceeds_a_limit_is_in_it(face):
    sandbox = face.open(limits=Limits(wall_seconds=0.5))
    sandbox.run_code("while True: pass")
    (cell,) = sandbox.get_record().cells
    assert cell.execution.error.kind == "time_limit"


def test_a_context_that_was_not_used_has_an_empty_record(sandbox):
    assert sandbox.get_record().cells == ()

    with pytest.raises(ContextNotFoundError):
        sandbox.get_record("context-99")


def test_the_oldest_outputs_go_first_and_are_counted(face):
    """Sixteen MiB of them are kept, of all contexts together."""
    sandbox = face.open(limits=Limits(stdout_bytes=8_000_000))

    for _ in range(4):
        sandbox.run_code("print('x' * 5_000_000)")

    record = sandbox.get_record()
    assert [cell.outputs_dropped for cell in record.cells] == [True, False, False, False]
    assert record.cells[0].execution.logs.entries == ()
    assert (record.dropped_outputs, record.dropped_cells) == (1, 0)
    assert len(record.cells[1].execution.logs.stdout[0]) > 0


def test_a_notebook_a_script_and_a_report(sandbox, tmp_path):
    sandbox.run_code("print('seen')\n40 + 2")
    text = sandbox.to_notebook()
    assert json.loads(text)["cells"][0]["outputs"][0]["text"] == "seen\n"
    assert sandbox.to_notebook(tmp_path / "x.ipynb") == (tmp_path / "x.ipynb").read_text()
    ast.parse(sandbox.to_notebook(str(tmp_path / "x.py")))
    assert "seen" in sandbox.to_notebook(tmp_path / "x.html")
    context = sandbox.create_code_context()
    assert json.loads(sandbox.to_notebook(None, context))["cells"] == []

    with pytest.raises(InvalidArgumentError, match="path"):
        sandbox.to_notebook(tmp_path / "x.docx")


def test_what_was_undone_is_marked(sandbox):
    """By going back to a checkpoint, and by a transaction that failed; the state went on from before."""
    sandbox.run_code("x = 1")
    checkpoint = sandbox.checkpoint()
    sandbox.run_code("x = 2")
    sandbox.run_code("x = 3")
    sandbox.rollback(checkpoint)
    sandbox.run_code("x")
    sandbox.run_code("x = 4; 1 / 0", transactional=True)
    sandbox.run_code("x = x + 4", transactional=True)
    sandbox.run_code("x")
    cells = sandbox.get_record().cells
    assert [cell.is_undone for cell in cells] == [False, True, True, False, True, False, False]
    assert [cell.is_fresh for cell in cells] == [True, *[False] * 6]
    assert cells[3].execution.text == "1"
    assert cells[6].execution.text == "5"
