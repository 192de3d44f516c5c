"""The services of the daemon's routes: the engine of this process, without a tenant guard.

Runs in the host daemon, on its loop. There is no database and no key, and lifetimes are those of the request; the
server in front checks all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fumehood.assemble import backend_on_loop
from fumehood.cancellation import stop
from fumehood.daemon.peers import PeerAuthenticator
from fumehood.daemon.settings import HostSettings
from fumehood.engine.identity import kept_host_id
from fumehood.port.backend import Backend
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import Principal
from fumehood.server.queue import FairQueue
from fumehood.server.services import AppServices
from fumehood.server.settings import ServerSettings

# The server in front has bounded the request; only base64 makes a body larger than that.
_MAX_BYTES = 1 << 40
_HOST_NAME = "host"


@dataclass(kw_only=True)
class HostServices(AppServices):
    """The services of the daemon's routes."""

    def backend_for(self, principal: Principal) -> Backend:
        """Returns the engine itself: each request names the owner."""
        return self.backend


@asynccontextmanager
async def open_host_services(settings: HostSettings, state: Path) -> AsyncGenerator[HostServices, None]:
    """Starts the engine, and ends it with all its sandboxes at the end of the block."""
    engine = replace(settings, host_id=settings.host_id or kept_host_id(state))
    metrics = ServerMetrics()
    backend = backend_on_loop(engine, asyncio.get_running_loop(), metrics.note_security_event)

    warming = asyncio.create_task(backend.warm())

    try:
        yield HostServices(
            settings=_app_settings(settings),
            state=state,
            backend=backend,
            authenticator=PeerAuthenticator(),
            # The server in front has a queue; the engine refuses a sandbox beyond its capacity.
            queue=FairQueue(places=settings.max_sandboxes, capacity=settings.max_sandboxes),
            metrics=metrics,
        )
    finally:
        await stop(warming)
        await backend.aclose()


def _app_settings(settings: HostSettings) -> ServerSettings:
    return ServerSettings(
        allowed_hosts=(_HOST_NAME,),
        dialects=(),
        sandbox_seconds=0,
        max_sandbox_seconds=0,
        max_body_bytes=_MAX_BYTES,
        max_upload_bytes=_MAX_BYTES,
        drain_seconds=settings.drain_seconds,
        log_level=settings.log_level,
        log_format=settings.log_format,
        slow_request_seconds=settings.slow_request_seconds,
    )
