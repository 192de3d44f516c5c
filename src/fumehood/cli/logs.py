"""`fumehood logs`: what ran in a sandbox of a server, living or ended, and what runs: cells of all contexts, commands.

Code, commands and output are a guest's or another caller's: they are made visible before they are printed. It only
looks: the sandbox runs nothing for it and lives no longer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fumehood.cli.parser import Argument, Command, Option, Options
from fumehood.cli.run import show_error, show_result
from fumehood.cli.saved import SERVER_OPTIONS, living_or_ended
from fumehood.cli.terminal import Screen, counted, note
from fumehood.text import visible_line

if TYPE_CHECKING:
    from fumehood.port.backend import Backend
    from fumehood.values.execution import Record
    from fumehood.values.kept_records import EndedSandbox
    from fumehood.values.looking import Cell, CellPage, CommandPage, CommandPiece, Look, RanCommand

_T = TypeVar("_T")
_LOOK_AGAIN_SECONDS = 0.5
_PAGE = 100
_DEFAULT = "default"


def run(options: Options) -> int:
    """Print what ran in a sandbox and what it wrote; with `--follow` also what comes; return the exit code."""
    from fumehood.errors import SandboxClosedError, SandboxNotFoundError

    source = _Source(*living_or_ended(options))

    if options.json:
        print(json.dumps(_data(source, options.tail), indent=2))
        return 0

    log = _Log(source, Screen(), with_code=not options.quiet, tail=options.tail)

    if source.ended is not None or not options.follow:
        log.show(is_last=True)

        if source.ended is not None:
            log.say(f"it has ended ({visible_line(source.ended.reason)}, {_time(source.ended.ended_at)})")

        return 0

    try:
        while True:
            began = time.monotonic()
            log.show(is_last=False)
            # A look that takes long is a load on the server.
            time.sleep(max(_LOOK_AGAIN_SECONDS, 4 * (time.monotonic() - began)))
    except (SandboxClosedError, SandboxNotFoundError) as error:
        log.say(error.message)
        return 0


def _data(source: _Source, tail: int | None) -> dict[str, Any]:
    """Returns the record of the default context, and beside it those of the others and the commands."""
    from fumehood.values.plain_data import fields_data

    records = [record for name in source.contexts() if (record := source.record(name)) is not None]
    shown = [fields_data(replace(record, cells=tuple(_last(record.cells, tail)))) for record in records]
    first, *others = shown or [{}]
    commands = [fields_data(ran) for page in source.commands() for ran in page.items]
    return {
        **first,
        "other_contexts": others,
        "running": [fields_data(cell) for cell in source.newest_cells() if cell.state == "running"],
        "commands": _last(commands, tail),
    }


def _last(items: Sequence[_T], tail: int | None) -> Sequence[_T]:
    return items if tail is None else items[max(0, len(items) - tail) :]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where to read what ran in a sandbox: a living one of a server, or the record of an ended one."""

    backend: Backend
    sandbox_id: str
    ended: EndedSandbox | None

    def contexts(self) -> list[str]:
        """Returns the contexts that have a record, the default one first; a list of contexts would wake the sandbox."""
        from fumehood.values.looking import ReadUse

        if self.ended is not None:
            names: Iterable[str] = (context.id for context in self.ended.contexts)
        else:
            names = self._look(ReadUse()).contexts

        return [_DEFAULT, *(name for name in names if name != _DEFAULT)]

    def newest_cells(self) -> Iterator[Cell]:
        """Yields the newest cell of each context."""
        for name in self.contexts():
            if (page := self.cells(name, limit=1)) is not None:
                yield from page.items

    def cells(self, context: str, *, after: int | None = None, limit: int) -> CellPage | None:
        """Returns a page of the cells of a context; None if it was removed since it was named."""
        from fumehood.errors import ContextNotFoundError
        from fumehood.values.looking import ReadCells

        try:
            return self._look(ReadCells(context_id=context, after=after, limit=limit, whole=True))
        except ContextNotFoundError:
            return None

    def record(self, context: str) -> Record | None:
        """Returns the record of a context; None if it was removed since it was named."""
        from fumehood.errors import ContextNotFoundError
        from fumehood.port.record_keeping import RecordKeeping
        from fumehood.portal import call

        try:
            if self.ended is not None and isinstance(self.backend, RecordKeeping):
                return call(self.backend.kept_record, self.sandbox_id, context)

            return call(self.backend.record, self.sandbox_id, context)
        except ContextNotFoundError:
            return None

    def commands(self, after: int = -1) -> Iterator[CommandPage]:
        """Yields the commands behind a number, page by page."""
        from fumehood.values.looking import ReadCommands

        place: int | None = after

        while place is not None:
            page = self._look(ReadCommands(after=place))
            yield page
            place = page.next_cursor

    def _look(self, request: Look[_T]) -> _T:
        from fumehood.port.record_keeping import RecordKeeping
        from fumehood.portal import call

        if self.ended is not None and isinstance(self.backend, RecordKeeping):
            return call(self.backend.look_back, self.sandbox_id, request)

        return call(self.backend.look, self.sandbox_id, request)


@dataclass(slots=True)
class _Shown:
    """How much of a cell or a command was printed.

    Attributes:
        characters: How many characters of the output of a cell.
        results: How many of its results.
        ends: How many bytes of each stream of a command.
    """

    characters: int = 0
    results: int = 0
    ends: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})


class _Log:
    """Prints what ran, in the order in which it began, and of each only what is new since the last look."""

    def __init__(self, source: _Source, screen: Screen, *, with_code: bool, tail: int | None) -> None:
        self._source = source
        self._screen = screen
        self._with_code = with_code
        # How many of the first look are printed; None: all.
        self._tail = tail
        # By context: the position of the last cell that was printed to its end.
        self._done: dict[str, int] = {}
        self._last_command = -1
        self._ended_commands: set[int] = set()
        # Of what was begun and has not ended.
        self._shown: dict[str, _Shown] = {}
        self._last_name = ""
        self._is_in_line = False

    def show(self, *, is_last: bool) -> None:
        """Print what is new.

        Args:
            is_last: Whether nothing will follow, so that what still runs is named as such.
        """
        # Imported late: `--help` needs none of it.
        from fumehood.values.looking import RanCommand

        found: list[Cell | RanCommand] = []

        for page in self._source.commands(self._last_command):
            self._note_dropped(page.dropped_commands)
            found += (one for one in page.items if one.number not in self._ended_commands)

        for name in self._source.contexts():
            found += self._new_cells(name)

        found.sort(key=_began)
        skipped = 0 if self._tail is None else max(0, len(found) - self._tail)
        self._tail = None

        for one in found[:skipped]:
            self._skip(one)

        for one in found[skipped:]:
            if isinstance(one, RanCommand):
                self._show_command(one, is_last=is_last)
            else:
                self._show_cell(one, is_last=is_last)

    def _skip(self, one: Cell | RanCommand) -> None:
        """Count a cell or a command as printed; of one that runs, only what comes is printed."""
        from fumehood.values.looking import RanCommand

        if isinstance(one, RanCommand):
            if one.exit_code is None:
                ends = {piece.stream: piece.begin_bytes + piece.size_bytes for piece in one.output}
                self._shown[f"command {one.number}"] = _Shown(ends={"stdout": 0, "stderr": 0} | ends)
            else:
                self._note_ended(one.number)
        elif one.state != "ended" and one.execution is not None:
            entries = one.execution.logs.entries
            characters = sum(len(entry.text) for entry in entries)
            self._shown[_name(one)] = _Shown(characters, len(one.execution.results))

    def _note_dropped(self, dropped: int) -> None:
        """Say how many commands are gone of which the end was not printed."""
        gone = {number for number in self._ended_commands if number < dropped}
        missing = dropped - self._last_command - 1 - len(gone)
        self._ended_commands -= gone
        self._last_command = max(self._last_command, dropped - 1)

        if missing > 0 and self._tail is None:
            self.say(f"{counted(missing, 'command')} before these are not kept any more")

    def _new_cells(self, context: str) -> Iterator[Cell]:
        after = self._done.get(context)
        is_first = after is None
        after = -1 if after is None else after

        while True:
            page = self._source.cells(context, after=after, limit=_PAGE)

            if page is None:
                return

            if is_first and page.dropped_cells and self._tail is None:
                self.say(
                    f"{counted(page.dropped_cells, 'execution')} before these are not in the record any more"
                )

            is_first = False
            yield from page.items

            for cell in page.items:
                after = max(after, cell.position)
                self._done[context] = cell.position if cell.state == "ended" else cell.position - 1

            if len(page.items) < _PAGE:
                return

    def _show_cell(self, cell: Cell, *, is_last: bool) -> None:
        execution = cell.execution
        assert execution is not None, "it was asked for"
        name = _name(cell)
        where = "" if cell.context_id == _DEFAULT else f", context {visible_line(cell.context_id)}"
        undone = ", undone" if cell.is_undone else ""
        self._head(name, f"{_time(cell.started_at)}{where}{undone}", cell.code)

        if cell.outputs_dropped:
            self.say("its output is not in the record any more")

        shown = self._shown.setdefault(name, _Shown())
        self._write(shown, ((entry.stream, entry.text) for entry in execution.logs.entries))

        for result in execution.results[shown.results :]:
            self._end_line()
            show_result(self._screen, result)

        shown.results = len(execution.results)

        if cell.state == "ended":
            del self._shown[name]

            if execution.error is not None:
                self._end_line()
                show_error(self._screen, execution.error)
        elif is_last:
            asked = cell.input_request
            self.say("it runs" if asked is None else f"it waits for input: {visible_line(asked.prompt)}")

    def _show_command(self, ran: RanCommand, *, is_last: bool) -> None:
        name = f"command {ran.number}"
        kind = "terminal" if ran.is_terminal else "command"
        self._head(name, f"{_time(ran.started_at)}, {kind} in {visible_line(ran.cwd)}", f"$ {ran.command}")
        shown = self._shown.setdefault(name, _Shown())
        self._write_pieces(shown, ran.output)

        if ran.exit_code is None:
            if is_last:
                self.say("it runs" if self._source.ended is None else "it ran until the sandbox ended")

            return

        del self._shown[name]
        self._note_ended(ran.number)

        if self._with_code:
            why = ", killed at its time limit" if ran.timed_out else ""
            self._tell(f"    exit code {ran.exit_code}{why}\n")

    def _note_ended(self, number: int) -> None:
        self._ended_commands.add(number)

        while self._last_command + 1 in self._ended_commands:
            self._last_command += 1
            self._ended_commands.discard(self._last_command)

    def _head(self, name: str, about: str, code: str) -> None:
        """Print what follows is from, unless that is what came last."""
        if name == self._last_name:
            return

        self._last_name = name

        if not self._with_code:
            return

        if name in self._shown:
            self._tell(f"--- {about}, goes on\n")
        else:
            self._tell(f"--- {about}\n" + "".join(f"    {line}\n" for line in code.splitlines()))

    def _write_pieces(self, shown: _Shown, pieces: Iterable[CommandPiece]) -> None:
        """Print the output of a command behind what was printed of each stream, and how much is missing between."""
        for piece in pieces:
            printed, end = shown.ends[piece.stream], piece.begin_bytes + piece.size_bytes

            if piece.begin_bytes > printed:
                self._output(piece.stream, f"\n[... {piece.begin_bytes - printed:,} bytes ...]\n")

            if end > printed:
                self._output(piece.stream, _behind(piece, max(0, printed - piece.begin_bytes)))

            shown.ends[piece.stream] = max(printed, end)

    def _write(self, shown: _Shown, pieces: Iterable[tuple[str, str]]) -> None:
        """Print the output behind what was printed."""
        skipped = shown.characters

        for stream, text in pieces:
            fresh = text[skipped:]
            skipped = max(0, skipped - len(text))

            if fresh:
                shown.characters += len(fresh)
                self._output(stream, fresh)

    def _output(self, stream: str, text: str) -> None:
        (self._screen.err if stream == "stderr" else self._screen.out)(text)
        self._is_in_line = not text.endswith("\n")

    def _tell(self, text: str) -> None:
        """Print lines that are no output to standard error, not behind the last line of output that did not end."""
        self._end_line()
        self._screen.err(text)

    def say(self, text: str) -> None:
        """Print a note on a line of its own."""
        self._end_line()
        note(text)

    def _end_line(self) -> None:
        if self._is_in_line:
            self._screen.err("\n")
            self._is_in_line = False


def _behind(piece: CommandPiece, skipped_bytes: int) -> str:
    """Returns the text of a piece behind its first bytes."""
    data = piece.text.encode() if piece.data is None else piece.data
    return data[skipped_bytes:].decode("utf-8", "replace")


def _name(cell: Cell) -> str:
    return cell.id or f"{cell.context_id} {cell.position}"


def _began(one: Cell | RanCommand) -> datetime:
    return one.started_at or datetime.max.replace(tzinfo=UTC)


def _time(moment: datetime | None) -> str:
    return "not begun" if moment is None else moment.astimezone().strftime("%H:%M:%S")


LOGS = Command(
    "logs",
    run,
    brief="print what ran in a sandbox of a server",
    about="Print what ran in a sandbox, and what it wrote and showed: the code of all contexts, and commands with "
    "their exit codes; of one that has ended, if its record is kept. Code, commands and standard error go to "
    "standard error.",
    params=[
        Argument(
            "sandbox",
            metavar="SANDBOX",
            about="its id, as `fumehood ps` and `fumehood records` list it, or the beginning or end of it",
        ),
        *SERVER_OPTIONS,
        Option(
            ["-f", "--follow"], is_flag=True, help="go on with what comes, until the sandbox ends or Ctrl-C"
        ),
        Option(
            ["-n", "--tail"],
            type=click.IntRange(min=0),
            metavar="N",
            help="begin with the last N executions and commands (default: all that are kept)",
        ),
        Option(["-q", "--quiet"], is_flag=True, help="without the code and the commands that ran"),
        Option(["--json"], is_flag=True, help="print what a program would read"),
    ],
)
