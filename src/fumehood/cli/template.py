"""`fumehood template`: named templates are built, listed and removed.

Runs in the user's terminal. Steps of a build go to standard error, with the time since its begin; the list goes
to standard output.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from typing import TYPE_CHECKING

from fumehood.cli.options import read_envs
from fumehood.cli.terminal import note
from fumehood.refusals import naming_arguments
from fumehood.text import visible_line
from fumehood.values.codec import as_data

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_OPTIONS = {
    "template name": "NAME",
    "requirements": "--requirements",
    "python": "--python",
    "preload": "--preload",
    "files": "--files",
    "envs": "--env",
}
_COLUMNS = ("NAME", "PYTHON", "SIZE", "BUILT", "PRELOAD")


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "template",
        help="what sandboxes start from",
        description="Build named templates: a Python with packages, files and variables, from which sandboxes "
        "start in every process of yours, by Sandbox('NAME') or --template NAME.",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _add_build(verbs)

    listing = verbs.add_parser("list", help="those that are there", description="List the named templates.")
    listing.add_argument("--json", action="store_true", help="print a list of objects")
    listing.set_defaults(command=run_list)

    removal = verbs.add_parser(
        "remove", help="remove one", description="Remove a template. Sandboxes that live from it go on."
    )
    removal.add_argument("name", metavar="NAME")
    removal.set_defaults(command=run_remove)


def _add_build(verbs: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "build",
        help="build one, if what it is made of has changed",
        description="Build a template, try it with a real sandbox, and only then put it in place of an older "
        "one. Nothing is done when nothing that it is made of has changed.",
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--requirements", metavar="FILE", help="packages to install, as pip's -r takes them")
    parser.add_argument(
        "--python", metavar="VERSION", help="such as 3.12, or the path of an interpreter (default: this one)"
    )
    parser.add_argument(
        "--preload", default="", metavar="MODULES", help="imported once for all, such as numpy,pandas"
    )
    parser.add_argument("--files", metavar="DIR", help="what each sandbox finds in its home directory")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of its sandboxes; may be repeated",
    )
    parser.add_argument(
        "--own-interpreter",
        action="store_true",
        help="start an interpreter for each sandbox: hash seed and addresses differ, and a start takes longer",
    )
    parser.add_argument("--force", action="store_true", help="build it even if nothing has changed")
    parser.set_defaults(command=run_build)


def run_build(options: argparse.Namespace) -> int:
    """Build, tell each step, and return the exit code."""
    # Late: the builder and the engine are needed by no other command's start.
    from fumehood.api.templates import build_template

    # As Ctrl-C: the builder cleans up, and ends the programs that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    with naming_arguments(_OPTIONS):
        build_template(
            options.name,
            requirements=() if options.requirements is None else options.requirements,
            python=options.python,
            preload=[name.strip() for name in options.preload.split(",") if name.strip()],
            files=options.files,
            envs=read_envs(options.env),
            own_interpreter=options.own_interpreter,
            force=options.force,
            on_progress=lambda step: note(f"{time.monotonic() - started:5.1f} s  {step}"),
        )

    return 0


def run_list(options: argparse.Namespace) -> int:
    """Print what is there and return the exit code."""
    from fumehood.api.templates import list_templates

    found = list_templates()

    if options.json:
        print(json.dumps(as_data(found), indent=2))
        return 0

    rows = [_COLUMNS] + [
        (
            info.name,
            info.python,
            f"{info.size_bytes / 1e6:.0f} MB",
            info.built_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            visible_line(",".join(info.preload) or "-"),
        )
        for info in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    for info in found:
        for module, reason in info.left_out.items():
            note(f"{info.name} does not preload {module}: {reason}")

    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Remove one and return the exit code."""
    from fumehood.api.templates import remove_template

    if not remove_template(options.name):
        note(
            f"{options.name} is removed; it is still in use, and its files are deleted once nobody uses them"
        )

    return 0
