"""The routes of the native API, one resource a file; each translates HTTP to verbs of the port."""

from __future__ import annotations

from fastapi import APIRouter

from fumehood.server.routes import execute, executions, keys, meta, ports, sandboxes

# In the order in which the description lists them.
ROUTERS: tuple[APIRouter, ...] = (
    execute.router,
    sandboxes.router,
    executions.router,
    keys.router,
    ports.router,
    meta.router,
)
