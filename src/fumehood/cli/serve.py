"""`fumehood serve`: the server in this terminal, until Ctrl-C or SIGTERM.

Runs in the user's terminal. It only turns flags into settings: each setting is a flag of the same name.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from typing import TYPE_CHECKING

from fumehood.cli.extras import require_extra
from fumehood.server.settings import ServerSettings, load_settings, print_settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "serve",
        help="sandboxes for others, over HTTP",
        description="Serve sandboxes over HTTP: the native API, and the dialects of other products. Each "
        "setting is a flag, a variable FUMEHOOD_<SETTING>, or a key of the TOML file, in this order.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings (FUMEHOOD_CONFIG)")
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting and where it came from, and end"
    )

    for item in fields(ServerSettings):
        default = item.default if item.default not in ("", ()) else None
        shown = "" if default is None else f" (default: {_shown(default)})"
        # Values stay text until the settings give them their types, whichever way they came.
        parser.add_argument(_flag(item.name), metavar="VALUE", help=f"{item.metadata['help']}{shown}")

    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Serve, and return the exit code."""
    flags = {item.name: getattr(options, item.name) for item in fields(ServerSettings)}
    settings, sources = load_settings(flags, environ=os.environ, file=options.config)

    if options.print_config:
        print(print_settings(settings, sources))
        return 0

    require_extra("server", "fastapi", "uvicorn", "sqlalchemy", "obstore")
    # Late: only a server needs a web framework.
    from fumehood.server.run import serve

    return serve(settings)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(default: object) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)
