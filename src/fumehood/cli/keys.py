"""`fumehood keys` and `fumehood usage`: the keys of a server, and what they have used.

A token is printed once, alone on standard output; whether a key may have a scope or a bound is decided by the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from fumehood.cli.key_names import names_of_keys
from fumehood.cli.options import Seconds, Size
from fumehood.cli.parser import Argument, Command, OneOf, Option, Options, Verbs
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import note, write_table
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.storage.policy import SCOPES
from fumehood.text import visible_line
from fumehood.values.network import NETWORK_LEVELS

_KEY_COLUMNS = ("KEY", "NAME", "SCOPES", "STATE", "LAST USED", "BOUNDS")
_BOUNDS = ("max_sandboxes", "max_concurrent_executions", "executions_per_day", "cpu_seconds_per_day")
_QUOTAS = (*_BOUNDS, "expires_at", "max_network")


def run_create(options: Options) -> int:
    """Make a key and print its token; return the exit code."""
    body = {"name": options.name, "policy": _policy(options)} | (
        {"scopes": list(options.scope)} if options.scope else {}
    )
    made = _asked(options, "POST", "/v1/keys", json=body)
    code = _show_token(made, options)
    _warn_of_namesakes(options, made["key"])
    return code


def _warn_of_namesakes(options: Options, made: Mapping[str, Any]) -> None:
    """Warn that other valid keys have the name of a new key: only ids distinguish their sandboxes and usage."""
    keys = _asked(options, "GET", "/v1/keys")["items"]
    others = sorted(
        key["id"]
        for key in keys
        if key["name"] == made["name"] and key["id"] != made["id"] and not key["revoked_at"]
    )

    if others:
        note(
            f"another key has the name {visible_line(made['name'])!r} already: {', '.join(others)}; "
            f"`fumehood keys set {made['id']} --name NAME` tells them apart"
        )


def run_set(options: Options) -> int:
    """Change a key, whose token stays; return the exit code."""
    policy = _policy(options)

    for name in options.no_bound:
        (policy if name in _QUOTAS else policy.setdefault("max_limits", {}))[name] = None

    given = {"name": options.name, "scopes": list(options.scope), "policy": policy}
    body = {name: value for name, value in given.items() if value}

    if not body:
        raise InvalidArgumentError(
            field="options", value="none", allowed="at least one: `fumehood keys set --help` lists them"
        )

    changed = _asked(options, "PATCH", _path(options), json=body)

    if options.json:
        print(json.dumps(changed, indent=2))
    else:
        write_table(_KEY_COLUMNS, [_row(changed)], sys.stdout)

    return 0


def _policy(options: Options) -> dict[str, Any]:
    policy: dict[str, Any] = {
        name: getattr(options, name) for name in _QUOTAS if getattr(options, name) is not None
    }
    limits = dict(map(_limit, options.max_limit))

    if options.max_memory is not None:
        limits["memory_bytes"] = options.max_memory

    if limits:
        policy["max_limits"] = limits

    return policy


def _limit(word: str) -> tuple[str, float]:
    name, _, number = word.partition("=")
    try:
        return name, int(number) if number.isdecimal() else float(number)
    except ValueError:
        raise InvalidArgumentError(
            field="--max-limit", value=word, allowed="NAME=NUMBER, such as wall_seconds=60"
        ) from None


def run_rotate(options: Options) -> int:
    """Give a key a new token and print it; return the exit code."""
    body = {"grace_seconds": options.grace}
    return _show_token(_asked(options, "POST", f"{_path(options)}/rotate", json=body), options)


def _show_token(made: Mapping[str, Any], options: Options) -> int:
    if options.json:
        print(json.dumps(made, indent=2))
    else:
        note(f"key {made['key']['id']}; its token is shown this once")
        print(made["token"])

    return 0


def run_list(options: Options) -> int:
    """Print the keys; return the exit code."""
    keys = _asked(options, "GET", "/v1/keys")["items"]

    if options.json:
        print(json.dumps(keys, indent=2))
    else:
        write_table(
            _KEY_COLUMNS, [_row(key) for key in keys if options.all or not key["revoked_at"]], sys.stdout
        )

    return 0


def _row(key: Mapping[str, Any]) -> tuple[str, ...]:
    bounds = [f"{name}={value:,}" for name in _BOUNDS if (value := key["policy"][name]) is not None]
    bounds += [f"{name}<={value:,}" for name, value in key["policy"]["max_limits"].items()]
    return (
        key["id"],
        visible_line(key["name"]),
        ",".join(key["scopes"]),
        "revoked" if key["revoked_at"] else "valid",
        (key["last_used_at"] or "-")[:19],
        visible_line(" ".join(bounds) or "-"),
    )


def run_revoke(options: Options) -> int:
    """End a key and its sandboxes; return the exit code."""
    query = {"sandboxes": "keep"} if options.keep_sandboxes else {}
    _asked(options, "DELETE", _path(options), params=query)
    left = "its sandboxes live on" if options.keep_sandboxes else "its sandboxes have ended"
    note(f"key {options.key} is revoked; {left}")
    return 0


def run_usage(options: Options) -> int:
    """Print what keys have used; return the exit code."""
    query = {"by": options.by, "since": options.since, "until": options.until, "key_id": options.key}
    found = _asked(
        options,
        "GET",
        "/v1/usage",
        params={name: value for name, value in query.items() if value is not None},
    )["items"]

    if options.json:
        print(json.dumps(found, indent=2))
        return 0

    columns = list(found[0]) if found else []
    names = names_of_keys(options.url, options.api_key) if found else {}
    rows = [
        [
            names.get(item[name]) or _cell(item[name]) if name == "key_id" else _cell(item[name])
            for name in columns
        ]
        for item in found
    ]

    if found:
        heads = ["KEY" if name == "key_id" else name.upper().replace("_", " ") for name in columns]
        write_table(heads, rows, sys.stdout)
    else:
        note("nothing was used in that time")

    return 0


def _cell(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else visible_line(str("-" if value is None else value))


def _path(options: Options) -> str:
    """Returns the URL path of the key that the user means, by its id or by a name that only one valid key has."""
    keys = _asked(options, "GET", "/v1/keys")["items"]
    found = {key["id"] for key in keys if key["id"] == options.key} or {
        key["id"] for key in keys if key["name"] == options.key and not key["revoked_at"]
    }

    if len(found) == 1:
        return f"/v1/keys/{found.pop()}"

    problem = f"no key has the id or the name {visible_line(repr(options.key))}"

    if found:
        problem = (
            f"{len(found)} keys have the name {visible_line(repr(options.key))}: {', '.join(sorted(found))}"
        )

    allowed = "the id of a key, or its name; `fumehood keys list` prints them"
    raise InvalidArgumentError(field="KEY", value=options.key, allowed=allowed, problem=problem)


def _asked(options: Options, method: str, path: str, **others: Any) -> Any:
    """Asks the server; returns its answer as JSON."""
    from fumehood.assemble import ask_server

    with naming_arguments({"url": "--url", "api_key": "--api-key"}):
        return ask_server(options.url, options.api_key, method, path, **others)


_JSON = Option(["--json"], is_flag=True, help="print what a program would read")
_KEY = Argument("key", metavar="KEY", about="its id, or its name")

_BOUND_OPTIONS = (
    Option(["--max-sandboxes"], type=int, metavar="NUMBER", help="sandboxes living at once"),
    Option(
        ["--max-concurrent-executions"],
        type=int,
        metavar="NUMBER",
        help="executions under way at once",
    ),
    Option(
        ["--executions-per-day"],
        type=int,
        metavar="NUMBER",
        help="executions begun in a day (UTC)",
    ),
    Option(
        ["--cpu-seconds-per-day"],
        type=Seconds(),
        metavar="SECONDS",
        help="CPU time in a day (UTC)",
    ),
    Option(
        ["--max-memory"],
        type=Size(),
        metavar="SIZE",
        help="most memory of a sandbox, such as 512M",
    ),
    Option(
        ["--max-limit"],
        multiple=True,
        metavar="NAME=NUMBER",
        help="most of another limit, such as wall_seconds=60; may be repeated",
    ),
    Option(
        ["--max-network"],
        type=OneOf(NETWORK_LEVELS),
        metavar="LEVEL",
        help=f"most network of its sandboxes: {', '.join(NETWORK_LEVELS)}",
    ),
    Option(
        ["--expires-at"],
        metavar="TIME",
        help="when it ends, with its time zone: 2030-01-31T12:00:00Z",
    ),
)

KEYS = Verbs(
    "keys",
    [
        Command(
            "create",
            run_create,
            brief="make a key and print its token",
            about="Make a key and print its token, which is shown this once.",
            params=[
                Argument("name", metavar="NAME", about="what you call it"),
                Option(
                    ["--scope"],
                    type=OneOf(SCOPES),
                    multiple=True,
                    metavar="SCOPE",
                    help=f"what it may do: {', '.join(SCOPES)}; may be repeated "
                    "(default: execute and sandboxes)",
                ),
                *_BOUND_OPTIONS,
                *SERVER_OPTIONS,
                _JSON,
            ],
        ),
        Command(
            "list",
            run_list,
            brief="list the keys",
            params=[Option(["--all"], is_flag=True, help="the revoked ones as well"), *SERVER_OPTIONS, _JSON],
        ),
        Command(
            "rotate",
            run_rotate,
            brief="give a key a new token and print it",
            params=[
                _KEY,
                Option(
                    ["--grace"],
                    type=Seconds(),
                    default=0.0,
                    metavar="SECONDS",
                    help="how long the old token stays valid beside the new one (default: 0)",
                ),
                *SERVER_OPTIONS,
                _JSON,
            ],
        ),
        Command(
            "set",
            run_set,
            brief="change a key; its token stays",
            about="Change the name, the scopes or the bounds of a key; its token stays, and what is not named too.",
            params=[
                _KEY,
                Option(["--name"], metavar="NAME", help="what you call it"),
                Option(
                    ["--scope"],
                    type=OneOf(SCOPES),
                    multiple=True,
                    metavar="SCOPE",
                    help="what it may do from now on, instead of what it may do now; may be repeated",
                ),
                *_BOUND_OPTIONS,
                Option(
                    ["--no-bound"],
                    multiple=True,
                    metavar="NAME",
                    help="take a bound away, such as max_sandboxes or wall_seconds; may be repeated",
                ),
                *SERVER_OPTIONS,
                _JSON,
            ],
        ),
        Command(
            "revoke",
            run_revoke,
            brief="end a key and its sandboxes",
            params=[
                _KEY,
                Option(
                    ["--keep-sandboxes"],
                    is_flag=True,
                    help="let its sandboxes live until their time is over",
                ),
                *SERVER_OPTIONS,
            ],
        ),
    ],
    brief="make, list, change, rotate and revoke the keys of a server",
)
USAGE = Command(
    "usage",
    run_usage,
    brief="what the keys of a server have used",
    about="Print what keys have used, summed by day or hour; by default that of 30 days.",
    params=[
        Option(["--key"], metavar="KEY", help="of this key alone"),
        Option(
            ["--by"], type=OneOf(("day", "hour")), default="day", metavar="SPAN", help="day (default) or hour"
        ),
        Option(["--since"], metavar="TIME", help="from when on, such as 2030-01-01T00:00:00Z"),
        Option(["--until"], metavar="TIME", help="up to when"),
        *SERVER_OPTIONS,
        _JSON,
    ],
)
