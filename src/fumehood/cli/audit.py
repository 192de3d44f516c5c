"""`fumehood audit`: verifies audit records in files, and fetches the records of sandboxes from a server.

Parts of a record come from guests: only its lines, which are ASCII, and the findings about them are printed.
"""

from __future__ import annotations

import json
import sys
from typing import BinaryIO

from fumehood.audit.verification import Verification, read_lines, verify_lines
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord, Verbs
from fumehood.cli.saved import SERVER_OPTIONS, at_server
from fumehood.cli.terminal import counted, note
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.values.plain_data import as_data

_HASH_CHARACTERS = 64


def _verify(options: Options) -> int:
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
        note(f"{name}: without --head it cannot be seen whether all of it was rewritten")


def _export_server(options: Options) -> int:
    from fumehood.api.server_audit import read_server_audit

    with naming_arguments({"url": "--url", "api_key": "--api-key"}):
        log = read_server_audit(url=options.url, api_key=options.api_key)

    sys.stdout.write(log.to_jsonl())
    return 0


def _export(options: Options) -> int:
    sys.stdout.write(at_server(options).audit_log().to_jsonl())
    return 0


AUDIT = Verbs(
    "audit",
    [
        Command(
            "verify",
            _verify,
            brief="check that a record was not changed",
            about="Compute the chain of a record anew, and say which line breaks it, and how. A chain can be rewritten "
            "as a whole: --head checks that it is the one that a head was kept of.",
            epilog="exit code: 0, or 1 when the record is broken or does not hold the head; 64 for a wrong argument, "
            "74 when the file could not be opened",
            params=[
                Argument(
                    "file",
                    metavar="FILE",
                    type=PathWord(),
                    about="a record in JSON lines; - for standard input",
                ),
                Option(
                    ["--head"],
                    metavar="HASH",
                    help="the hash of an entry that must be in it, such as execution.audit_head",
                ),
                Option(["--json"], is_flag=True, help="print an object"),
            ],
        ),
        Command(
            "export",
            _export,
            brief="print the record of a sandbox as JSON lines",
            about="Print the record of a living sandbox at the server that FUMEHOOD_URL and FUMEHOOD_API_KEY name.",
            params=[Argument("sandbox", metavar="SANDBOX", about="its id"), *SERVER_OPTIONS],
        ),
        Command(
            "server",
            _export_server,
            brief="print the record of a server as JSON lines",
            about="Print the newest entries of the server's own record: logins, keys, shares, and what its owner did "
            "with sandboxes of keys. It is for the owner of the server.",
            params=[*SERVER_OPTIONS],
        ),
    ],
    brief="verify or fetch audit records",
)
