"""Puts the server's parts together: the only module of the server that knows the concrete classes.

Parts are closed in the opposite order in which they were opened, also if a later part fails to open; the lock on the
state folder is held meanwhile, so two servers never share one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fumehood.assemble import allow_open_files, backend_on_loop, cluster_on_loop
from fumehood.cancellation import stop
from fumehood.cluster.backend import ClusterBackend
from fumehood.engine.backend import LocalBackend
from fumehood.engine.identity import kept_host_id
from fumehood.errors import HostUnavailableError, InvalidArgumentError
from fumehood.log import events
from fumehood.port.backend import Backend
from fumehood.server.authenticator import TokenAuthenticator, owner_token
from fumehood.server.logins import ConsoleLogins
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import OWNER_ID
from fumehood.server.queue import FairQueue
from fumehood.server.rate_limits import RateLimits
from fumehood.server.retention import housekeeping
from fumehood.server.server_audit import ServerAudit
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings
from fumehood.server.shares import SandboxShares
from fumehood.server.state_files import locked, own_folder
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import default_url, open_database
from fumehood.storage.files import StoredFiles
from fumehood.storage.idempotency import Idempotency
from fumehood.storage.keys import Keys, token_digest
from fumehood.storage.logins import Logins
from fumehood.storage.restore import RESTORING
from fumehood.storage.shares import ShareStore
from fumehood.storage.usage import UsageLedger
from fumehood.values.sandbox import Isolation

_RUNS_PER_CORE = 4
_HOUR_SECONDS = 3600.0


def prepare_state(settings: ServerSettings) -> Path:
    """Makes the state folder, readable only by its owner, and returns it.

    Raises:
        InvalidArgumentError: The folder cannot be made, does not belong to this user, or contains an unfinished
            restore.
    """
    state = own_folder("state_folder", settings.state_path)

    if os.path.lexists(state / RESTORING):
        raise InvalidArgumentError(
            field="state_folder",
            value=str(state),
            allowed=f"one whose restore is finished: remove all in it ({RESTORING} too), and restore again",
        )

    return state


@asynccontextmanager
async def open_services(settings: ServerSettings) -> AsyncGenerator[Services, None]:
    """Opens the services that the handlers of a server use, and closes them at the end of the block."""
    state = prepare_state(settings)

    async with AsyncExitStack() as stack:
        stack.enter_context(locked(state / "lock", _taken(state)))
        database = await open_database(settings.database_url or default_url(str(state)))
        stack.push_async_callback(database.close)
        ledger = UsageLedger(database)
        await ledger.refresh()
        stack.push_async_callback(ledger.close)
        keys = Keys(database)
        stack.push_async_callback(keys.close)
        blobs = open_blobs(settings.blobs_url or str(state / "blobs"))
        await blobs.check()
        metrics = ServerMetrics()
        backend = await _open_backend(settings, state, metrics, stack)
        stored_files = StoredFiles(database)
        await stack.enter_async_context(housekeeping(stored_files, blobs, ledger))
        token, _ = owner_token(state, settings.token)
        rate_limits = RateLimits(
            wrong_tokens_per_minute=settings.wrong_tokens_per_minute,
            requests_per_minute=settings.requests_per_minute,
            on_refusal=metrics.note_rate_limited,
        )
        authenticator = TokenAuthenticator(token, keys, rate_limits)
        audit = ServerAudit(settings.audit_folder)
        stack.callback(audit.close)
        logins = Logins(database, settings.login_hours * _HOUR_SECONDS)
        stack.push_async_callback(logins.close)
        services = Services(
            settings=settings,
            state=state,
            backend=backend,
            authenticator=authenticator,
            database=database,
            keys=keys,
            logins=ConsoleLogins(logins, authenticator, settings, audit),
            audit=audit,
            rate_limits=rate_limits,
            ledger=ledger,
            idempotency=Idempotency(database),
            shares=SandboxShares(
                ShareStore(database, {OWNER_ID: token_digest(token)}),
                authenticator,
                rate_limits,
                is_on=settings.shares,
            ),
            stored_files=stored_files,
            blobs=blobs,
            queue=FairQueue(places=_places(settings), capacity=settings.max_queued_runs),
            metrics=metrics,
        )

        if settings.cluster and not settings.max_concurrent_runs:
            assert isinstance(backend, ClusterBackend)
            backend.on_cores = lambda cores: services.queue.set_places(max(1, int(_RUNS_PER_CORE * cores)))

        await stack.enter_async_context(services.spending.cpu.running())
        stack.push_async_callback(services.batches.close)
        stack.push_async_callback(services.detached.close)
        stack.push_async_callback(services.at_end.aclose)
        yield services


async def _open_backend(
    settings: ServerSettings, state: Path, metrics: ServerMetrics, stack: AsyncExitStack
) -> Backend:
    if settings.cluster:
        allow_open_files()
        cluster = cluster_on_loop(settings.cluster, settings.cluster_token_file, asyncio.get_running_loop())
        stack.push_async_callback(cluster.aclose)
        cluster.start()
        return cluster

    if settings.host_socket:
        host = await _reach_host(settings.host_socket)
        stack.push_async_callback(host.aclose)
        return host

    engine = replace(
        settings,
        host_id=settings.host_id or kept_host_id(state),
        records_folder=settings.records_folder or str(state / "records"),
    )
    backend = backend_on_loop(engine, asyncio.get_running_loop(), metrics.note_security_event)
    stack.push_async_callback(backend.aclose)
    stack.push_async_callback(stop, asyncio.create_task(_warm(backend, settings)))
    return backend


async def _warm(backend: LocalBackend, settings: ServerSettings) -> None:
    """Fills the pool, and prints which layers of isolation are missing, unless programs read the lines."""
    await backend.warm()
    isolation = await backend.isolation()

    if isolation is not None and isolation.missing and settings.log_format != "json":
        sys.stderr.write(f"{weaker_isolation(isolation)}\n")
        sys.stderr.flush()


def weaker_isolation(isolation: Isolation) -> str:
    """Return the line for an operator about layers that are missing or weaker on this machine."""
    found = {
        word: ", ".join(layer.name for layer in isolation.missing if layer.state == state)
        for word, state in (("missing", "off"), ("weaker", "degraded"))
    }
    layers = "; ".join(f"{word}: {names}" for word, names in found.items() if names)
    return f"isolation of sandboxes here is {isolation.level}, {layers}: `fumehood doctor` says why, and the way out"


async def _reach_host(socket_path: str) -> Backend:
    """Returns a backend over the host daemon's socket; the daemon may start later: each call makes a new connection."""
    from fumehood.client.backend import connect_to_host

    allow_open_files()
    backend = connect_to_host(socket_path)

    try:
        await backend.capacity()
    except HostUnavailableError as error:
        events.HOST_UNREACHABLE.log(socket=socket_path, reason=error.log_reason)

    return backend


def _places(settings: ServerSettings) -> int:
    return settings.max_concurrent_runs or _RUNS_PER_CORE * len(os.sched_getaffinity(0))


def _taken(state: Path) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="state_folder",
        value=str(state),
        allowed="another folder; or end that server first",
        problem=f"another server of this machine uses the state folder {str(state)!r}",
    )
