"""Settings as flags: each setting of a process has one of the same name.

Runs in the user's terminal. It knows no setting: the fields of a dataclass say all there is to say.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from fumehood.server.setting_fields import flag_of

# The last words of names that say what the value is.
_TELLING = ("seconds", "bytes", "folder", "url", "socket", "port", "host", "level", "domain", "token")


def add_setting_flags(parser: argparse.ArgumentParser, kind: Any) -> None:
    """Add a flag for each setting of a kind, for its TOML file, and for printing them."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings (FUMEHOOD_CONFIG)")
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting and where it came from, and end"
    )

    for item in fields(kind):
        default = item.default if item.default not in ("", ()) else None
        shown = "" if default is None else f" (default: {_shown(default)})"
        # Values stay text until the settings give them their types, whichever way they came.
        # argparse fills in what follows a percent sign.
        help_text = f"{item.metadata['help']}{shown}".replace("%", "%%")
        # A flag that says yes or no says yes by itself.
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(item.default, bool) else {}
        parser.add_argument(
            flag_of(item.name), metavar=_metavar(item.name, item.default), help=help_text, **alone
        )


def given_flags(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Return what was given on the command line, by setting; None: it was not."""
    return {item.name: getattr(options, item.name) for item in fields(kind)}


def _metavar(name: str, default: object) -> str:
    """Return what kind of value a setting takes, as its help shows it."""
    if isinstance(default, bool):
        return "true|false"

    if isinstance(default, tuple):
        return "A,B,..."

    unit = name.rpartition("_")[2]
    return unit.upper() if unit in _TELLING else "NUMBER" if isinstance(default, int | float) else "TEXT"


def _shown(default: object) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)
