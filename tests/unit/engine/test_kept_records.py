"""Kept records stay within their bounds, and a file that was changed counts as absent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fumehood.engine.kept_records import KeptRecords
from fumehood.engine.record_files import RecordBounds, RecordFiles, TakenRecord
from fumehood.errors import InvalidArgumentError, RecordNotFoundError
from fumehood.values.audit import AuditLog
from fumehood.values.execution import Execution, LogEntry, Logs, Record, RecordedCell
from fumehood.values.kept_records import EndedSandbox, ListRecords
from fumehood.values.limits import Limits, Usage
from fumehood.values.looking import ReadCells
from fumehood.values.sandbox import Isolation, SandboxInfo

DAY = 86_400.0
NOW = datetime.now(UTC)
ROOMY = RecordBounds(max_bytes=1 << 20, max_count=100, max_seconds=10 * DAY)


def taken(name: str, *, ago: float = 0, output: str = "") -> TakenRecord:
    info = SandboxInfo(
        id=name,
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
            logs=Logs(entries=(LogEntry(stream="stdout", text=output, at_seconds=0.0),)),
        ),
    )
    return TakenRecord(
        about=EndedSandbox(sandbox=info, ended_at=NOW - timedelta(seconds=ago), reason="killed", cells=1),
        records=(Record(sandbox_id=name, context_id="default", language="python", cells=(cell,)),),
        read_audit=lambda: AuditLog(sandbox_id=name),
        size_bytes=len(output),
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
    "head", [b"", b"{}", b'{"format": "fumehood record 1", "about": []}', b"\xff\n", b"[" * 100_000]
)
def test_files_of_others_are_left_alone(tmp_path: Path, head: bytes) -> None:
    """One whose description is none is not listed; nor is one under another's name."""
    (tmp_path / "foreign.record").write_bytes(head)
    files = RecordFiles(str(tmp_path), ROOMY)
    files.write(taken("own"))
    (tmp_path / "other.record").write_bytes((tmp_path / "own.record").read_bytes())
    assert names(RecordFiles(str(tmp_path), ROOMY)) == ["own"]
    assert (tmp_path / "foreign.record").exists()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """At the start, and not when the first sandbox has ended."""
    (tmp_path / "file").touch()

    with pytest.raises(InvalidArgumentError, match="records_folder"):
        KeptRecords(str(tmp_path / "file"), ROOMY)
