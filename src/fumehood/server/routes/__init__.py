"""The routes of the native API, one resource a file; each translates HTTP to verbs of the port."""

from __future__ import annotations

from fastapi import APIRouter

from fumehood.server.routes import execute, keys, meta, ports

# In the order in which the description lists them.
ROUTERS: tuple[APIRouter, ...] = (execute.router, keys.router, ports.router, meta.router)
