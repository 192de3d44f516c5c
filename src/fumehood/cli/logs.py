"""`fumehood logs`: what ran in a living sandbox of a server, and what runs: cells of all contexts, and commands.

Runs in the user's terminal. Code, commands and output are a guest's or another caller's: they are made visible before
they are printed. It only looks: the sandbox runs nothing for it and lives no longer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.cli.parser import Argument, Command, Option, Options
from fumehood.cli.run import show_error, show_result
from fumehood.cli.saved import SERVER_OPTIONS, at_server
from fumehood.cli.terminal import Screen, counted, note
from fumehood.text import visible_line

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox
    from fumehood.values.looking import Cell, CommandPage, CommandPiece, RanCommand

_T = TypeVar("_T")
_LOOK_AGAIN_SECONDS = 0.5
_PAGE = 100
_DEFAULT = "default"


def run(options: Options) -> int:
    """Print what ran in a sandbox and what it wrote; with `--follow` also what comes; return the exit code."""
    from fumehood.errors import SandboxClosedError, SandboxNotFoundError

    sandbox = at_server(options)

    if options.json:
        print(json.dumps(_data(sandbox), indent=2))
        return 0

    log = _Log(sandbox, Screen(), with_code=not options.quiet)

    if not options.follow:
        log.show(is_last=True)
        return 0

    try:
        while True:
            began = time.monotonic()
            log.show(is_last=False)
            # A look that takes long is a load on the server.
            time.sleep(max(_LOOK_AGAIN_SECONDS, 4 * (time.monotonic() - began)))
    except (SandboxClosedError, SandboxNotFoundError) as error:
        note(error.message)
        return 0


def _data(sandbox: Sandbox) -> dict[str, Any]:
    """Returns the record of the default context, and beside it those of the others and the commands."""
    from fumehood.values.plain_data import fields_data

    others = [
        record for name in _contexts(sandbox)[1:] for record in _living(sandbox.get_record, context=name)
    ]
    return {
        **fields_data(sandbox.get_record()),
        "other_contexts": [fields_data(record) for record in others],
        "running": [fields_data(cell) for cell in _cells(sandbox) if cell.state == "running"],
        "commands": [fields_data(ran) for page in _pages(sandbox) for ran in page.items],
    }


def _cells(sandbox: Sandbox) -> Iterator[Cell]:
    """Yields the newest cell of each context."""
    for name in _contexts(sandbox):
        for page in _living(sandbox.activity.executions, context=name, limit=1, whole=True):
            yield from page.items


def _pages(sandbox: Sandbox, after: int = -1) -> Iterator[CommandPage]:
    """Yields the commands behind a number, page by page."""
    place: int | None = after

    while place is not None:
        page = sandbox.activity.commands(after=place)
        yield page
        place = page.next_cursor


def _contexts(sandbox: Sandbox) -> list[str]:
    """Returns the contexts that have a record, the default one first; a list of contexts would wake the sandbox."""
    return [_DEFAULT, *(name for name in sandbox.activity.use().contexts if name != _DEFAULT)]


def _living(ask: Callable[..., _T], **options: Any) -> list[_T]:
    """Returns an answer about a context as the only item, or nothing when it was removed since it was named."""
    from fumehood.errors import ContextNotFoundError

    try:
        return [ask(**options)]
    except ContextNotFoundError:
        return []


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

    def __init__(self, sandbox: Sandbox, screen: Screen, *, with_code: bool) -> None:
        self._sandbox = sandbox
        self._screen = screen
        self._with_code = with_code
        # By context: the position of the last cell that was printed to its end.
        self._done: dict[str, int] = {}
        self._last_command = -1
        self._ended_commands: set[int] = set()
        # Of what was begun and has not ended.
        self._shown: dict[str, _Shown] = {}
        self._last_name = ""

    def show(self, *, is_last: bool) -> None:
        """Print what is new.

        Args:
            is_last: Whether nothing will follow, so that what still runs is named as such.
        """
        # Imported late: `--help` needs none of it.
        from fumehood.values.looking import RanCommand

        found: list[Cell | RanCommand] = []

        for page in _pages(self._sandbox, self._last_command):
            self._note_dropped(page.dropped_commands)
            found += (one for one in page.items if one.number not in self._ended_commands)

        for name in _contexts(self._sandbox):
            found += self._new_cells(name)

        for one in sorted(found, key=_began):
            if isinstance(one, RanCommand):
                self._show_command(one, is_last=is_last)
            else:
                self._show_cell(one, is_last=is_last)

    def _note_dropped(self, dropped: int) -> None:
        """Say how many commands are gone of which the end was not printed."""
        gone = {number for number in self._ended_commands if number < dropped}
        missing = dropped - self._last_command - 1 - len(gone)
        self._ended_commands -= gone
        self._last_command = max(self._last_command, dropped - 1)

        if missing > 0:
            note(f"{counted(missing, 'command')} before these are not kept any more")

    def _new_cells(self, context: str) -> Iterator[Cell]:
        after = self._done.get(context)
        is_first = after is None
        after = -1 if after is None else after

        while True:
            pages = _living(
                self._sandbox.activity.executions, context=context, after=after, limit=_PAGE, whole=True
            )

            if not pages:
                return

            (page,) = pages

            if is_first and page.dropped_cells:
                note(
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
        name = cell.id or f"{cell.context_id} {cell.position}"
        where = "" if cell.context_id == _DEFAULT else f", context {visible_line(cell.context_id)}"
        undone = ", undone" if cell.is_undone else ""
        self._head(name, f"{_time(cell.started_at)}{where}{undone}", cell.code)

        if cell.outputs_dropped:
            note("its output is not in the record any more")

        shown = self._shown.setdefault(name, _Shown())
        self._write(shown, ((entry.stream, entry.text) for entry in execution.logs.entries))

        for result in execution.results[shown.results :]:
            show_result(self._screen, result)

        shown.results = len(execution.results)

        if cell.state == "ended":
            del self._shown[name]

            if execution.error is not None:
                show_error(self._screen, execution.error)
        elif is_last:
            asked = cell.input_request
            note("it runs" if asked is None else f"it waits for input: {visible_line(asked.prompt)}")

    def _show_command(self, ran: RanCommand, *, is_last: bool) -> None:
        name = f"command {ran.number}"
        kind = "terminal" if ran.is_terminal else "command"
        self._head(name, f"{_time(ran.started_at)}, {kind} in {visible_line(ran.cwd)}", f"$ {ran.command}")
        shown = self._shown.setdefault(name, _Shown())
        self._write_pieces(shown, ran.output)

        if ran.exit_code is None:
            if is_last:
                note("it runs")

            return

        del self._shown[name]
        self._ended_commands.add(ran.number)

        while self._last_command + 1 in self._ended_commands:
            self._last_command += 1
            self._ended_commands.discard(self._last_command)

        if self._with_code:
            why = ", killed at its time limit" if ran.timed_out else ""
            self._screen.err(f"    exit code {ran.exit_code}{why}\n")

    def _head(self, name: str, about: str, code: str) -> None:
        """Print what follows is from, unless that is what came last."""
        if name == self._last_name:
            return

        self._last_name = name

        if not self._with_code:
            return

        if name in self._shown:
            self._screen.err(f"--- {about}, goes on\n")
        else:
            self._screen.err(f"--- {about}\n" + "".join(f"    {line}\n" for line in code.splitlines()))

    def _write_pieces(self, shown: _Shown, pieces: Iterable[CommandPiece]) -> None:
        """Print the output of a command behind what was printed of each stream, and how much is missing between."""
        for piece in pieces:
            write = self._screen.err if piece.stream == "stderr" else self._screen.out
            printed, end = shown.ends[piece.stream], piece.begin_bytes + piece.size_bytes

            if piece.begin_bytes > printed:
                write(f"\n[... {piece.begin_bytes - printed:,} bytes ...]\n")

            if end > printed:
                write(_behind(piece, max(0, printed - piece.begin_bytes)))

            shown.ends[piece.stream] = max(printed, end)

    def _write(self, shown: _Shown, pieces: Iterable[tuple[str, str]]) -> None:
        """Print the output behind what was printed."""
        skipped = shown.characters

        for stream, text in pieces:
            fresh = text[skipped:]
            skipped = max(0, skipped - len(text))

            if fresh:
                shown.characters += len(fresh)
                (self._screen.err if stream == "stderr" else self._screen.out)(fresh)


def _behind(piece: CommandPiece, skipped_bytes: int) -> str:
    """Returns the text of a piece behind its first bytes."""
    data = piece.text.encode("utf-8", "replace")

    if len(data) != piece.size_bytes:
        # Then each byte that is no UTF-8 has become U+FFFD.
        data = piece.text.replace("\ufffd", "\0").encode("utf-8", "replace")
        return data[skipped_bytes:].decode("utf-8", "replace").replace("\0", "\ufffd")

    return data[skipped_bytes:].decode("utf-8", "replace")


def _began(one: Cell | RanCommand) -> datetime:
    return one.started_at or datetime.max.replace(tzinfo=UTC)


def _time(moment: datetime | None) -> str:
    return "not begun" if moment is None else moment.astimezone().strftime("%H:%M:%S")


LOGS = Command(
    "logs",
    run,
    brief="print what ran in a sandbox of a server",
    about="Print what ran in a sandbox, and what it wrote and showed: the code of all contexts, and commands with "
    "their exit codes. Code, commands and standard error go to standard error.",
    params=[
        Argument(
            "sandbox",
            metavar="SANDBOX",
            about="its id, as `fumehood ps` lists it, or the beginning or end of it",
        ),
        *SERVER_OPTIONS,
        Option(
            ["-f", "--follow"], is_flag=True, help="go on with what comes, until the sandbox ends or Ctrl-C"
        ),
        Option(["-q", "--quiet"], is_flag=True, help="without the code and the commands that ran"),
        Option(["--json"], is_flag=True, help="print what a program would read"),
    ],
)
