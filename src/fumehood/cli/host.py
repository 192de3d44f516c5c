"""`fumehood host`: the sandboxes of this machine in a process of their own, until Ctrl-C or SIGTERM.

Runs in the user's terminal. It only turns flags into settings: each setting is a flag of the same name.
"""

from __future__ import annotations

import os

from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Command, Options
from fumehood.cli.setting_flags import given_flags, setting_flags
from fumehood.daemon.settings import HostSettings, load_host_settings
from fumehood.setting_fields import print_settings


def run(options: Options) -> int:
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


HOST = Command(
    "host",
    run,
    brief="keep sandboxes in a process of their own, for `fumehood serve --host-socket`",
    about="Keep sandboxes in a process of their own, behind a unix socket of this user: a server that "
    "has its sandboxes there can be restarted, and they live on.",
    params=setting_flags(HostSettings),
)
