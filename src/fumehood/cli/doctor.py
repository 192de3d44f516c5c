"""`fumehood doctor`: every layer of isolation on this machine, there or missing, why, and how to get it.

Runs in the user's terminal. It only prints what the runtime found; nothing is changed.
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
        "The exit code is 0 when all are there, 1 when one is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Examine this machine and return the exit code."""
    # Late: it asks the kernel, which no other command needs.
    from fumehood.runtimes.linux import doctor

    with patience("examining this machine"):
        layers = doctor()

    if options.json:
        print(json.dumps(layers, indent=2))
    else:
        _print_table(layers)

    return 0 if all(layer["state"] == "on" for layer in layers) else 1


def _print_table(layers: list[dict[str, str]]) -> None:
    name_width = max((len(layer["name"]) for layer in layers), default=0)
    state_width = max((len(layer["state"]) for layer in layers), default=0)

    for layer in layers:
        why = visible_line(layer["why"], max_characters=1000)
        print(f"{layer['name']:<{name_width}}  {layer['state']:<{state_width}}  {why}".rstrip())

        if layer["state"] != "on" and layer["how_to_get_it"]:
            print(f"{'':<{name_width}}  {'':<{state_width}}  -> {layer['how_to_get_it']}")
