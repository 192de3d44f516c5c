"""Runs the server: one app over its services, from its first line on the terminal to its last.

Runs in the server process; `http_server` says how it ends.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path

from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.log.setup import configure
from fumehood.server.app import create_app
from fumehood.server.assembly import open_services, prepare_state
from fumehood.server.authenticator import owner_token
from fumehood.server.http_server import BACKLOG, serve_app
from fumehood.server.listener import Listener
from fumehood.server.principal import OWNER_ID
from fumehood.server.services import Services
from fumehood.server.settings import SHORTEST_TOKEN, ServerSettings
from fumehood.server.tracing import trace
from fumehood.setting_fields import changed_settings, describe_settings, logged_settings, origin_of

# A client that vanishes without closing, with its machine or its network, is dropped within a minute and a half.
_LIFE_SIGNS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)


def serve(settings: ServerSettings, sources: Mapping[str, str]) -> int:
    """Serves until a signal ends it, and returns the exit code: 0, or 1 when requests had to be cut off.

    Args:
        settings: The settings.
        sources: The source of each setting that the greeting may name.

    Raises:
        FumehoodError: The address, the database or the state folder cannot be used.
    """
    configure(settings.log_level, settings.log_format)
    code = asyncio.run(_serve(settings, sources))
    events.SERVER_ENDED.log(exit_code=code)
    return code


def _note_start(services: Services) -> None:
    """Records with which settings the server starts, other than defaults; secrets are not in them."""
    given = describe_settings(services.settings, services.sources)
    services.audit.note(
        "server_started",
        version=metadata.version("fumehood"),
        settings={one.name: one.value for one in given if one.source != "default"},
    )


async def _serve(settings: ServerSettings, sources: Mapping[str, str]) -> int:
    state = prepare_state(settings)
    _, token_file = owner_token(state, settings.token)

    # Before anything else is opened: an address that is taken should be reported at once.
    with closing(_listen(settings)) as listener:
        async with open_services(settings) as services:
            services.sources = sources
            _note_start(services)
            app = create_app(services)
            finish_traces = trace(app, os.environ)
            address = _address(settings, listener)
            _log_start(settings, address, token_file)

            if settings.log_format != "json":
                # With JSON lines a reader gets nothing else.
                _greet(settings, sources, address, token_file, app.state.dialects)
                await _name_console(services, address)

            code = await serve_app(app, services, listener)
            await asyncio.to_thread(finish_traces)
            return code


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is given, or asyncio would leave Nagle on for accepted sockets: 40 ms for each small response.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    # Accepted sockets inherit them.
    for level, option, value in _LIFE_SIGNS:
        listener.setsockopt(level, option, value)

    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        why = f"the server cannot listen on {settings.host}:{settings.port}: {error.strerror}"

        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            allowed = "a port that is free and permitted; 0 takes any free one"
            raise InvalidArgumentError(
                field="--port", value=settings.port, allowed=allowed, problem=why
            ) from None

        allowed = "an address of this machine"
        raise InvalidArgumentError(
            field="--host", value=settings.host, allowed=allowed, problem=why
        ) from None

    listener.listen(BACKLOG)
    listener.set_inheritable(False)
    return listener


async def _name_console(services: Services, address: str) -> None:
    """Prints an address that opens the console, logged in as the owner, once; only if the console is installed."""
    settings = services.settings

    if importlib.util.find_spec("fumehood.console") is None:
        return

    code, _ = await services.logins.new_code(OWNER_ID)
    base = settings.public_url.rstrip("/") or address
    sys.stderr.write(f"the console, once and within ten minutes: {base}/console/#login={code}\n")
    sys.stderr.flush()


def _address(settings: ServerSettings, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}"


def _log_start(settings: ServerSettings, address: str, token_file: Path | None) -> None:
    events.SERVER_STARTED.log(
        address=address,
        token_file=str(token_file) if token_file else None,
        version=metadata.version("fumehood"),
        pid=os.getpid(),
        settings=logged_settings(settings, all_of_them=settings.log_format == "json"),
    )


def _greet(
    settings: ServerSettings,
    sources: Mapping[str, str],
    address: str,
    token_file: Path | None,
    dialects: Sequence[str],
) -> None:
    """Prints the address, the file of the token, the dialects, and the settings that differ from the defaults."""
    lines = [
        f"fumehood listens on {address}",
        f"its token {_whereabouts(sources, token_file)}",
    ]

    if len(settings.token) < SHORTEST_TOKEN and not token_file:
        lines.append(
            f"its token is short: other users of this machine may guess it; take {SHORTEST_TOKEN} characters"
        )

    lines.append(f"dialects: {', '.join(dialects) or 'none'}")
    lines += changed_settings(settings, sources, "serve")
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()


def _whereabouts(sources: Mapping[str, str], token_file: Path | None) -> str:
    if token_file:
        return f"is in {token_file}"

    return f"is the one of {origin_of(ServerSettings.__dataclass_fields__['token'], sources['token'])}"
