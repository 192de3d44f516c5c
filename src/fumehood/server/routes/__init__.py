"""The routes of the native API, one file for each kind of resource.

Runs in the server process. A route translates HTTP to verbs of the port, and must not use the engine.
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
    sandboxes,
    saved,
    shared,
    shares,
    templates,
    time_travel,
    variables,
    watch,
)

# In the order in which the description lists them.
ROUTERS: tuple[APIRouter, ...] = (
    execute.router,
    sandboxes.router,
    executions.router,
    cells.router,
    watch.router,
    watch.socket_router,
    contexts.router,
    variables.router,
    time_travel.checkpoints_router,
    time_travel.compare_router,
    time_travel.forks_router,
    saved.router,
    time_travel.judging_router,
    files.router,
    content.upload_router,
    content.router,
    commands.router,
    pty.router,
    templates.router,
    keys.router,
    logins.open_router,
    logins.router,
    shares.router,
    shares.open_router,
    shared.router,
    shared.socket_router,
    ports.router,
    network.router,
    audit.router,
    machines.router,
    meta.router,
    meta.guarded,
    meta.of_owner,
    documentation.router,
    openapi_pages.router,
)
