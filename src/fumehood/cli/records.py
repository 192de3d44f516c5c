"""`fumehood records`: sandboxes of a server that have ended: listed, shown, run again, deleted.

Code, output and labels are a guest's: they are made visible before they are printed. A replay runs at the server, never
here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fumehood.cli.key_names import names_of_keys
from fumehood.cli.parser import Argument, Command, Option, Options, Verbs
from fumehood.cli.remote import show_record, span
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import Screen, counted, note, write_table
from fumehood.refusals import naming_arguments
from fumehood.text import visible_line

if TYPE_CHECKING:
    from fumehood.port.backend import Backend
    from fumehood.port.record_keeping import RecordKeeping
    from fumehood.values.kept_records import EndedSandbox

_COLUMNS = ("SANDBOX", "ENDED", "REASON", "TEMPLATE", "CELLS", "COMMANDS", "LAST", "KEY", "METADATA")
_NAMES = {"url": "--url", "api_key": "--api-key"}
_SHOWN_CHARACTERS = 60
_SKIPPED = {
    "interrupted": "not run: it was interrupted",
    "ended": "not run: its sandbox ended meanwhile",
}


def run_list(options: Options) -> int:
    """List the ended sandboxes whose records are kept; return the exit code."""
    from fumehood.portal import call
    from fumehood.values.kept_records import ListRecords
    from fumehood.values.plain_data import as_data

    with naming_arguments(_NAMES | {"q": "--filter", "limit": "--limit"}):
        request = ListRecords(text=options.filter or "", limit=options.limit)
        # Not `Records.list`: it does not say whether records are kept at all.
        found = call(_records(_backend(options)).find_records, request)

    if options.json:
        print(json.dumps(as_data(list(found.items)), indent=2))
        return 0

    now = datetime.now(UTC)
    names = names_of_keys(options.url, options.api_key) if found.items else {}
    write_table(_COLUMNS, [_row(ended, now, names) for ended in found.items], sys.stdout)

    if found.left_out_hosts:
        note(f"without the records of machines that do not answer: {', '.join(found.left_out_hosts)}")

    if not found.items and not (found.left_out_hosts and not found.is_kept):
        note(_why_none(options.filter, is_kept=found.is_kept))

    return 0


def _why_none(text: str | None, *, is_kept: bool) -> str:
    if not is_kept:
        return "no record is kept: a server keeps them with `fumehood serve --records keep`"

    if text:
        return f"no record has {visible_line(text)!r} in its id, template, id of its key, reason or a label"

    return "no sandbox has ended yet whose record is kept"


def _row(ended: EndedSandbox, now: datetime, names: Mapping[str, str]) -> tuple[str, ...]:
    info = ended.sandbox
    labels = ",".join(f"{name}={value}" for name, value in info.metadata.items())
    failed = f" ({ended.failed} failed)" if ended.failed else ""
    return (
        info.id,
        f"{span((now - ended.ended_at).total_seconds())} ago",
        ended.reason,
        visible_line(info.template),
        f"{ended.cells}{failed}",
        str(ended.commands),
        ended.last_outcome or "-",
        visible_line(names.get(info.owner, info.owner or "-")),
        visible_line(labels or "-"),
    )


def run_show(options: Options) -> int:
    """Print what ran in an ended sandbox, or its audit record; return the exit code."""
    from fumehood.api.sandbox import Records
    from fumehood.values.plain_data import as_data

    with naming_arguments(_NAMES):
        backend = _backend(options)

        if options.audit:
            sys.stdout.write(Records(backend=backend).audit_log(options.sandbox).to_jsonl())
            return 0

        record = Records(backend=backend).get(options.sandbox, options.context)

    if options.json:
        print(json.dumps(as_data(record), indent=2))
    else:
        show_record(Screen(), record, with_code=not options.quiet)
        _tell_other_contexts(backend, options)

    return 0


def _tell_other_contexts(backend: Backend, options: Options) -> None:
    from fumehood.portal import call

    for context in call(_records(backend).ended_sandbox, options.sandbox).contexts:
        if context.cells and context.id != options.context:
            name = visible_line(context.id)
            note(f"{counted(context.cells, 'cell')} in the context {name!r}: `--context {name}`")


def run_replay(options: Options) -> int:
    """Run a record again at the server; return the exit code: 1 when a cell does something else."""
    from fumehood.assemble import server_lines
    from fumehood.client.record_keeping import record_path

    body = {
        "context_id": options.context,
        "template": options.template,
        "deterministic": options.deterministic,
    }
    last: dict[str, Any] = {}
    is_worse = False

    with naming_arguments(_NAMES):
        path = record_path(options.sandbox, "replay")

        for line in server_lines(options.url, options.api_key, "POST", path, json=body):
            last = line
            is_worse |= _fails_now(line)

            if options.json:
                print(json.dumps(line))
            elif line.get("type") == "cell":
                _show_cell(line)

    if not options.json:
        _show_end(last, is_worse=is_worse)

    return int(last.get("first_difference") is not None)


def _show_cell(line: dict[str, Any]) -> None:
    code = visible_line(str(line["code"]).strip(), max_characters=_SHOWN_CHARACTERS)
    differences = line["differences"]
    word = (
        _SKIPPED.get(line.get("skip_reason", ""), "not run: it was undone")
        if line["is_skipped"]
        else "differs"
        if differences
        else "same"
        if line["is_known"]
        else "not comparable: its outputs are not kept"
    )
    print(f"[{line['number']}] {word}: {code}")

    for each in differences:
        print(f"    {visible_line(each['what'])}")
        print(f"      was {_quoted(each['expected'])}")
        print(f"      now {_quoted(each['actual'])}")


def _fails_now(line: dict[str, Any]) -> bool:
    """Returns whether a cell that ended well has raised an error this time."""
    return any(
        each["what"] == "error" and each["expected"] is None and each["actual"] is not None
        for each in line.get("differences", ())
    )


def _show_end(line: dict[str, Any], *, is_worse: bool) -> None:
    first = line.get("first_difference")
    missing = line.get("dropped_cells", 0)
    note(
        f"{line.get('same', 0)} of {counted(line.get('cells', 0), 'cell')} did the same"
        + (f"; the first that differs is [{first}]" if first is not None else "")
        + (f"; {counted(missing, 'older cell')} are not kept" if missing else "")
    )

    if is_worse:
        note("a cell that ended well fails now: files that were uploaded and commands are not replayed")


def _quoted(text: object) -> str:
    return "nothing" if text is None else f"'{visible_line(str(text))}'"


def run_delete(options: Options) -> int:
    """Delete records; return the exit code: 1 when one was not there."""
    from fumehood.api.sandbox import Records
    from fumehood.errors import RecordNotFoundError

    missing = 0

    with naming_arguments(_NAMES):
        records = Records(backend=_backend(options))

        for name in options.sandboxes:
            try:
                records.delete(name)
            except RecordNotFoundError as error:
                note(error.message)
                missing += 1

    return int(missing > 0)


def _backend(options: Options) -> Backend:
    from fumehood.assemble import remote_backend

    return remote_backend(options.url, options.api_key)


def _records(backend: Backend) -> RecordKeeping:
    from fumehood.port.record_keeping import RecordKeeping

    assert isinstance(backend, RecordKeeping), "the client of a server can ask for its records"
    return backend


_SANDBOX = Argument("sandbox", metavar="SANDBOX", about="the id that it had, as `fumehood records` lists it")
_CONTEXT = Option(["--context"], metavar="ID", default="default", help="the context (default: default)")
_JSON = Option(["--json"], is_flag=True, help="print what a program would read")

RECORDS = Verbs(
    "records",
    [
        Command(
            "list",
            run_list,
            brief="list the ended sandboxes whose records are kept",
            about="List the sandboxes at a server that have ended and whose records are kept, the latest end first.",
            params=[
                Option(
                    ["--filter"],
                    metavar="TEXT",
                    help="only with this in id, template, id of the key, reason or a label",
                ),
                Option(
                    ["--limit"], type=int, default=100, metavar="N", help="how many at most (default: 100)"
                ),
                *SERVER_OPTIONS,
                _JSON,
            ],
        ),
        Command(
            "show",
            run_show,
            brief="print what ran in an ended sandbox",
            about="Print what ran in a sandbox that has ended, and what it wrote and showed.",
            params=[
                _SANDBOX,
                _CONTEXT,
                *SERVER_OPTIONS,
                Option(["-q", "--quiet"], is_flag=True, help="without the code that ran"),
                Option(["--audit"], is_flag=True, help="its audit record instead, as JSON lines"),
                _JSON,
            ],
        ),
        Command(
            "replay",
            run_replay,
            brief="run a record again, and say which cell does something else",
            about="Run the cells of an ended sandbox again, in a fresh sandbox of the server without a network, and "
            "say which of them print, show or raise something else. Only cells run again: files that were uploaded and "
            "commands are not replayed.",
            epilog="exit code: 0 when no cell differs, 1 when one does",
            params=[
                _SANDBOX,
                _CONTEXT,
                Option(
                    ["--template"],
                    metavar="NAME",
                    help="what the new sandbox starts from (default: as before)",
                ),
                Option(["--deterministic"], is_flag=True, help="fix the seeds and the time of day"),
                *SERVER_OPTIONS,
                Option(["--json"], is_flag=True, help="print each line as a program would read it"),
            ],
        ),
        Command(
            "delete",
            run_delete,
            brief="delete records",
            epilog="exit code: 0, or 1 when one was not there",
            params=[
                Argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...", about="their ids"),
                *SERVER_OPTIONS,
            ],
        ),
    ],
    brief="sandboxes of a server that have ended: what ran in them, and does it again",
    default="list",
)
