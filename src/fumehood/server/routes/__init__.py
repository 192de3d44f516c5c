"""The routes of the native API, one file for each kind of resource.

A route translates HTTP to verbs of the port, and must not use the engine.
"""

from __future__ import annotations

from fastapi import APIRouter

from fumehood.server.routes import (
    audit,
    cells,
    commands,
    content,
    contexts,
    documentation,
    execute,
    executions,
    files,
    keys,
    logins,
    machines,
    meta,
    network,
    openapi_pages,
    ports,
    pty,
    records,
    sandboxes,
    saved,
    shared,
    shares,
    templates,
    time_travel,
    variables,
    watch,
)

# Where a router is served: by all, or by servers alone, as it needs their database or their settings.
_ALL, _SERVERS = "servers and hosts", "servers"
# In the order in which the description lists them.
_TABLE: tuple[tuple[APIRouter, str], ...] = (
    (execute.router, _ALL),
    (sandboxes.router, _ALL),
    (executions.router, _ALL),
    (cells.router, _ALL),
    (watch.router, _ALL),
    (watch.socket_router, _ALL),
    (contexts.router, _ALL),
    (variables.router, _ALL),
    (time_travel.checkpoints_router, _ALL),
    (time_travel.compare_router, _ALL),
    (time_travel.forks_router, _ALL),
    (saved.router, _ALL),
    (time_travel.judging_router, _ALL),
    (files.router, _ALL),
    (content.upload_router, _ALL),
    (content.router, _ALL),
    (commands.router, _ALL),
    (pty.router, _ALL),
    (templates.router, _ALL),
    (keys.router, _SERVERS),
    (logins.open_router, _SERVERS),
    (logins.router, _SERVERS),
    (shares.router, _SERVERS),
    (shares.open_router, _SERVERS),
    (shared.router, _SERVERS),
    (shared.socket_router, _SERVERS),
    (ports.router, _ALL),
    (network.router, _ALL),
    (audit.router, _ALL),
    (records.router, _ALL),
    (machines.router, _SERVERS),
    (meta.router, _ALL),
    (meta.guarded, _ALL),
    (meta.of_owner, _SERVERS),
    (documentation.router, _ALL),
    (openapi_pages.router, _ALL),
)
ROUTERS = tuple(router for router, _ in _TABLE)
HOST_ROUTERS = tuple(router for router, served_by in _TABLE if served_by == _ALL)
