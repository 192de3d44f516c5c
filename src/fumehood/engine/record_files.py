"""The files of records of sandboxes that have ended: written once, found by an index, removed at their bounds.

Runs in the host process, all of it in the thread for kept records, so that nothing here needs a lock. A file is read
only under an id of the index, never under a name that a caller gave. Its content is the guest's: it is parsed line by
line and never unpickled.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fumehood.bounds import MIB
from fumehood.engine.records import Recorder
from fumehood.errors import InvalidArgumentError, RecordNotFoundError
from fumehood.log import events
from fumehood.off_loop import json_in_pieces
from fumehood.values.audit import AuditEntry, AuditLog
from fumehood.values.codec import read_value
from fumehood.values.execution import Record, RecordedCell
from fumehood.values.json_values import parse
from fumehood.values.kept_records import EndedSandbox, KeptContext, ListRecords, RecordList
from fumehood.values.plain_data import as_data, fields_data
from fumehood.values.sandbox import SandboxInfo

FORMAT = "fumehood record 1"
SUFFIX = ".record"
# More than a sandbox has: 16 MiB of records, of which JSON can take six bytes for each, and an audit record.
_MAX_FILE_BYTES = 128 * MIB
_MAX_LINE_VALUES = 2_000_000
_MAX_HEAD_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """How much is kept: the oldest go first.

    Attributes:
        max_bytes: Of all files.
        max_count: How many.
        max_seconds: How long each, from the end of its sandbox.
    """

    max_bytes: int
    max_count: int
    max_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRecord:
    """A record that was read: its cells as those of a living sandbox are kept, and its audit record."""

    about: EndedSandbox
    records: dict[str, Record]
    recorder: Recorder
    audit: AuditLog


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRecord:
    """What a sandbox had at its end."""

    about: EndedSandbox
    records: tuple[Record, ...]
    read_audit: Callable[[], AuditLog]
    size_bytes: int


class RecordFiles:
    """The records of the sandboxes of one host that have ended, as files.

    Args:
        folder: Where they lie; made with mode 0700.
        bounds: How much is kept.

    Raises:
        InvalidArgumentError: The folder cannot be made or written to.
    """

    def __init__(self, folder: str, bounds: RecordBounds) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._bounds = bounds
        # The oldest end first.
        self._index: OrderedDict[str, EndedSandbox] | None = None
        self._size_bytes = 0

        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self._folder, error.strerror or str(error)) from None

        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise _unusable(self._folder, "it cannot be written to")

    def _known(self) -> OrderedDict[str, EndedSandbox]:
        if self._index is None:
            found = [about for path in self._folder.glob(f"*{SUFFIX}") if (about := _head_of(path))]
            found.sort(key=lambda about: about.ended_at)
            self._index = OrderedDict((about.id, about) for about in found)
            self._size_bytes = sum(about.size_bytes for about in found)
            self._shrink()

        return self._index

    def page(self, request: ListRecords) -> RecordList:
        """Returns a page of those that are kept, the latest end first."""
        self.expire()
        text = request.text.casefold()
        items: list[EndedSandbox] = []
        is_after = request.before is None

        for about in reversed(self._known().values()):
            if is_after and request.owner in (None, about.sandbox.owner) and _fits(about, text):
                if len(items) == request.limit:
                    return RecordList(is_kept=True, items=tuple(items), next_cursor=items[-1].id)

                items.append(about)

            is_after = is_after or about.id == request.before

        return RecordList(is_kept=True, items=tuple(items))

    def about(self, sandbox_id: str) -> EndedSandbox:
        """Describes a sandbox that has ended."""
        self.expire()
        about = self._known().get(sandbox_id)

        if about is None:
            raise RecordNotFoundError(sandbox_id=sandbox_id)

        return about

    def read(self, sandbox_id: str) -> WholeRecord:
        """Returns the whole record."""
        about = self.about(sandbox_id)

        try:
            return _read_whole(about, self._path(sandbox_id))
        except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
            events.RECORD_NOT_READ.log(sandbox_id=sandbox_id, reason=type(error).__name__)
            raise RecordNotFoundError(sandbox_id=sandbox_id) from None

    def write(self, taken: TakenRecord) -> None:
        """Writes a record, and removes the oldest beyond the bounds."""
        known, sandbox_id = self._known(), taken.about.id
        path = self._path(sandbox_id)
        temporary = path.with_suffix(".part")

        try:
            size_bytes = _write_lines(temporary, taken)

            if size_bytes > min(self._bounds.max_bytes, _MAX_FILE_BYTES):
                temporary.unlink()
                events.RECORD_NOT_KEPT.log(sandbox_id=sandbox_id, reason="it is larger than all may be")
                return

            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

            events.RECORD_NOT_KEPT.log(sandbox_id=sandbox_id, reason=error.strerror or str(error))
            return

        if (former := known.pop(sandbox_id, None)) is not None:
            self._size_bytes -= former.size_bytes

        # As it is read back: the sums were made while it was written.
        if (about := _head_of(path)) is not None:
            known[sandbox_id] = about
            self._size_bytes += about.size_bytes

        self._shrink()

    def remove(self, sandbox_id: str) -> bool:
        """Removes a record; returns whether there was one."""
        about = self._known().pop(sandbox_id, None)

        if about is None:
            return False

        self._size_bytes -= about.size_bytes

        try:
            self._path(sandbox_id).unlink(missing_ok=True)
        except OSError as error:
            events.RECORD_NOT_REMOVED.log(sandbox_id=sandbox_id, reason=error.strerror or str(error))

        return True

    def _shrink(self) -> None:
        known, bounds = self._known(), self._bounds

        while known and (len(known) > bounds.max_count or self._size_bytes > bounds.max_bytes):
            self.remove(next(iter(known)))

        self.expire()

    def expire(self) -> None:
        """Removes what is too old."""
        known, oldest = self._known(), time.time() - self._bounds.max_seconds

        while known and next(iter(known.values())).ended_at.timestamp() < oldest:
            self.remove(next(iter(known)))

    def _path(self, sandbox_id: str) -> Path:
        return self._folder / f"{sandbox_id}{SUFFIX}"


def _summed(about: EndedSandbox, records: tuple[Record, ...]) -> EndedSandbox:
    executions = [cell.execution for record in records for cell in record.cells]
    begun = [(one.started_at, number) for number, one in enumerate(executions) if one.started_at is not None]
    error = executions[max(begun)[1]].error if begun else None
    return replace(
        about,
        contexts=tuple(
            KeptContext(id=record.context_id, language=record.language, cells=len(record.cells))
            for record in records
        ),
        cells=max(about.cells, len(executions)),
        failed=sum(one.error is not None for one in executions),
        last_outcome=("ok" if error is None else error.kind) if begun else about.last_outcome,
        cpu_seconds=sum(one.usage.user_cpu_seconds + one.usage.system_cpu_seconds for one in executions),
        peak_memory_bytes=max((one.usage.peak_memory_bytes or 0 for one in executions), default=0),
    )


# -- the file: a line for the description, one for each context, cell and entry of the audit record


def _write_lines(path: Path, taken: TakenRecord) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

    with open(os.open(path, flags, 0o600), "wb") as file:
        for line in _lines(taken):
            file.write(json_in_pieces(line, is_ascii=True).encode("ascii") + b"\n")

        return file.tell()


def _lines(taken: TakenRecord) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "about": as_data(_summed(taken.about, taken.records))}

    for record in taken.records:
        yield {"context": as_data(replace(record, cells=()))}

        for cell in record.cells:
            yield {"cell": _cell_data(cell)}

    audit = taken.read_audit()
    yield {"audit": {"dropped": audit.dropped}}

    for entry in audit.entries:
        yield {"entry": fields_data(entry)}


def _cell_data(cell: RecordedCell) -> dict[str, Any]:
    data: dict[str, Any] = fields_data(cell)
    # Only its entries are read back; the joined text of each stream would double them.
    data["execution"]["logs"] = {"entries": data["execution"]["logs"]["entries"]}
    return data


def _head_of(path: Path) -> EndedSandbox | None:
    """Returns the description in a file; None if it is not one of ours."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.readline(_MAX_HEAD_BYTES))
            size_bytes = os.fstat(file.fileno()).st_size

        about = read_value(EndedSandbox, data["about"])
        is_ours = data["format"] == FORMAT and f"{about.id}{SUFFIX}" == path.name
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None

    return replace(about, size_bytes=size_bytes) if is_ours else None


def _read_whole(about: EndedSandbox, path: Path) -> WholeRecord:
    if about.size_bytes > _MAX_FILE_BYTES:
        raise ValueError("it is too large")

    records: list[tuple[Record, list[RecordedCell]]] = []
    entries: list[AuditEntry] = []
    dropped = 0

    with path.open("rb") as file:
        file.readline(_MAX_HEAD_BYTES)

        for line in file:
            data = parse(line, _MAX_LINE_VALUES)

            if not isinstance(data, dict):
                raise ValueError("a line is no object")

            if "cell" in data:
                records[-1][1].append(read_value(RecordedCell, data["cell"]))
            elif "entry" in data:
                entries.append(read_value(AuditEntry, data["entry"]))
            elif "context" in data:
                records.append((read_value(Record, data["context"]), []))
            else:
                dropped = int(data["audit"]["dropped"])

    whole = {record.context_id: replace(record, cells=tuple(cells)) for record, cells in records}
    recorder = Recorder(_MAX_FILE_BYTES)

    for record in whole.values():
        recorder.begin_with(record.context_id, record)

    return WholeRecord(
        about=about,
        records=whole,
        recorder=recorder,
        audit=AuditLog(sandbox_id=about.id, entries=tuple(entries), dropped=dropped),
    )


def _fits(about: EndedSandbox, text: str) -> bool:
    info = about.sandbox
    words = (info.id, info.template, info.owner, about.reason, *_labels(info))
    return not text or any(text in word.casefold() for word in words)


def _labels(info: SandboxInfo) -> Iterator[str]:
    return (f"{name}={value}" for name, value in info.metadata.items())


def _unusable(path: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="records_folder", value=str(path), allowed=f"a folder that can be written to ({reason})"
    )
