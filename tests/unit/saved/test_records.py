"""The records of a saved state: within their bound, and from whoever has written the file."""

from __future__ import annotations

import json

import pytest

from fumehood import Execution, LogEntry, Logs, Record, RecordedCell, Result, SavedStateDamagedError
from fumehood.saved.records import MAX_CELLS, as_ours, read_record, record_bytes
from fumehood.values.audit import AuditHead
from fumehood.values.plain_data import as_data


def cell(number: int, output: str = "", **values) -> RecordedCell:
    logs = Logs(entries=(LogEntry(stream="stdout", text=output, at_seconds=0.5),) if output else ())
    return RecordedCell(
        code=f"x = {number}", execution=Execution(id=f"e{number}", context_id="a", logs=logs, **values)
    )


def record(*cells: RecordedCell, **values) -> Record:
    return Record(sandbox_id="s", context_id="a", language="python", cells=cells, **values)


def test_what_is_written_is_read():
    result = Result(
        parts={"text/plain": b"5", "image/png": b"\x89", "x/y": b"\0"},
        metadata={"a": [1]},
        is_main_result=True,
    )
    whole = record(cell(1, "out\udcff\0", results=(result,), execution_count=7), cell(2), dropped_cells=3)
    assert read_record(record_bytes(whole, 1 << 20), "records/1") == whole


def test_one_that_is_too_long_keeps_its_latest_cells():
    """Control characters take six bytes each."""
    whole = record(*(cell(number, "\x1b" * 1000) for number in range(100)), dropped_cells=5)
    content = record_bytes(whole, 50_000)
    assert 30_000 < len(content) <= 50_000
    kept = read_record(content, "records/1")
    assert kept.cells == whole.cells[-len(kept.cells) :]
    assert kept.dropped_cells + len(kept.cells) == 105


def test_one_that_is_loaded_names_its_new_context():
    whole = record(cell(1, audit_head=AuditHead(sequence=1, hash="0" * 64)))
    (ours,) = as_ours(whole, "context-7").cells
    assert (ours.execution.context_id, ours.execution.audit_head, ours.code) == ("context-7", None, "x = 1")


def edited(**changes) -> bytes:
    """The bytes of a record whose cell, or whose execution, is otherwise."""
    data = json.loads(json.dumps(as_data(record(cell(1, "out")))))

    for place, value in changes.items():
        *folders, name = place.split("__")
        inner = data["cells"][0]

        for folder in folders:
            inner = inner[int(folder) if folder.isdigit() else folder]

        inner[name] = value

    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"5",
        b'{"cells": []}',
        b"[" * 100_000,
        b"[" + b"1," * 3_000_000 + b"1]",
        edited(code=5),
        edited(code=None),
        edited(execution=[]),
        edited(execution__logs={"entries": [{"stream": "stdlog", "text": "x", "at_seconds": 0}]}),
        edited(execution__logs__entries__0__at_seconds=float("nan")),
        edited(execution__logs__entries__0__at_seconds=float("inf")),
        edited(execution__logs__entries__0__at_seconds=10**400),
        edited(execution__results=[{"png": "no base64"}]),
        edited(execution__results=[{"text": {"a": 1}}]),
        edited(execution__results=[[]]),
        edited(execution__execution_count=-1),
        edited(execution__execution_count=2**60),
        edited(execution__started_at="yesterday"),
        edited(execution__error={"kind": "unheard of", "name": "", "value": ""}),
        edited(is_fresh="yes"),
        edited(stdin=[1]),
        json.dumps({**json.loads(edited()), "dropped_cells": -5}).encode(),
        json.dumps({**json.loads(edited()), "dropped_cells": True}).encode(),
        json.dumps(
            {**json.loads(edited()), "cells": [json.loads(edited())["cells"][0]] * (MAX_CELLS + 1)}
        ).encode(),
    ],
    ids=range(25),
)
def test_what_is_no_record_is_damage(content):
    """Whoever made it: an error of ours that names the part, and nothing else."""
    with pytest.raises(SavedStateDamagedError) as caught:
        read_record(content, "records/1")

    assert caught.value.part == "records/1"
