"""`fumehood host`: the sandboxes of this machine in a process of their own, until Ctrl-C or SIGTERM.

Runs in the user's terminal. It only turns flags into settings: each setting is a flag of the same name.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from fumehood.cli.extras import require_extra
from fumehood.cli.setting_flags import add_setting_flags, given_flags
from fumehood.daemon.settings import HostSettings, load_host_settings
from fumehood.server.setting_fields import print_settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "host",
        help="keep sandboxes in a process of their own, for `fumehood serve --host-socket`",
        description="Keep sandboxes in a process of their own, behind a unix socket of this user: a server that "
        "has its sandboxes there can be restarted, and they live on.",
    )
    add_setting_flags(parser, HostSettings)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Keep sandboxes, and return the exit code."""
    flags = given_flags(options, HostSettings)
    settings, sources = load_host_settings(flags, environ=os.environ, file=options.config)

    if options.print_config:
        print(print_settings(settings, sources))
        return 0

    require_extra("server", "fastapi", "uvicorn", command="host")
    # Late: only a daemon needs a web framework.
    from fumehood.daemon.run import serve_host

    return serve_host(settings)
