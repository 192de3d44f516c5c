"""Settings as flags: each setting of a process has one of the same name.

It names no setting: all comes from the fields of a dataclass.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fumehood.cli.parser import Option, Options, PathWord
from fumehood.setting_fields import flag_of

# The kinds of values, by the last word of a setting's name.
_TELLING = (
    "seconds",
    "bytes",
    "folder",
    "url",
    "socket",
    "port",
    "host",
    "level",
    "format",
    "domain",
    "token",
)


def setting_flags(kind: Any) -> list[Option]:
    """Return the flags of a settings class: one for each setting, `--config` and `--print-config`."""
    headings = {name: heading for heading, names in kind.GROUPS.items() for name in names}
    # In the order of their groups and not of their declarations: the first groups are needed most often.
    order = {name: position for position, name in enumerate(headings)}
    flags = [
        Option(
            ["--config"], type=PathWord(), metavar="FILE", help="TOML file with settings (FUMEHOOD_CONFIG)"
        ),
        Option(["--print-config"], is_flag=True, help="print every setting and where it came from, and end"),
    ]

    for item in sorted(fields(kind), key=lambda item: order.get(item.name, len(order))):
        default = item.default if item.default not in ("", ()) else None
        shown = "" if default is None else f" (default: {_shown(default)})"
        # A boolean flag without a value is true.
        alone: dict[str, Any] = (
            {"is_flag": False, "flag_value": "true"} if isinstance(item.default, bool) else {}
        )
        # Values stay text until the settings give them their types, whichever way they came.
        flags.append(
            Option(
                [flag_of(item.name)],
                heading=headings.get(item.name, "options"),
                metavar=_metavar(item.name, item.default),
                help=f"{item.metadata['help']}{shown}",
                **alone,
            )
        )

    return flags


def given_flags(options: Options, kind: Any) -> dict[str, Any]:
    """Return the values from the command line, by setting; None for a setting that was not given."""
    return {item.name: getattr(options, item.name) for item in fields(kind)}


def _metavar(name: str, default: object) -> str:
    """Return the placeholder for a setting's value in the help."""
    if isinstance(default, bool):
        return "true|false"

    if isinstance(default, tuple):
        return "A,B,..."

    unit = name.rpartition("_")[2]
    return unit.upper() if unit in _TELLING else "NUMBER" if isinstance(default, int | float) else "TEXT"


def _shown(default: object) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)
