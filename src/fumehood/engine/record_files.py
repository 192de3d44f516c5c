"""The files of records of sandboxes that have ended: written once, found by an index, removed at their bounds.

Runs in the host process, all of it in the thread for kept records, so that nothing here needs a lock. A file is read
only under an id of the index, never under a name that a caller gave. Its content is the guest's: it is parsed line by
line and never unpickled. Every file of ours in the folder must be in the index, otherwise no bound would count it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fumehood.bounds import KIB, MIB
from fumehood.engine.command_history import LastCommands, text_page
from fumehood.engine.record_index import IndexedRecord, RecordBounds, RecordIndex
from fumehood.engine.records import Recorder, without_outputs
from fumehood.errors import InvalidArgumentError, RecordNotFoundError
from fumehood.log import events
from fumehood.off_loop import json_in_pieces
from fumehood.values.audit import AuditEntry, AuditLog
from fumehood.values.carried import carried
from fumehood.values.codec import read_value
from fumehood.values.execution import Record, RecordedCell
from fumehood.values.json_values import has_more_values, parse
from fumehood.values.kept_records import EndedSandbox, KeptContext, ListRecords, RecordList
from fumehood.values.looking import CommandPage, RanCommand
from fumehood.values.plain_data import as_data, fields_data
from fumehood.values.sandbox import SandboxInfo

FORMAT = "fumehood record 1"
_BEGIN = f'{{"format":"{FORMAT}",'.encode()
SUFFIX = ".record"
PART = ".part"
# More than a sandbox has: 16 MiB of records, of which JSON can take six bytes for each, and an audit record.
_MAX_FILE_BYTES = 128 * MIB
_MAX_LINE_VALUES = 2_000_000
# Some times what the labels of a sandbox may take, with escapes.
_MAX_HEAD_BYTES = 256 * KIB
_MAX_PAGE_BYTES = 4 * MIB
_UNREADABLE = (ValueError, RecursionError, LookupError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRecord:
    """A record that was read: its cells, in the same form as those of a living sandbox, commands and audit record."""

    about: EndedSandbox
    records: dict[str, Record]
    recorder: Recorder
    audit: AuditLog
    commands: CommandPage


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRecord:
    """The data of a sandbox that were taken at its end."""

    about: EndedSandbox
    records: tuple[Record, ...]
    read_audit: Callable[[], AuditLog]
    commands: LastCommands
    # Of the cells and of the audit record.
    other_bytes: int

    @property
    def size_bytes(self) -> int:
        """What it holds until it is written."""
        return self.other_bytes + self.commands.size_bytes

    def without_output_of_commands(self) -> TakenRecord:
        """Returns the same without the output of commands."""
        return replace(self, commands=self.commands.without_output())


class RecordFiles:
    """The records of the sandboxes of one host that have ended, as files.

    Args:
        folder: The folder of the files; made with mode 0700.
        bounds: How much is kept.

    Raises:
        InvalidArgumentError: The folder cannot be made or written to.
    """

    def __init__(self, folder: str, bounds: RecordBounds) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._bounds = bounds
        self._index: RecordIndex | None = None

        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self._folder, error.strerror or str(error)) from None

        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise _unusable(self._folder, "it cannot be written to")

    def _known(self) -> RecordIndex:
        if self._index is None:
            for unfinished in self._folder.glob(f"*{PART}"):
                _unlink(unfinished, unfinished.stem)

            found = [record for path in self._folder.glob(f"*{SUFFIX}") if (record := _indexed(path))]
            self._index = RecordIndex(self._bounds)

            for record in sorted(found, key=lambda record: record.place):
                self._index.add(record)

            self._shrink()

        return self._index

    def page(self, request: ListRecords) -> RecordList:
        """Returns a page of the kept records; the sandbox that ended last comes first.

        At most 4 MiB of descriptions are read for it, so a page can have fewer records than requested although a next
        page exists.
        """
        self.expire()
        text = request.text.casefold()
        items: list[EndedSandbox] = []
        last: IndexedRecord | None = None
        read_bytes = 0

        for record in self._known().before(request.before, request.owner):
            about, head_bytes = self._described(record.id)
            read_bytes += head_bytes

            if about is not None and _fits(about, text):
                if last is not None and (len(items) == request.limit or read_bytes > _MAX_PAGE_BYTES):
                    return RecordList(is_kept=True, items=tuple(items), next_cursor=last.cursor)

                items.append(about)
            elif read_bytes > _MAX_PAGE_BYTES:
                return RecordList(is_kept=True, items=tuple(items), next_cursor=record.cursor)

            last = record

        return RecordList(is_kept=True, items=tuple(items))

    def about(self, sandbox_id: str) -> EndedSandbox:
        """Describes a sandbox that has ended."""
        self.expire()
        about = None if self._known().get(sandbox_id) is None else self._described(sandbox_id)[0]

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
        """Writes a record, and removes records beyond the bounds."""
        known, about = self._known(), taken.about
        path = self._path(about.id)
        temporary = path.with_suffix(PART)

        try:
            size_bytes = _write_lines(temporary, taken)

            if size_bytes > min(self._bounds.max_bytes, _MAX_FILE_BYTES):
                temporary.unlink()
                events.RECORD_NOT_KEPT.log(sandbox_id=about.id, reason="it is larger than all may be")
                return

            temporary.replace(path)
        # Whatever it is: a file that stays here would be counted by no bound, and a loss must not be silent.
        except Exception as error:  # noqa: BLE001
            _unlink(temporary, about.id)
            events.RECORD_NOT_KEPT.log(sandbox_id=about.id, reason=_reason(error))
            return

        known.add(
            IndexedRecord(
                id=about.id,
                owner=about.sandbox.owner,
                ended_at=about.ended_at.timestamp(),
                size_bytes=size_bytes,
            )
        )
        self._shrink()

    def remove(self, sandbox_id: str) -> bool:
        """Removes a record; returns whether it existed."""
        if self._known().pop(sandbox_id) is None:
            return False

        _unlink(self._path(sandbox_id), sandbox_id)
        return True

    def _described(self, sandbox_id: str) -> tuple[EndedSandbox | None, int]:
        """Returns the description of a record, and its size; removes the record if it cannot be parsed any more."""
        try:
            return _head_of(self._path(sandbox_id))
        except OSError as error:
            # It may be readable again, as when too many files are open.
            events.RECORD_NOT_READ.log(sandbox_id=sandbox_id, reason=_reason(error))
        except _UNREADABLE as error:
            events.RECORD_NOT_READ.log(sandbox_id=sandbox_id, reason=type(error).__name__)
            self.remove(sandbox_id)

        return None, 0

    def _shrink(self) -> None:
        while (surplus := self._known().surplus()) is not None:
            self.remove(surplus)

        self.expire()

    def expire(self) -> None:
        """Removes records that are too old."""
        while (outdated := self._known().outdated(time.time())) is not None:
            self.remove(outdated)

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


# -- the file: a line for the description, one for each context, cell, entry of the audit record, and command


def _write_lines(path: Path, taken: TakenRecord) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

    with open(os.open(path, flags, 0o600), "wb") as file:
        for line in _lines(taken):
            file.write(line)

        return file.tell()


def _lines(taken: TakenRecord) -> Iterator[bytes]:
    yield _head(_summed(taken.about, taken.records))

    for record in taken.records:
        yield _line({"context": as_data(replace(record, cells=()))})

        for cell in record.cells:
            yield _cell_line(cell)

    audit = taken.read_audit()
    yield _line({"audit": {"dropped": audit.dropped}})

    for entry in audit.entries:
        yield _line({"entry": fields_data(entry)})

    commands = text_page(taken.commands.read())
    yield _line({"commands": {"dropped": commands.dropped_commands}})

    for ran in commands.items:
        yield _line({"command": fields_data(ran)})


def _line(data: dict[str, Any]) -> bytes:
    return json_in_pieces(data, is_ascii=True).encode("ascii") + b"\n"


def _head(about: EndedSandbox) -> bytes:
    """Returns the first line of a file, without labels and contexts if it would be too long to be read back."""
    line = _line({"format": FORMAT, "about": as_data(about)})

    if len(line) <= _MAX_HEAD_BYTES:
        return line

    line = _line(
        {
            "format": FORMAT,
            "about": as_data(replace(about, sandbox=replace(about.sandbox, metadata={}), contexts=())),
        }
    )

    if len(line) > _MAX_HEAD_BYTES:
        raise ValueError("its description is too long")

    return line


def _cell_line(cell: RecordedCell) -> bytes:
    """Returns the line of a cell, without its outputs if these cannot be written in a form that can be read back."""
    with suppress(RecursionError, ValueError, TypeError):
        line = _line({"cell": _cell_data(cell)})

        if not has_more_values(line, _MAX_LINE_VALUES, 2 * _MAX_LINE_VALUES):
            return line

    bare = replace(cell, execution=without_outputs(cell.execution), outputs_dropped=True)
    return _line({"cell": _cell_data(bare)})


def _cell_data(cell: RecordedCell) -> dict[str, Any]:
    # Results as bytes: as values, JSON of the guest could be nested deeper than can be written.
    data: dict[str, Any] = fields_data(replace(cell, execution=carried(cell.execution)))
    # Only its entries are read back; the joined text of each stream would double them.
    data["execution"]["logs"] = {"entries": data["execution"]["logs"]["entries"]}
    return data


def _head_of(path: Path) -> tuple[EndedSandbox, int]:
    """Returns the description in a file, parsed, and the length of its line in bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has no description, or that of another record; also LookupError, RecursionError and
            TypeError.
    """
    with path.open("rb") as file:
        line = file.readline(_MAX_HEAD_BYTES)
        size_bytes = os.fstat(file.fileno()).st_size

    data = json.loads(line)
    about = read_value(EndedSandbox, data["about"])

    if data["format"] != FORMAT or f"{about.id}{SUFFIX}" != path.name or about.ended_at.tzinfo is None:
        raise ValueError("it is no description of this file")

    return replace(about, size_bytes=size_bytes), len(line)


def _indexed(path: Path) -> IndexedRecord | None:
    """Returns the index entry of a file in the folder; removes a file of ours that cannot be parsed."""
    try:
        about, _ = _head_of(path)
        return IndexedRecord(
            id=about.id,
            owner=about.sandbox.owner,
            ended_at=about.ended_at.timestamp(),
            size_bytes=about.size_bytes,
        )
    except OSError as error:
        events.RECORD_NOT_READ.log(sandbox_id=path.stem, reason=_reason(error))
        return _unread(path)
    except _UNREADABLE as error:
        if _is_ours(path):
            events.RECORD_NOT_READ.log(sandbox_id=path.stem, reason=type(error).__name__)
            _unlink(path, path.stem)

        return None


def _unread(path: Path) -> IndexedRecord | None:
    """Returns the index entry of a file that cannot be read at the moment, so that the bounds count it."""
    with suppress(OSError):
        if stat.S_ISREG((found := path.lstat()).st_mode):
            return IndexedRecord(id=path.stem, owner="", ended_at=found.st_mtime, size_bytes=found.st_size)

    return None


def _is_ours(path: Path) -> bool:
    """Whether a file begins like our files; an empty file counts as ours, cut off when the machine crashed."""
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(len(_BEGIN)).rstrip(b"\0")
        return not begin or begin == _BEGIN

    return False


def _unlink(path: Path, sandbox_id: str) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        events.RECORD_NOT_REMOVED.log(sandbox_id=sandbox_id, reason=_reason(error))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _read_whole(about: EndedSandbox, path: Path) -> WholeRecord:
    if about.size_bytes > _MAX_FILE_BYTES:
        raise ValueError("it is too large")

    records: list[tuple[Record, list[RecordedCell]]] = []
    entries: list[AuditEntry] = []
    commands: list[RanCommand] = []
    # Files of before commands were kept have no line for them.
    dropped = dropped_commands = 0

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
            elif "command" in data:
                commands.append(read_value(RanCommand, data["command"]))
            elif "commands" in data:
                dropped_commands = int(data["commands"]["dropped"])
            elif "context" in data:
                records.append((read_value(Record, data["context"]), []))
            else:
                dropped = int(data["audit"]["dropped"])

    whole = {
        record.context_id: replace(
            record, cells=tuple(cells), dropped_outputs=sum(cell.outputs_dropped for cell in cells)
        )
        for record, cells in records
    }
    recorder = Recorder(_MAX_FILE_BYTES)

    for record in whole.values():
        recorder.begin_with(record.context_id, record)

    return WholeRecord(
        about=about,
        records=whole,
        recorder=recorder,
        audit=AuditLog(sandbox_id=about.id, entries=tuple(entries), dropped=dropped),
        commands=CommandPage(items=tuple(commands), dropped_commands=dropped_commands),
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
