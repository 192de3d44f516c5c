"""`fumehood share`: a read-only view of a sandbox of a server, by an address that can be handed on.

The secret in the address follows the `#`, where no log and no proxy sees it, and is shown once.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

from fumehood.cli.parser import Argument, Command, Option, Options
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import note, write_table
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.values.shares import SHARED_PARTS

_HOUR_SECONDS = 3600
_COLUMNS = ("SHARE", "SANDBOX", "SHOWS", "LIVE", "ENDS", "OPENED", "READERS")


def run(options: Options) -> int:
    """Make a share and print its address, or list or revoke shares; return the exit code."""
    if options.revoke:
        _ask(options, "DELETE", f"/v1/shares/{options.revoke}")
        return 0

    if options.sandbox is None:
        return _list(options)

    now = datetime.now(UTC).isoformat()
    made = _ask(
        options,
        "POST",
        "/v1/shares",
        json={
            "sandbox_id": options.sandbox,
            "shows": _parts(options.show),
            "context_id": options.context,
            "seconds": round(options.hours * _HOUR_SECONDS),
            "from_at": now if options.from_now else None,
            "until_at": now if options.until_now else None,
        },
    )

    if options.json:
        print(json.dumps(made, indent=2))
    else:
        print(made["url"])
        note(
            f"it ends at {made['share']['ends_at']}, or with `fumehood share --revoke {made['share']['id']}`"
        )

    return 0


def _parts(given: str) -> list[str]:
    parts = [part.strip() for part in given.split(",") if part.strip()]

    if wrong := [part for part in parts if part not in SHARED_PARTS]:
        raise InvalidArgumentError(field="--show", value=wrong[0], allowed=", ".join(SHARED_PARTS))

    return parts


def _list(options: Options) -> int:
    found = _ask(options, "GET", "/v1/shares")["items"]

    if options.json:
        print(json.dumps(found, indent=2))
    else:
        rows = [
            (
                share["id"],
                share["sandbox_id"],
                ",".join(share["shows"]),
                "no" if share["until_at"] else "yes",
                share["ends_at"],
                str(share["openings"]),
                str(share["readers"]),
            )
            for share in found
        ]
        write_table(_COLUMNS, rows, sys.stdout)

    return 0


def _ask(options: Options, method: str, path: str, **given: Any) -> Any:
    from fumehood.assemble import ask_server

    with naming_arguments({"url": "--url", "api_key": "--api-key", "seconds": "--hours"}):
        return ask_server(options.url, options.api_key, method, path, **given)


SHARE = Command(
    "share",
    run,
    brief="hand on a read-only view of a sandbox of a server",
    about="Print an address at which a browser shows one sandbox, live and read-only, without an account. Without "
    "SANDBOX, list the shares of your key.",
    params=[
        Argument("sandbox", metavar="[SANDBOX]", required=False, about="its id, as `fumehood ps` lists it"),
        *SERVER_OPTIONS,
        Option(
            ["--show"],
            metavar="PARTS",
            default="record",
            help=f"what it shows, of {', '.join(SHARED_PARTS)} (default: record, which is code and outputs)",
        ),
        Option(["--context"], metavar="ID", default="default", help="the context that it shows"),
        Option(
            ["--hours"], type=float, metavar="N", default=24.0, help="when it ends (default: 24; at most 720)"
        ),
        Option(["--from-now"], is_flag=True, help="without what began earlier"),
        Option(["--until-now"], is_flag=True, help="as it is now, and not live"),
        Option(["--revoke"], metavar="ID", help="end a share, for its readers too"),
        Option(["--json"], is_flag=True, help="print what a program would read"),
    ],
)
