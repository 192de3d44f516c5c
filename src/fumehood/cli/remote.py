"""`fumehood ps, metadata, compare, exec, kill, cp`: the living sandboxes of a server.

Names, labels and output are a guest's or another caller's: they are made visible before they are printed. Nothing here
makes a sandbox, or lets one live longer.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fumehood.cli.key_names import names_of_keys
from fumehood.cli.options import language_option
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord
from fumehood.cli.run import ask, exit_code_of, show_error, show_result
from fumehood.cli.saved import SERVER_OPTIONS, at_server
from fumehood.cli.terminal import CountedReader, Screen, counted, line_of_path, note, waiting_for, write_table
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.text import visible_line

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox
    from fumehood.values.execution import Record, RecordedCell
    from fumehood.values.looking import Variable
    from fumehood.values.sandbox import SandboxInfo

_COLUMNS = ("SANDBOX", "STATE", "TEMPLATE", "AGE", "ENDS IN", "MEMORY", "KEY", "METADATA")
_STDIN = "-"
_MIN_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86_400
_EXISTS = 73
_EXEC_HINTS = {"time_limit": "`--timeout 300` allows more; the default is the sandbox's own limit"}
_SERVER_NAMES = {"url": "--url", "api_key": "--api-key"}


def run_ps(options: Options) -> int:
    """List the living sandboxes; return the exit code."""
    from fumehood.api.sandbox import Sandbox
    from fumehood.assemble import remote_backend
    from fumehood.values.plain_data import as_data

    with naming_arguments(_SERVER_NAMES):
        labels = {name: value for name, value in map(_label, options.metadata) if value is not None}
        found = Sandbox.list(metadata=labels, backend=remote_backend(options.url, options.api_key))

    if options.json:
        print(json.dumps(as_data(found), indent=2))
    else:
        now = datetime.now(UTC)
        names = names_of_keys(options.url, options.api_key) if found else {}
        write_table(_COLUMNS, [_row(info, now, names) for info in found], sys.stdout)

    return 0


def _row(info: SandboxInfo, now: datetime, names: Mapping[str, str]) -> tuple[str, ...]:
    labels = ",".join(f"{name}={value}" for name, value in info.metadata.items())
    ends = "-" if info.ends_at is None else span((info.ends_at - now).total_seconds())
    return (
        info.id,
        info.state,
        visible_line(info.template),
        span((now - info.started_at).total_seconds()),
        ends,
        f"{info.limits.memory_bytes >> 20}M",
        visible_line(names.get(info.owner, info.owner or "-")),
        visible_line(labels or "-"),
    )


def span(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < _MIN_SECONDS:
        return f"{max(0, seconds):.0f} s"

    if seconds < _HOUR_SECONDS:
        return f"{seconds / _MIN_SECONDS:.0f} min"

    return f"{seconds / _HOUR_SECONDS:.1f} h" if seconds < _DAY_SECONDS else f"{seconds / _DAY_SECONDS:.1f} d"


def run_metadata(options: Options) -> int:
    """Change labels of a sandbox, and print what it has then; return the exit code."""
    from fumehood.values.plain_data import as_data

    sandbox = at_server(options)

    if options.labels:
        sandbox.set_metadata(dict(map(_label, options.labels)))

    labels = sandbox.get_info().metadata

    if options.json:
        print(json.dumps(as_data(labels), indent=2))
    else:
        print(
            "".join(f"{visible_line(name)}={visible_line(text)}\n" for name, text in labels.items()), end=""
        )

    return 0


def _label(word: str) -> tuple[str, str | None]:
    """Returns the name and the value of NAME=VALUE, or of NAME= the name alone."""
    name, mark, text = word.partition("=")

    if not mark or not name:
        raise InvalidArgumentError(field="metadata", value=word, allowed="NAME=VALUE; NAME= takes it away")

    return name, text or None


def run_compare(options: Options) -> int:
    """Print in what two moments of a sandbox differ; return the exit code: 1 when they do."""
    from fumehood.values.plain_data import as_data

    sandbox = at_server(options)

    if options.before is None:
        return _list_checkpoints(sandbox, as_json=options.json)

    with naming_arguments({"before": "the first CHECKPOINT", "after": "the second CHECKPOINT"}):
        found = sandbox.activity.compare(options.before, options.after)

    if options.json:
        print(json.dumps(as_data(found), indent=2))
        return int(bool(found.variables or found.files))

    rows: list[tuple[str, ...]] = [
        (each.kind, visible_line(each.name), _summary(each.before), _summary(each.after))
        for each in found.variables
    ]
    rows += [(each.kind, line_of_path(each.path), "", "") for each in found.files]
    write_table(("CHANGE", "VARIABLE OR FILE", "BEFORE", "AFTER"), rows, sys.stdout)

    if found.state != "current":
        note(f"variables were not compared: {found.state}")

    if found.more_variables or found.more_files:
        left_out = f"{found.more_variables} variables and {found.more_files} files"
        note(f"not compared or left out: {left_out}")

    return int(bool(rows))


def _list_checkpoints(sandbox: Sandbox, *, as_json: bool) -> int:
    from fumehood.values.plain_data import as_data

    kept = sandbox.list_checkpoints()

    if as_json:
        print(json.dumps(as_data(kept), indent=2))
        return 0

    now = datetime.now(UTC)
    rows = [
        (
            one.id,
            visible_line(one.name or "-"),
            visible_line(one.context_id),
            f"{span((now - one.created_at).total_seconds())} ago",
            str(one.files),
        )
        for one in kept
    ]
    write_table(("CHECKPOINT", "NAME", "CONTEXT", "MADE", "FILES"), rows, sys.stdout)
    return 0


def _summary(variable: Variable | None) -> str:
    return "" if variable is None else visible_line(variable.summary or variable.type, max_characters=40)


def show_record(screen: Screen, record: Record, *, with_code: bool) -> None:
    """Print the cells of a record."""
    if record.dropped_cells:
        note(f"{counted(record.dropped_cells, 'execution')} before these are not in the record any more")

    for cell in record.cells:
        _show_cell(screen, cell, with_code=with_code)


def _show_cell(screen: Screen, cell: RecordedCell, *, with_code: bool) -> None:
    if with_code:
        started = cell.execution.started_at
        at = "not begun" if started is None else started.astimezone().strftime("%H:%M:%S")
        undone = ", undone" if cell.is_undone else ""
        screen.err(f"--- {at}{undone}\n" + "".join(f"    {line}\n" for line in cell.code.splitlines()))

    if cell.outputs_dropped:
        note("its output is not in the record any more")

    for entry in cell.execution.logs.entries:
        (screen.err if entry.stream == "stderr" else screen.out)(entry.text)

    for result in cell.execution.results:
        show_result(screen, result)

    if cell.execution.error is not None:
        show_error(screen, cell.execution.error)


def run_exec(options: Options) -> int:
    """Run code in a living sandbox; return the exit code of the code."""
    code = sys.stdin.read() if options.code == _STDIN else options.code
    sandbox = at_server(options)
    screen = Screen(raw=options.raw)

    with naming_arguments({"code": "CODE", "timeout": "--timeout"}):
        execution = sandbox.run_code(
            code,
            language="bash" if options.bash else options.language or "python",
            timeout=options.timeout,
            on_stdout=screen.out,
            on_stderr=screen.err,
            on_result=lambda result: show_result(screen, result),
            on_error=lambda error: show_error(screen, error, _EXEC_HINTS),
            on_input=None if options.code == _STDIN else lambda question: ask(screen, question),
        )

    return exit_code_of(execution.error)


def run_kill(options: Options) -> int:
    """End sandboxes; return the exit code: 1 when one was not there."""
    from fumehood.errors import SandboxClosedError, SandboxNotFoundError

    missing = 0

    for name in options.sandboxes:
        try:
            at_server(Options(sandbox=name, url=options.url, api_key=options.api_key)).kill()
        except (SandboxNotFoundError, SandboxClosedError) as error:
            note(error.message)
            missing += 1

    return int(missing > 0)


def run_cp(options: Options) -> int:
    """Copy a file or a folder into a sandbox or out of one; return the exit code."""
    source, destination = _place(options.source), _place(options.destination)

    if (source is None) == (destination is None):
        raise InvalidArgumentError(
            field="DESTINATION" if source else "SOURCE",
            value=options.destination if source else options.source,
            allowed="SANDBOX:PATH on one side, and a path of this machine on the other",
        )

    name, path = source or destination or ("", "")
    sandbox = at_server(Options(sandbox=name, url=options.url, api_key=options.api_key))

    if options.destination == _STDIN:
        return _write_out(sandbox, path, raw=options.raw or not sys.stdout.isatty())

    if options.source == _STDIN:
        return _read_in(sandbox, path)

    if source is None:
        return _upload(sandbox, options.source, path)

    return _download(sandbox, path, options.destination)


def _write_out(sandbox: Sandbox, path: str, *, raw: bool) -> int:
    """Write a file of the sandbox to standard output: as it is, or as harmless text for a terminal."""
    if sandbox.files.get_info(path).type == "dir":
        raise InvalidArgumentError(
            field="SOURCE", value=path, allowed="a file: a folder does not go to standard output"
        )

    pieces = sandbox.files.read(path, format="stream")

    if raw:
        for piece in pieces:
            sys.stdout.buffer.write(piece)

        sys.stdout.buffer.flush()
        return 0

    screen = Screen()

    for text in codecs.iterdecode(pieces, "utf-8", "backslashreplace"):
        screen.out(text)

    return 0


def _read_in(sandbox: Sandbox, path: str) -> int:
    """Write standard input to a file of the sandbox."""
    if path[-1] in "/.":
        raise InvalidArgumentError(
            field="DESTINATION",
            value=path,
            allowed="SANDBOX:PATH with the name of the file for standard input",
        )

    sandbox.files.write(path, sys.stdin.buffer)
    return 0


def _place(word: str) -> tuple[str, str] | None:
    """Returns the sandbox and the path of SANDBOX:PATH, or None for a path of this machine."""
    name, colon, path = word.partition(":")
    return (name, path or ".") if colon and name and "/" not in name else None


def _upload(sandbox: Sandbox, source: str, path: str) -> int:
    if not os.path.isdir(source):
        _write_all(
            sandbox, {source: os.path.join(path, os.path.basename(source)) if path[-1] in "/." else path}
        )
        return 0

    found = {
        local: os.path.join(path, os.path.relpath(local, source))
        for folder, _, names in os.walk(source)
        for local in (os.path.join(folder, name) for name in names)
        # A FIFO would be waited for.
        if os.path.isfile(local)
    }
    _write_all(sandbox, found)
    note(f"{counted(len(found), 'file')} -> {path}")
    return 0


def _write_all(sandbox: Sandbox, places: Mapping[str, str]) -> None:
    """Writes files of this machine to their places in a sandbox."""
    with waiting_for("uploading", sum(os.path.getsize(local) for local in places)) as step:
        for local, place in places.items():
            with open(local, "rb") as file:
                sandbox.files.write(place, CountedReader(file, step))


def _download(sandbox: Sandbox, path: str, into: str) -> int:
    from fumehood.api.artifacts import save_files

    info = sandbox.files.get_info(path)

    if info.type == "file":
        target = os.path.join(into, info.name) if os.path.isdir(into) else into

        with open(target, "wb") as file, waiting_for("downloading", info.size_bytes) as step:
            for piece in sandbox.files.read(info.path, format="stream"):
                file.write(piece)
                step(len(piece))

        return 0

    entries = sandbox.files.list(info.path, depth=64)
    total = sum(entry.size_bytes for entry in entries if entry.type == "file")

    with waiting_for("downloading", total) as step:
        saved = save_files(sandbox.files, entries, root=info.path, into=into, overwrite=True, on_bytes=step)

    for item in saved:
        if item.skipped:
            note(f"{line_of_path(item.source)} was left out: {item.skipped}")

    note(f"{counted(sum(not item.skipped for item in saved), 'file')} -> {into}")
    return _EXISTS if any(item.skipped for item in saved) else 0


_SANDBOX = Argument(
    "sandbox", metavar="SANDBOX", about="its id, as `fumehood ps` lists it, or the beginning or end of it"
)
_JSON = Option(["--json"], is_flag=True, help="print what a program would read")

PS = Command(
    "ps",
    run_ps,
    brief="list the sandboxes of a server",
    about="List the living sandboxes at a server that the key may see.",
    params=[
        *SERVER_OPTIONS,
        Option(
            # The second is its name of before.
            ["--metadata", "--label", "metadata"],
            multiple=True,
            metavar="NAME=VALUE",
            help="only those with this in their metadata; may be repeated",
        ),
        _JSON,
    ],
)
METADATA = Command(
    "metadata",
    run_metadata,
    brief="show and change the metadata of a sandbox of a server",
    about="Give a sandbox labels, and print all its metadata then, as `get_info().metadata` has it in Python.",
    params=[
        _SANDBOX,
        Argument("labels", nargs=-1, metavar="[NAME=VALUE]...", about="new values; NAME= takes one away"),
        *SERVER_OPTIONS,
        _JSON,
    ],
)
COMPARE = Command(
    "compare",
    run_compare,
    brief="compare two moments of a sandbox of a server",
    about="Print which variables and files differ between a checkpoint of a sandbox and a later one, or now.",
    epilog="exit code: 0 when nothing differs, 1 when something does",
    params=[
        _SANDBOX,
        Argument(
            "before",
            metavar="CHECKPOINT",
            required=False,
            about="the earlier moment: a checkpoint, by its id or name; without one, all are listed",
        ),
        Argument(
            "after",
            metavar="CHECKPOINT",
            required=False,
            default="now",
            about="the later one (default: now)",
        ),
        *SERVER_OPTIONS,
        _JSON,
    ],
)
EXEC = Command(
    "exec",
    run_exec,
    brief="run code in a sandbox of a server",
    about="Run code in the default context of its language in a living sandbox. The exit code is that of the code, as "
    "with run.",
    params=[
        _SANDBOX,
        Argument("code", metavar="CODE", about="the code; - for stdin"),
        *SERVER_OPTIONS,
        language_option(),
        Option(["--bash"], is_flag=True, help="it is bash: as `--language bash`"),
        Option(["--timeout"], type=float, metavar="SECONDS", help="its time (default: the sandbox's limit)"),
        Option(["--raw"], is_flag=True, help="pass terminal escapes of the code on to this terminal"),
    ],
)
KILL = Command(
    "kill",
    run_kill,
    brief="end sandboxes of a server",
    epilog="exit code: 0, or 1 when one was not there",
    params=[
        Argument(
            "sandboxes",
            nargs=-1,
            required=True,
            metavar="SANDBOX...",
            about="their ids, or the beginning or end of them",
        ),
        *SERVER_OPTIONS,
    ],
)
CP = Command(
    "cp",
    run_cp,
    brief="copy files into and out of a sandbox of a server",
    about="Copy a file, or a folder with what is in it. One side is SANDBOX:PATH; a path that is not absolute lies in "
    "the home directory.",
    epilog="exit code: 0, or 73 when files were left out; 74 when a file of this machine could not be read or written",
    params=[
        Argument("source", metavar="SOURCE", type=PathWord(), about="a path, SANDBOX:PATH, or - for stdin"),
        Argument("destination", metavar="DESTINATION", type=PathWord(), about="the same; - for stdout"),
        *SERVER_OPTIONS,
        Option(
            ["--raw"], is_flag=True, help="to stdout: pass terminal escapes of the file on to this terminal"
        ),
    ],
)
