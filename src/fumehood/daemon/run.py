"""Runs the daemon: takes the socket first, which fails if another daemon has it, then starts the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from fumehood.daemon.settings import HostSettings
from fumehood.daemon.socket import listening
from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.server.state_files import locked, own_folder


def serve_host(settings: HostSettings, sources: Mapping[str, str]) -> int:
    """Serves sandboxes until a signal ends it, and returns the exit code: 0, or 1 when calls had to be cut off.

    Args:
        settings: The settings.
        sources: The source of each setting.

    Raises:
        FumehoodError: The socket or the state folder is not available.
    """
    state = own_folder("state_folder", settings.state_path)
    taken = InvalidArgumentError(
        field="state_folder",
        value=str(state),
        allowed="another folder; or end that host first",
        problem=f"another host of this machine uses the state folder {str(state)!r}",
    )

    with ExitStack() as stack:
        listener = stack.enter_context(listening(Path(settings.socket)))
        stack.enter_context(locked(state / "host.lock", taken))
        # Imported late: a daemon that does not get the socket needs no web framework.
        from fumehood.daemon.app import keep_sandboxes

        code = asyncio.run(keep_sandboxes(settings, sources, state, listener))
        events.SERVER_ENDED.log(exit_code=code)
        return code
