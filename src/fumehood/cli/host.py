"""`fumehood host`: the sandboxes of this machine in a process of their own, until Ctrl-C or SIGTERM.

It turns flags into settings, each setting a flag of the same name, or asks a daemon that runs to drain.
"""

from __future__ import annotations

import asyncio
import os

from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.setting_flags import given_flags, setting_flags
from fumehood.cli.terminal import note
from fumehood.daemon.settings import HostSettings, load_host_settings
from fumehood.setting_fields import print_settings

_LOOK_SECONDS = 1.0


def run(options: Options) -> int:
    """Keep sandboxes, and return the exit code."""
    flags = given_flags(options, HostSettings)
    settings, sources = load_host_settings(flags, environ=os.environ, file=options.config)

    if options.print_config:
        print(print_settings(settings, sources))
        return 0

    if options.drain:
        asyncio.run(_drain(settings.socket))
        return 0

    require_extra("server", "fastapi", "uvicorn", command="host")
    # Imported late: only a daemon needs a web framework.
    from fumehood.daemon.run import serve_host

    return serve_host(settings, sources)


async def _drain(socket: str) -> None:
    """Tell the daemon at a socket to make no new sandboxes, and return when it has none left."""
    # Imported late: a daemon needs no client.
    from fumehood.client.backend import connect_to_host

    daemon = connect_to_host(socket)

    try:
        await daemon.set_draining(True)
        said = 0

        while left := (await daemon.capacity()).sandboxes:
            if left != said:
                note(f"{left} sandboxes live there")
                said = left

            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await daemon.aclose()


HOST = Command(
    "host",
    run,
    brief="keep sandboxes in a process of their own, for `fumehood serve --host-socket`",
    about="Keep sandboxes in a process of their own, behind a unix socket of this user: a server that "
    "has its sandboxes there can be restarted, and they live on.",
    params=[
        Option(
            ["--drain"],
            is_flag=True,
            help="have the daemon that runs at --socket make no new sandboxes, and wait until none is left",
        ),
        *setting_flags(HostSettings),
    ],
)
