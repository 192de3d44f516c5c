"""`fumehood audit`: verifies audit records that lie in files, and fetches those of sandboxes at a server.

Runs in the user's terminal. What a record says is a guest's in part: only its lines are passed on, which are ASCII, and
what is said about them.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, BinaryIO

from fumehood.audit.verifying import Verification, read_lines, verify_lines
from fumehood.cli.saved import at_server
from fumehood.cli.terminal import counted, note
from fumehood.errors import InvalidArgumentError
from fumehood.values.codec import as_data

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_HASH_CHARACTERS = 64


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser("audit", help="verify or fetch audit records")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")

    verify = verbs.add_parser(
        "verify",
        help="check that a record was not changed",
        description="Compute the chain of a record anew, and say which line breaks it, and how. A chain can be "
        "rewritten as a whole: --head checks that it is the one that a head was kept of.",
        epilog="exit code: 0, or 1 when the record is broken or does not hold the head; 64 for a wrong argument, 74 "
        "when the file could not be opened",
    )
    verify.add_argument("file", metavar="FILE", help="a record in JSON lines; - for standard input")
    verify.add_argument(
        "--head", metavar="HASH", help="the hash of an entry that must be in it, such as execution.audit_head"
    )
    verify.add_argument("--json", action="store_true", help="print an object")
    verify.set_defaults(command=_verify)

    export = verbs.add_parser(
        "export",
        help="print the record of a sandbox as JSON lines",
        description="Print the record of a living sandbox at the server that FUMEHOOD_URL and FUMEHOOD_API_KEY name.",
    )
    export.add_argument("sandbox", metavar="SANDBOX", help="its id")
    export.add_argument("--url", help="the server (default: FUMEHOOD_URL)")
    export.add_argument("--api-key", help="what opens it (default: FUMEHOOD_API_KEY)")
    export.set_defaults(command=_export)


def _verify(options: argparse.Namespace) -> int:
    head = options.head

    if head is not None and not (len(head) == _HASH_CHARACTERS and set(head) <= set("0123456789abcdef")):
        raise InvalidArgumentError(field="--head", value=head, allowed="64 hexadecimal digits, in lower case")

    if options.file == "-":
        found = _verified(sys.stdin.buffer, head)
    else:
        with open(options.file, "rb") as file:
            found = _verified(file, head)

    if options.json:
        print(json.dumps({**_object(found), "ok": found.ok}, indent=2))
    else:
        _tell(options.file, found)

    return 0 if found.ok else 1


def _verified(file: BinaryIO, head: str | None) -> Verification:
    return verify_lines(read_lines(file), head)


def _object(found: Verification) -> dict[str, object]:
    data = as_data(found)
    assert isinstance(data, dict)
    return dict(data)


def _tell(name: str, found: Verification) -> None:
    if found.dropped:
        note(
            f"{name}: the first {found.dropped:,} entries are not in it; the chain goes on from the last of them"
        )

    if not found.ok:
        note(f"{name}: line {found.line}: {found.reason}")
        return

    assert found.head is not None
    print(
        f"{counted(found.entries, 'entry', 'entries')}, whole; head {found.head.sequence} {found.head.hash}"
    )

    if found.later is not None:
        note(f"{name}: it holds the known head, and {counted(found.later, 'later entry', 'later entries')}")
    else:
        note(f"{name}: without --head nobody can tell whether all of it was rewritten")


def _export(options: argparse.Namespace) -> int:
    sys.stdout.write(at_server(options).audit_log().to_jsonl())
    return 0
