"""`fumehood save` and `fumehood load`: sandboxes of a server as files, and back; what is in such a file.

Names and reasons in a saved state are a guest's: they are made visible before they are printed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fumehood.api.sandbox import Sandbox
from fumehood.api.saved_states import read_saved
from fumehood.assemble import remote_backend
from fumehood.cli.hints import OwnHint
from fumehood.cli.options import Seconds
from fumehood.cli.parser import Argument, Command, OneOf, Option, Options, PathWord
from fumehood.cli.terminal import counted, note
from fumehood.errors import FumehoodError, InvalidArgumentError, SandboxClosedError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.port.record_keeping import RecordKeeping
from fumehood.portal import call
from fumehood.refusals import naming_arguments
from fumehood.saved.places import load_from
from fumehood.text import visible_line
from fumehood.values.kept_records import EndedSandbox, ListRecords
from fumehood.values.plain_data import as_data
from fumehood.values.requests import LoadRequest, SandboxSpec
from fumehood.values.sandbox import HOST_LOSS_ACTIONS
from fumehood.values.saved_state import LeftOut, SaveReport

# Fewer characters are rather a mistake than a part of an id.
_MIN_PART = 4
_SHOWN = 3
_OPTIONS = {
    "sandbox_id": "SANDBOX",
    "place": "PLACE",
    "url": "--url",
    "api_key": "--api-key",
    "timeout": "--timeout",
}
SERVER_OPTIONS = (
    Option(["--url"], metavar="URL", help="the server (default: FUMEHOOD_URL)"),
    Option(["--api-key"], metavar="TOKEN", help="what opens it (default: FUMEHOOD_API_KEY)"),
)


def at_server(options: Options) -> Sandbox:
    """Return the sandbox that the options name, by its id or by a part of the id that no other living sandbox has.

    Raises:
        InvalidArgumentError: No server is named, or several sandboxes have that part.
        SandboxNotFoundError: The saved sandbox does not exist.
    """
    with naming_arguments(_OPTIONS):
        return _living(options.sandbox, remote_backend(options.url, options.api_key))


def living_or_ended(options: Options) -> tuple[Backend, str, EndedSandbox | None]:
    """Return the server, and the id of the sandbox that the options name; of an ended one also what its record says.

    Raises:
        InvalidArgumentError: No server is named, or several living sandboxes have that part of an id.
        SandboxNotFoundError: The sandbox does not exist, and no record is kept of it, or those of several fit.
    """
    with naming_arguments(_OPTIONS):
        backend = remote_backend(options.url, options.api_key)

        try:
            return backend, _living(options.sandbox, backend).id, None
        except (SandboxClosedError, SandboxNotFoundError):
            found = _ended_like(options.sandbox, backend)

            if len(found) != 1:
                raise

    return backend, found[0].id, found[0]


def _living(word: str, backend: Backend) -> Sandbox:
    try:
        return Sandbox.connect(word, backend=backend)
    except SandboxClosedError as error:
        _name_record(error, word, backend)
        raise
    except SandboxNotFoundError as error:
        found = [info.id for info in Sandbox.list(backend=backend) if _is_part(word, info.id)]

        if len(found) == 0:
            _name_record(error, word, backend)
            raise

        if len(found) > 1:
            raise _several(word, found) from None

    return Sandbox.connect(found[0], backend=backend)


def _ended_like(word: str, backend: Backend) -> list[EndedSandbox]:
    """Return the ended sandboxes that a word names, of which records are kept."""
    if not isinstance(backend, RecordKeeping):
        return []

    try:
        kept = call(backend.find_records, ListRecords(text=word))
    except FumehoodError:
        # The key may not ask, or the word can be in no id.
        return []

    return [ended for ended in kept.items if _is_part(word, ended.id)]


def _name_record(error: FumehoodError, word: str, backend: Backend) -> None:
    """Make the hint of an error about an ended sandbox name its record, if one is kept."""
    found = [ended.id for ended in _ended_like(word, backend)]

    if len(found) == 1:
        error.hint = OwnHint(
            f"sandbox {found[0]} has ended, and its record is kept: `fumehood logs {found[0]}` prints what "
            f"ran, `fumehood records replay {found[0]}` runs it again"
        )
    elif found:
        error.hint = OwnHint(
            f"{len(found)} that have ended have that in their id, and their records are kept: `fumehood records "
            f"--filter {visible_line(word)}` lists them"
        )


def _is_part(word: str, sandbox_id: str) -> bool:
    """Return whether a word is the beginning or the end of an id; ids of one host's sandboxes begin alike."""
    return len(word) >= _MIN_PART and (sandbox_id.startswith(word) or sandbox_id.endswith(word))


def _several(word: str, found: Sequence[str]) -> InvalidArgumentError:
    more = ", ..." if len(found) > _SHOWN else ""
    return InvalidArgumentError(
        field="SANDBOX",
        value=word,
        allowed="a whole id, or more of it",
        problem=f"{len(found)} sandboxes have {word!r} in their id: {', '.join(found[:_SHOWN])}{more}",
    )


def _save(options: Options) -> int:
    sandbox = at_server(options)

    with naming_arguments(_OPTIONS):
        report = sandbox.save(options.place)

    _tell(report, as_json=options.json)
    return 0


def _load(options: Options) -> int:
    with naming_arguments(_OPTIONS):
        if options.show:
            _tell(read_saved(options.place), as_json=options.json)
            return 0

        # In this process it would end at once: without a server this is an error.
        backend = remote_backend(options.url, options.api_key)
        # Not by `Sandbox`, which would warn that it is never killed: it must live on.
        request = LoadRequest(
            spec=SandboxSpec(timeout_seconds=options.timeout, on_host_loss=options.on_host_loss)
        )
        loaded = call(load_from, backend, request, options.place)

    if options.json:
        print(json.dumps({"id": loaded.sandbox.id, "report": as_data(loaded.report)}, indent=2))
    else:
        print(loaded.sandbox.id)
        _tell_left_out((*loaded.report.left_out, *loaded.report.missing))

    return 0


def _tell(report: SaveReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_data(report), indent=2))
        return

    count = sum(map(len, report.variables.values()))
    print(f"{report.size_bytes:,} bytes: {counted(count, 'variable')}, {counted(report.files, 'file')}")
    _tell_left_out(report.left_out)


def _tell_left_out(left_out: tuple[LeftOut, ...]) -> None:
    for one in left_out:
        note(f"without {one.kind} {visible_line(one.name)}: {visible_line(one.reason)}")


_PLACE = Argument("place", metavar="PLACE", type=PathWord(), about="a path, or s3://BUCKET/NAME and the like")
_JSON = Option(["--json"], is_flag=True, help="print an object")

SAVE = Command(
    "save",
    _save,
    brief="save a sandbox of a server to a file",
    about="Write what lasts of a sandbox to a file of this machine or an object in a bucket, and say what was "
    "left out.",
    params=[
        Argument("sandbox", metavar="SANDBOX", about="its id, or the beginning or end of it"),
        _PLACE,
        *SERVER_OPTIONS,
        _JSON,
    ],
)
LOAD = Command(
    "load",
    _load,
    brief="make a sandbox of a saved one, at a server",
    about="Make a sandbox of a saved state, at a server, and print its id.",
    params=[
        _PLACE,
        *SERVER_OPTIONS,
        _JSON,
        Option(
            ["--timeout"],
            type=Seconds(),
            metavar="SECONDS",
            help="how long the sandbox lives (default: what the server gives)",
        ),
        Option(
            ["--on-host-loss"],
            type=OneOf(HOST_LOSS_ACTIONS),
            metavar="WHAT",
            default="raise",
            help="restore: you load it again when its machine is lost, and a machine that is cut off ends it, so that "
            "there are never two; raise: it may come back with its machine (default: raise)",
        ),
        Option(
            ["--show"],
            is_flag=True,
            help="say what is in the saved state, and start nothing; needs no server",
        ),
    ],
)
