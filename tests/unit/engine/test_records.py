"""The bounds of records: what a guest prints, and what a caller sends, costs so much and no more."""

from __future__ import annotations

import asyncio
import gc

from fumehood import AsyncSandbox, Execution, ExecutionError, LogEntry, Logs, Record, RecordedCell, Result
from fumehood.engine.records import Recorder
from fumehood.values.execution import ChangedFile, Changes, ToolOutcome
from fumehood.values.sandbox import ContextInfo

KIB = 1024


def cell(code: str = "x", output: str = "", **values) -> RecordedCell:
    logs = Logs(entries=(LogEntry(stream="stdout", text=output, at_seconds=0.0),) if output else ())
    return RecordedCell(code=code, execution=Execution(id="e", context_id="a", logs=logs, **values))


def read(recorder: Recorder, name: str = "a") -> Record:
    return recorder.read("sandbox", ContextInfo(id=name, language="python", cwd="/"))


def test_the_oldest_outputs_go_first_of_all_contexts():
    recorder = Recorder(max_bytes=100 * KIB)

    for name in ("a", "b", "a", "b"):
        recorder.note(name, cell(output="x" * 30 * KIB))

    assert [kept.outputs_dropped for kept in read(recorder, "a").cells] == [True, False]
    assert [kept.outputs_dropped for kept in read(recorder, "b").cells] == [False, False]
    assert (read(recorder).dropped_outputs, read(recorder).dropped_cells) == (1, 0)


def test_then_the_oldest_cells():
    recorder = Recorder(max_bytes=100 * KIB)

    for number in range(1000):
        recorder.note("a", cell(code=str(number), output="x"))

    record = read(recorder)
    assert record.dropped_cells + len(record.cells) == 1000
    assert record.cells[-1].code == "999"
    assert [kept.code for kept in record.cells] == [
        str(number) for number in range(record.dropped_cells, 1000)
    ]
    assert record.dropped_outputs == sum(kept.outputs_dropped for kept in record.cells)
    assert 20 < len(record.cells) < 60
    assert not record.cells[-1].outputs_dropped


def test_nothing_is_left_of_contexts_that_are_forgotten():
    """However many there are; and those that are not keep what they have."""
    gc.collect()
    before = sum(type(one).__name__ == "_Kept" for one in gc.get_objects())
    recorder = Recorder()
    recorder.note("a", cell(code="kept"))

    for number in range(1000):
        recorder.note(f"context-{number}", cell())
        recorder.forget(f"context-{number}")

    gc.collect()
    assert sum(type(one).__name__ == "_Kept" for one in gc.get_objects()) == before + 1
    assert [kept.code for kept in read(recorder).cells] == ["kept"]


def test_one_cell_that_is_larger_than_all_that_is_kept():
    recorder = Recorder(max_bytes=100 * KIB)
    recorder.note("a", cell())
    recorder.note("a", cell(output="x" * 200 * KIB))
    assert [kept.outputs_dropped for kept in read(recorder).cells] == [False, True], (
        "the first had none to lose"
    )
    recorder.note("a", cell(code="x" * 200 * KIB))
    assert (len(read(recorder).cells), read(recorder).dropped_cells, read(recorder).dropped_outputs) == (
        0,
        3,
        0,
    )
    recorder.note("a", cell())
    assert len(read(recorder).cells) == 1


def test_every_part_of_an_execution_counts():
    long = "x" * 200 * KIB
    error = ExecutionError(kind="exception", name="E", value="v" * 500, traceback=long)

    for parts in (
        {"results": (Result(parts={"image/png": long.encode()}),)},
        {"results": (Result(parts={}, metadata={"a": long}),)},
        {"results": tuple(Result(parts={}) for _ in range(200))},
        {"tool_calls": tuple(ToolOutcome(name="t", ok=True, seconds=0.0) for _ in range(1000))},
        {"changes": Changes(files=(ChangedFile(path=long, kind="created", size_bytes=1),))},
        {"error": error},
    ):
        recorder = Recorder(max_bytes=100 * KIB)
        recorder.note("a", cell(**parts))
        (kept,) = read(recorder).cells
        assert kept.outputs_dropped
        assert (kept.execution.results, kept.execution.tool_calls, kept.execution.changes) == ((), (), None)

    assert (kept.execution.error.name, kept.execution.error.traceback) == ("E", "")
    assert len(kept.execution.error.value) == 200


def test_what_is_forgotten_makes_room():
    recorder = Recorder(max_bytes=100 * KIB)
    recorder.note("a", cell(output="x" * 60 * KIB))
    recorder.forget("a")
    recorder.forget("nothing")
    recorder.note("b", cell(output="x" * 60 * KIB))
    assert not read(recorder, "b").cells[0].outputs_dropped
    assert read(recorder, "a").cells == ()

    for _ in range(100):
        recorder.note("b", cell(output="x" * 40 * KIB))

    assert not read(recorder, "b").cells[-1].outputs_dropped


def test_a_record_that_begins_with_another_one_keeps_its_counts():
    """What is missing there is missing here, and what was missing before is not counted again when it goes."""
    before = Recorder(max_bytes=20 * KIB)

    for number in range(20):
        before.note("a", cell(code=str(number), output="x" * KIB))

    record = read(before)
    assert min(record.dropped_cells, record.dropped_outputs) > 0
    after = Recorder(max_bytes=20 * KIB)
    after.begin_with("a", record)
    assert read(after) == record

    for number in range(20, 60):
        after.note("a", cell(code=str(number), output="x" * KIB))

    record = read(after)
    assert record.dropped_cells + len(record.cells) == 60
    assert record.dropped_outputs == sum(kept.outputs_dropped for kept in record.cells)


def test_what_comes_after_a_mark_is_undone():
    recorder = Recorder(max_bytes=20 * KIB)

    for number in range(20):
        recorder.note("a", cell(code=str(number)))

    recorder.undo("a", 18)
    recorder.undo("none", 3)
    undone = [kept.code for kept in read(recorder).cells if kept.is_undone]
    assert undone == ["18", "19"]
    recorder.undo("a", 0)
    assert all(kept.is_undone for kept in read(recorder).cells)


def test_what_is_read_of_a_result_is_not_kept():
    """A JSON value takes many times what its text does, and the caller holds the same execution."""
    recorder = Recorder()
    result = Result(parts={"application/json": b"[1, 2]"})
    recorder.note("a", cell(results=(result,)))
    assert result.json == [1, 2]
    assert "json" not in read(recorder).cells[0].execution.results[0].__dict__


def test_a_cell_whose_caller_gives_up_is_in_it():
    async def scene() -> None:
        async with AsyncSandbox() as sandbox:
            began = asyncio.Event()
            run = asyncio.create_task(
                sandbox.run_code(
                    "print('began', flush=True)\nwhile True: pass", on_stdout=lambda _: began.set()
                )
            )
            await began.wait()
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await sandbox.run_code("1")
            first, second = (await sandbox.get_record()).cells
            assert first.execution.error.kind == "interrupted"
            assert first.execution.logs.stdout == ["began\n"]
            assert (first.is_fresh, second.is_fresh) == (True, False)

    asyncio.run(scene())
