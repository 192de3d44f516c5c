"""Puts the server's parts together: the only module of it that knows the concrete classes.

Runs in the server process, on its loop. What was opened is closed in the opposite order, also when a later part
does not open; the lock on the state folder is held meanwhile, so two servers never share one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fumehood.assemble import Settings, backend_on_loop
from fumehood.backends.base import Backend
from fumehood.errors import InvalidArgumentError
from fumehood.server.authenticator import TokenAuthenticator, owner_token
from fumehood.server.metrics import ServerMetrics
from fumehood.server.queue import FairQueue
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import default_url, open_database
from fumehood.storage.files import StoredFiles
from fumehood.storage.idempotency import Idempotency
from fumehood.storage.keys import Keys
from fumehood.storage.usage import UsageLedger

_LOG = logging.getLogger("fumehood.server")
_RUNS_PER_CORE = 4


def prepare_state(settings: ServerSettings) -> Path:
    """Makes the state folder, closed to everybody else, and returns it."""
    path = settings.state_path
    path.mkdir(mode=0o700, parents=True, exist_ok=True)

    if path.stat().st_uid != os.geteuid() or path.stat().st_mode & 0o077:
        raise InvalidArgumentError(
            field="state_folder", value=str(path), allowed="a folder of this user that nobody else can enter"
        )

    return path


@asynccontextmanager
async def open_services(settings: ServerSettings) -> AsyncGenerator[Services, None]:
    """Opens what the handlers of a server use, and closes it at the end of the block."""
    state = prepare_state(settings)

    async with AsyncExitStack() as stack:
        stack.callback(os.close, _lock(state))
        database = await open_database(settings.database_url or default_url(str(state)))
        stack.push_async_callback(database.close)
        ledger = UsageLedger(database)
        await ledger.refresh()
        stack.push_async_callback(ledger.close)
        keys = Keys(database)
        stack.push_async_callback(keys.close)
        blobs = open_blobs(settings.blobs_url or str(state / "blobs"))
        await blobs.check()
        backend = await _open_backend(settings)
        stack.push_async_callback(backend.aclose)
        token, _ = owner_token(state, settings.token)
        yield Services(
            settings=settings,
            state=state,
            backend=backend,
            authenticator=TokenAuthenticator(token, keys),
            database=database,
            keys=keys,
            ledger=ledger,
            idempotency=Idempotency(database),
            stored_files=StoredFiles(database),
            blobs=blobs,
            queue=FairQueue(places=_places(settings), capacity=settings.max_queued_runs),
            metrics=ServerMetrics(),
        )


async def _open_backend(settings: ServerSettings) -> Backend:
    if settings.host_socket:
        from fumehood.backends.http import connect_to_host

        return await connect_to_host(settings.host_socket)

    return backend_on_loop(
        Settings(pool_size=settings.pool_size, max_sandboxes=settings.max_sandboxes),
        asyncio.get_running_loop(),
    )


def _places(settings: ServerSettings) -> int:
    return settings.max_concurrent_runs or _RUNS_PER_CORE * len(os.sched_getaffinity(0))


def _lock(state: Path) -> int:
    """Holds the state folder for this process alone."""
    fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise InvalidArgumentError(
            field="state_folder", value=str(state), allowed="a folder that no other server uses now"
        ) from None

    return fd
