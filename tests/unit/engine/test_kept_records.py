"""Kept records stay within their bounds, and a file that was changed counts as absent."""

from __future__ import annotations

import asyncio
import json
import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fumehood.engine import kept_records
from fumehood.engine.command_history import CommandHistory
from fumehood.engine.command_output import CommandOutput
from fumehood.engine.kept_records import KeptRecords
from fumehood.engine.record_files import RecordFiles, TakenRecord
from fumehood.engine.record_index import RecordBounds
from fumehood.errors import InvalidArgumentError, RecordNotFoundError
from fumehood.values.audit import AuditLog
from fumehood.values.charts import JsonValue
from fumehood.values.execution import Execution, LogEntry, Logs, Record, RecordedCell
from fumehood.values.kept_records import EndedSandbox, ListRecords
from fumehood.values.limits import Limits, Usage
from fumehood.values.looking import ReadCells
from fumehood.values.results import Result
from fumehood.values.sandbox import Isolation, ProcessInfo, SandboxInfo

DAY = 86_400.0
NOW = datetime.now(UTC)
ROOMY = RecordBounds(max_bytes=1 << 20, max_count=100, max_seconds=10 * DAY)


def taken(
    name: str,
    *,
    ago: float = 0,
    output: str = "",
    owner: str = "",
    labels: str = "",
    results: tuple[Result, ...] = (),
) -> TakenRecord:
    info = SandboxInfo(
        id=name,
        owner=owner,
        metadata={"label": labels},
        template="default",
        state="ending",
        started_at=NOW,
        ends_at=None,
        limits=Limits(),
        isolation=Isolation(level="namespaces", layers=()),
    )
    cell = RecordedCell(
        code="print()",
        execution=Execution(
            id=f"{name}-1",
            context_id="default",
            usage=Usage(),
            results=results,
            logs=Logs(entries=(LogEntry(stream="stdout", text=output, at_seconds=0.0),)),
        ),
    )
    return TakenRecord(
        about=EndedSandbox(sandbox=info, ended_at=NOW - timedelta(seconds=ago), reason="killed", cells=1),
        records=(Record(sandbox_id=name, context_id="default", language="python", cells=(cell,)),),
        read_audit=lambda: AuditLog(sandbox_id=name),
        commands=CommandHistory().take_last(),
        other_bytes=len(output),
    )


def names(files: RecordFiles) -> list[str]:
    return [one.id for one in files.page(ListRecords()).items]


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        (replace(ROOMY, max_count=2), ["c", "b"]),
        (replace(ROOMY, max_bytes=65_000), ["c", "b"]),
        (replace(ROOMY, max_seconds=DAY), ["c", "b"]),
        (ROOMY, ["c", "b", "a"]),
    ],
    ids=["count", "bytes", "age", "none"],
)
def test_the_oldest_go_first(tmp_path: Path, bounds: RecordBounds, left: list[str]) -> None:
    """Of each bound, also for the next engine that has the folder; the files go with them."""
    files = RecordFiles(str(tmp_path), bounds)

    for name, ago in (("a", 2 * DAY), ("b", 20.0), ("c", 10.0)):
        files.write(taken(name, ago=ago, output="x" * 20_000))

    assert names(files) == left
    assert names(RecordFiles(str(tmp_path), bounds)) == left
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(left)


def test_one_that_is_larger_than_all_may_be_is_not_kept(tmp_path: Path) -> None:
    """It displaces no other."""
    files = RecordFiles(str(tmp_path), replace(ROOMY, max_bytes=15_000))
    files.write(taken("small"))
    files.write(taken("large", output="x" * 20_000))
    assert names(files) == ["small"]
    assert [path.name for path in tmp_path.iterdir()] == ["small.record"]


def test_pages_go_on_where_they_ended(tmp_path: Path) -> None:
    """The latest end first, whatever was added meanwhile."""
    files = RecordFiles(str(tmp_path), ROOMY)

    for number in range(5):
        files.write(taken(f"s{number}", ago=10 - number))

    first = files.page(ListRecords(limit=2))
    files.write(taken("later"))
    second = files.page(ListRecords(limit=3, before=first.next_cursor))
    assert [one.id for one in (*first.items, *second.items)] == ["s4", "s3", "s2", "s1", "s0"]
    assert second.next_cursor is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], b"{", *lines[2:]],
        lambda lines: [lines[0], b"[" * 100_000, *lines[2:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], b'{"cell": {"code": 1}}'],
        lambda lines: [lines[0], b"null"],
    ],
    ids=["cut", "deep", "cell-of-no-context", "types", "null"],
)
def test_a_file_that_was_changed_counts_as_absent(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    """Reading it raises nothing else, and the others are read."""
    files = RecordFiles(str(tmp_path), ROOMY)
    kept = KeptRecords(str(tmp_path), ROOMY)
    files.write(taken("whole"))
    files.write(taken("changed"))
    path = tmp_path / "changed.record"
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))

    with pytest.raises(RecordNotFoundError):
        asyncio.run(kept.look("changed", ReadCells()))

    assert len(asyncio.run(kept.look("whole", ReadCells())).items) == 1


@pytest.mark.parametrize(
    "head", [b"{}", b'{"format":"fumehood record 2","about":[]}', b"\xff\n", b"[" * 100_000]
)
def test_files_of_others_are_left_alone(tmp_path: Path, head: bytes) -> None:
    """One that does not begin as ours do is neither listed nor removed."""
    (tmp_path / "foreign.record").write_bytes(head)
    RecordFiles(str(tmp_path), ROOMY).write(taken("own"))
    assert names(RecordFiles(str(tmp_path), ROOMY)) == ["own"]
    assert (tmp_path / "foreign.record").exists()


OURS = b'{"format":"fumehood record 1",'


@pytest.mark.parametrize(
    "head",
    [
        b"",
        bytes(100),
        OURS + b'"about":[]}',
        OURS + b'"about":' + b"[" * 100_000,
        OURS + b'"about":"' + b"x" * (5 << 20) + b'"}',
    ],
    ids=["empty", "zeros", "types", "deep", "long"],
)
def test_files_that_no_bound_would_count_are_removed(tmp_path: Path, head: bytes) -> None:
    """Those of ours whose description cannot be read, or is another's, and those that were never finished."""
    files = RecordFiles(str(tmp_path), ROOMY)
    files.write(taken("own"))
    (tmp_path / "other.record").write_bytes((tmp_path / "own.record").read_bytes())
    (tmp_path / "broken.record").write_bytes(head)
    (tmp_path / "unfinished.part").write_bytes(b"x")
    own = (tmp_path / "own.record").read_bytes()
    (tmp_path / "naive.record").write_bytes(own.replace(b"+00:00", b"").replace(b'"own"', b'"naive"'))
    assert names(RecordFiles(str(tmp_path), ROOMY)) == ["own"]
    assert [path.name for path in tmp_path.iterdir()] == ["own.record"]


NESTED = b"[" * 900 + b"]" * 900
DEEP: dict[str, JsonValue] = {"deep": json.loads(NESTED)}


@pytest.mark.parametrize(
    ("result", "is_whole"),
    [(Result(parts={"application/json": NESTED}), True), (Result(parts={}, metadata=DEEP), False)],
    ids=["json", "metadata"],
)
def test_a_guest_cannot_hide_its_record(tmp_path: Path, result: Result, is_whole: bool) -> None:
    """JSON of a guest is kept as bytes; a cell that cannot be written loses its outputs, and nothing else is lost."""
    files = RecordFiles(str(tmp_path), ROOMY)
    plain = taken("deep").records[0].cells[0]
    given = taken("deep", output="x", results=(result,))
    cells = (*given.records[0].cells, plain)
    files.write(replace(given, records=(replace(given.records[0], cells=cells),)))
    assert [path.name for path in tmp_path.iterdir()] == ["deep.record"]
    whole = files.read("deep")
    first, second = whole.records["default"].cells
    assert (first.code, first.execution.id) == ("print()", "deep-1")
    assert [one.parts for one in first.execution.results] == ([result.parts] if is_whole else [])
    assert first.outputs_dropped is not is_whole
    assert second == plain
    assert whole.audit.sandbox_id == "deep"


def test_a_record_that_cannot_be_written_is_told_and_leaves_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails while it is written."""

    def failing() -> AuditLog:
        raise RecursionError

    files = RecordFiles(str(tmp_path), ROOMY)

    with caplog.at_level(logging.ERROR, "fumehood"):
        files.write(replace(taken("a"), read_audit=failing))

    assert [record.getMessage() for record in caplog.records]
    assert [*tmp_path.iterdir()] == []
    files.write(taken("b"))
    assert names(files) == ["b"]


class Running:
    """A command that runs, with a large output."""

    timed_out = False

    def __init__(self) -> None:
        self.info = ProcessInfo(pid=2, argv=("head",), cwd="/", envs={})
        limits = replace(Limits(), stdout_bytes=16 << 20)
        self.output = CommandOutput(limits)
        self.output.add("stdout", bytes(16 << 20))
        self.excerpt = self.output.excerpt


def test_output_of_commands_that_run_keeps_no_record_from_being_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No more of it waits than is written; where there is no room for that either, the record is without it."""
    monkeypatch.setattr(kept_records, "_MAX_WAITING_BYTES", 300_000)
    kept, history = KeptRecords(str(tmp_path), ROOMY), CommandHistory()

    for _ in range(3):
        history.begin(Running())

    async def keep() -> None:
        for name in ("first", "second", "third"):
            kept._write(replace(taken(name, output="x" * 60_000), commands=history.take_last()))

        # Control: they have filled it.
        kept._write(taken("dropped", output="x" * 200_000))
        await kept.aclose()

    with caplog.at_level(logging.ERROR, "fumehood"):
        asyncio.run(keep())

    assert ["could not be kept" in record.getMessage() for record in caplog.records] == [True]
    files = RecordFiles(str(tmp_path), ROOMY)
    assert set(names(files)) == {"first", "second", "third"}
    found = {name: files.read(name).commands.items for name in names(files)}
    assert {name: sum(map(len, (one.output for one in ran))) for name, ran in found.items()} == {
        "first": 6,
        "second": 0,
        "third": 0,
    }
    assert {len(ran) for ran in found.values()} == {3}


def test_a_key_does_not_fill_the_queue_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the key that holds most the latest gives way, and that is told; a key displaces nothing of its own."""
    monkeypatch.setattr(kept_records, "_MAX_WAITING_BYTES", 300_000)
    kept = KeptRecords(str(tmp_path), ROOMY)

    async def keep() -> None:
        for number in range(5):
            kept._write(taken(f"greedy-{number}", output="x" * 70_000, owner="greedy"))

        kept._write(taken("modest-0", output="x" * 60_000, owner="modest"))
        # More than its own share: nothing gives way to it.
        kept._write(taken("modest-1", output="x" * 200_000, owner="modest"))
        await kept.aclose()

    with caplog.at_level(logging.ERROR, "fumehood"):
        asyncio.run(keep())

    told = [record.getMessage() for record in caplog.records]
    assert set(names(RecordFiles(str(tmp_path), ROOMY))) == {*(f"greedy-{n}" for n in range(3)), "modest-0"}
    assert [name for line in told for name in ("greedy-4", "greedy-3", "modest-1") if name in line] == [
        "greedy-4",
        "greedy-3",
        "modest-1",
    ]
    # All of it is free again.
    assert kept._queue._held == kept._queue._waiting == {}


def test_labels_hide_no_file_from_the_bounds(tmp_path: Path) -> None:
    """A description that is too long is written without them."""
    files = RecordFiles(str(tmp_path), replace(ROOMY, max_count=2))

    for name in "abc":
        files.write(taken(name, labels="\N{LATIN SMALL LETTER E WITH ACUTE}" * 960_000))

    assert names(files) == ["c", "b"]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "c"]
    assert files.about("c").sandbox.metadata == {}


@pytest.mark.parametrize(
    ("bounds", "output"),
    [(replace(ROOMY, max_count=3), ""), (replace(ROOMY, max_bytes=70_000), "x" * 20_000)],
    ids=["count", "bytes"],
)
def test_a_key_displaces_its_own_records_alone(tmp_path: Path, bounds: RecordBounds, output: str) -> None:
    """Of the key that has most of what is scarce the oldest goes, also in the next engine with the folder."""
    files = RecordFiles(str(tmp_path), bounds)
    files.write(taken("evidence", owner="a", output=output, ago=100))

    for number in range(5):
        files.write(taken(f"flood{number}", owner="b", output=output, ago=10 - number))

    kept = names(files)
    assert kept[-1] == "evidence"
    assert kept[0] == "flood4"
    assert len(kept) == 3
    assert names(RecordFiles(str(tmp_path), bounds)) == kept


def test_the_index_keeps_no_labels_in_memory(tmp_path: Path) -> None:
    """Of 1,000 records they would be many megabytes of the engine."""
    files = RecordFiles(str(tmp_path), replace(ROOMY, max_bytes=1 << 30))
    tracemalloc.start()

    try:
        for number in range(40):
            files.write(taken(f"s{number}", labels="x" * 16_000))

        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 40 * 4_000
    assert files.page(ListRecords(text="xxx", limit=1)).items[0].sandbox.metadata["label"] == "x" * 16_000


def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    """The next one goes on behind it, and none is left out."""
    files = RecordFiles(str(tmp_path), replace(ROOMY, max_bytes=1 << 30))

    for number in range(30):
        files.write(taken(f"s{number:02}", labels="x" * 200_000, ago=30 - number))

    page, found, pages = files.page(ListRecords()), list[str](), 1

    while True:
        assert sum(len(one.sandbox.metadata["label"]) for one in page.items) <= 4 << 20
        found += [one.id for one in page.items]

        if page.next_cursor is None:
            break

        page, pages = files.page(ListRecords(before=page.next_cursor)), pages + 1

    assert pages == 2
    assert found == [f"s{number:02}" for number in reversed(range(30))]


def test_a_page_goes_on_behind_a_record_that_is_gone(tmp_path: Path) -> None:
    """No record is left out because that with which the page before ended was removed."""
    files = RecordFiles(str(tmp_path), ROOMY)

    for number in range(4):
        files.write(taken(f"s{number}", ago=10 - number))

    first = files.page(ListRecords(limit=2))
    files.remove("s2")
    assert [one.id for one in files.page(ListRecords(before=first.next_cursor)).items] == ["s1", "s0"]

    with pytest.raises(InvalidArgumentError, match="cursor"):
        files.page(ListRecords(before="none"))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """At the start, and not when the first sandbox has ended."""
    (tmp_path / "file").touch()

    with pytest.raises(InvalidArgumentError, match="records_folder"):
        KeptRecords(str(tmp_path / "file"), ROOMY)
