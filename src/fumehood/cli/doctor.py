"""`fumehood doctor`: every layer of isolation on this machine, there or missing, why, and how to get it.

Runs in the user's terminal. It only prints what the runtime found; nothing is changed. With `--attack` it hands
over to the scorecard.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from fumehood.cli.terminal import patience
from fumehood.text import visible_line

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "doctor",
        help="what this machine allows",
        description="Print every layer of isolation: whether it is there, why not, and how to get it. "
        "The exit code is 0 when sandboxes can start here, 1 when a required layer is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument(
        "--attack",
        action="store_true",
        help="try harmless attacks on sandboxes of this machine, and print the scorecard; half a minute",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Examine this machine and return the exit code."""
    if options.attack:
        # Late: attacks are a part of their own, which nothing else needs.
        from fumehood.cli.attacks import attack

        return attack(as_json=options.json)

    # Late: it asks the kernel, which no other command needs.
    from fumehood.runtimes.linux import doctor

    with patience("examining this machine"):
        layers = doctor()

    lacking = [layer for layer in layers if layer["state"] == "missing" and layer["need"] == "required"]

    if options.json:
        print(json.dumps(layers, indent=2))
        return int(bool(lacking))

    _print_table(layers)
    print(f"\n{_verdict(layers, lacking)}")
    return int(bool(lacking))


def _verdict(layers: list[dict[str, str]], lacking: list[dict[str, str]]) -> str:
    if not lacking:
        return "Sandboxes can start here."

    names = ", ".join(layer["name"] for layer in lacking)
    is_weaker = any(layer["name"] == "isolation level" and layer["state"] == "degraded" for layer in layers)
    way = " Weaker ones can, for those who name that level: --isolation landlock-only." if is_weaker else ""
    return f"No sandbox can start here without: {names}.{way}"


def _print_table(layers: list[dict[str, str]]) -> None:
    columns = ("name", "state", "need")
    widths = [max((len(layer[column]) for layer in layers), default=0) for column in columns]

    for layer in layers:
        cells = [layer[column].ljust(width) for column, width in zip(columns, widths, strict=True)]
        print("  ".join([*cells, visible_line(layer["why"], max_characters=1000)]).rstrip())

        if layer["state"] != "there" and layer["how_to_get_it"]:
            way_out = visible_line(layer["how_to_get_it"], max_characters=1000)
            print("  ".join([*(" " * width for width in widths), f"-> {way_out}"]))
