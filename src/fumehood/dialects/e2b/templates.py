"""The named templates of a server as E2B's clients ask for them: which there are, by which names, with which tags.

Reads only: templates are built and removed on the server's machine, by `fumehood template`. A build has one tag, the
default one, since the store keeps the newest build of a name alone. Nothing is counted that the store does not count.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.assemble import template_store
from fumehood.bounds import MIB
from fumehood.dialects.e2b.answers import NotOfferedError, plain_answer
from fumehood.dialects.e2b.auth import Caller
from fumehood.dialects.e2b.creation import default_limits
from fumehood.dialects.e2b.sandboxes import cpu_count_of, envd_version, is_default_template
from fumehood.errors import TemplateStoreError
from fumehood.templates.store import Record

DEFAULT_TAG = "default"
# Of all templates of all servers, so that a build has the same id wherever it is asked for.
_BUILDS = uuid.UUID("4f6f6e86-6e35-4f0c-9a5e-7a1d2d3c1b60")


async def list_templates(_request: Request, caller: Caller) -> Response:
    """Lists the templates that were built on this server, by name, without the default one."""
    records = await asyncio.to_thread(_records)
    return JSONResponse([await _data(record, caller) for record in records])


async def find_alias(request: Request, _caller: Caller) -> Response:
    """Says which template a name means."""
    name = _without_tag(request.path_params["alias"])

    if name is not None and (is_default_template(name) or await _found(name) is not None):
        return JSONResponse({"templateID": name, "public": True})

    return _unknown(request.path_params["alias"])


async def describe_template(request: Request, caller: Caller) -> Response:
    """Describes a template with its only build."""
    record = await _found(request.path_params["template_id"])

    if record is None:
        return _unknown(request.path_params["template_id"])

    data = await _data(record, caller)
    build = {
        "buildID": data["buildID"],
        "status": "ready",
        "createdAt": data["createdAt"],
        "updatedAt": data["updatedAt"],
        "finishedAt": data["updatedAt"],
        "cpuCount": data["cpuCount"],
        "memoryMB": data["memoryMB"],
        "diskSizeMB": data["diskSizeMB"],
        "envdVersion": data["envdVersion"],
    }
    return JSONResponse({**data, "builds": [build]})


async def list_tags(request: Request, _caller: Caller) -> Response:
    """Lists the tags of a template: the default one of its newest build."""
    record = await _found(request.path_params["template_id"])

    if record is None:
        return _unknown(request.path_params["template_id"])

    return JSONResponse([{"tag": DEFAULT_TAG, "buildID": _build_id(record), "createdAt": _built_at(record)}])


async def refuse_to_delete(name: str) -> None:
    """Does nothing unless a template has this name.

    Raises:
        NotOfferedError: One has.
    """
    if is_default_template(name) or await _found(name) is not None:
        instead = "remove them on the server, with `fumehood template remove`"
        raise NotOfferedError(what="the removal of templates through the API of E2B", instead=instead)


async def _found(name: str) -> Record | None:
    try:
        return await asyncio.to_thread(template_store().record, name)
    except TemplateStoreError:
        # A damaged one cannot be used either.
        return None


def _records() -> list[Record]:
    store = template_store()
    found: list[Record] = []

    for name in store.names():
        try:
            record = store.record(name)
        except TemplateStoreError:
            continue

        if record is not None:
            found.append(record)

    return found


async def _data(record: Record, caller: Caller) -> dict[str, Any]:
    limits = default_limits(caller.principal.policy)
    cores = (await caller.backend.capacity()).cpu_cores
    return {
        "templateID": record.info.name,
        "buildID": _build_id(record),
        "cpuCount": cpu_count_of(limits, cores),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        # Every key of the server may use it.
        "public": True,
        "aliases": [record.info.name],
        "names": [record.info.name],
        "createdAt": _built_at(record),
        "updatedAt": _built_at(record),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": envd_version(),
        "buildStatus": "ready",
    }


def _build_id(record: Record) -> str:
    return str(uuid.uuid5(_BUILDS, record.build))


def _built_at(record: Record) -> str:
    return record.info.built_at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _without_tag(name: str) -> str | None:
    """Returns the name without its tag, or None if no template has that tag."""
    name, _, tag = name.partition(":")
    return name if tag in ("", DEFAULT_TAG) else None


def _unknown(name: str) -> Response:
    return plain_answer(404, f"there is no template {name[:200]!r}", {"Should-Retry": "false"})
