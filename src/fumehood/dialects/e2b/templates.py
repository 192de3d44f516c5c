"""The named templates of a server in E2B's format, with their names and tags.

A tag is the part after the colon of a name in the store, and the default tag stands for no tag, so that a tagged build
is a template of its own. Only the owner changes them, and only where the server builds templates (`builds`). Figures
that the store does not have are not reported.
"""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.api.templates import remove_template
from fumehood.assemble import template_store
from fumehood.bounds import MIB
from fumehood.dialects.e2b.answers import plain_answer
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.builds import DEFAULT_TAG, id_of, split_name, stored_name
from fumehood.dialects.e2b.creation import default_limits
from fumehood.dialects.e2b.messages import ClientMessage, Texts
from fumehood.dialects.e2b.sandboxes import cpu_count_of, envd_version, is_default_template
from fumehood.errors import TemplateStoreError
from fumehood.log import events
from fumehood.server.json_bodies import Text
from fumehood.templates.store import TemplateRecord


class _NewTags(ClientMessage):
    target: Text = ""
    tags: Texts = ()


class _OldTags(ClientMessage):
    name: Text = ""
    tags: Texts = ()


async def list_templates(_request: Request, caller: ControlCaller) -> Response:
    """Lists the templates that were built on this server, by name, without the default one."""
    records = await asyncio.to_thread(_records)
    newest = {_base(record): record for record in sorted(records, key=lambda one: one.info.built_at)}
    return JSONResponse([await _data(newest[name], caller) for name in sorted(newest)])


async def find_alias(request: Request, _caller: ControlCaller) -> Response:
    """Returns the template that a name means."""
    name, _, tag = request.path_params["alias"].partition(":")

    if is_default_template(request.path_params["alias"]) or await _found(name, tag) is not None:
        return JSONResponse({"templateID": name, "public": True})

    return _unknown(request.path_params["alias"])


async def describe_template(request: Request, caller: ControlCaller) -> Response:
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


async def list_tags(request: Request, _caller: ControlCaller) -> Response:
    """Lists the tags of a template: the default one of its newest build."""
    records = await asyncio.to_thread(_tagged, request.path_params["template_id"])

    if not records:
        return _unknown(request.path_params["template_id"])

    return JSONResponse(
        [
            {"tag": _tag(record), "buildID": id_of(record), "createdAt": _built_at(record)}
            for record in records
        ]
    )


async def assign_tags(request: Request, _caller: ControlCaller) -> Response:
    """Gives a build more tags."""
    body = await json_body(request, _NewTags)
    name, tag = split_name(body.target)
    record = await _found(name, tag or DEFAULT_TAG)

    if record is None:
        return _unknown(body.target)

    for target in [stored_name(name, one) for one in body.tags]:
        await asyncio.to_thread(template_store().copy, record.info.name, target)

    return JSONResponse({"tags": list(body.tags), "buildID": id_of(record)}, 201)


async def remove_tags(request: Request, _caller: ControlCaller) -> Response:
    """Takes tags from a template."""
    body = await json_body(request, _OldTags)
    name, _ = split_name(body.name)

    for target in [stored_name(name, one) for one in body.tags]:
        if await _found(*split_name(target)) is None:
            return _unknown(target)

        await asyncio.to_thread(remove_template, target)

    return Response(status_code=204)


async def is_there(name: str) -> bool:
    """Returns whether a template has this name, with any tag."""
    return bool(await asyncio.to_thread(_tagged, name))


async def delete_template(name: str) -> None:
    """Removes a template with all of its tags."""
    for record in await asyncio.to_thread(_tagged, name):
        is_deleted = await asyncio.to_thread(remove_template, record.info.name)
        events.TEMPLATE_REMOVED.log(template=record.info.name, is_deleted=is_deleted)


async def _found(name: str, tag: str = "") -> TemplateRecord | None:
    """Returns the build with a tag; without one, the default build, or else the newest."""
    records = await asyncio.to_thread(_tagged, name)
    wanted = [record for record in records if _tag(record) == (tag or DEFAULT_TAG)]

    if not wanted and not tag:
        wanted = sorted(records, key=lambda one: one.info.built_at)

    return wanted[-1] if wanted else None


def _tagged(name: str) -> list[TemplateRecord]:
    return [record for record in _records() if _base(record) == name]


def _base(record: TemplateRecord) -> str:
    return record.info.name.partition(":")[0]


def _tag(record: TemplateRecord) -> str:
    return record.info.name.partition(":")[2] or DEFAULT_TAG


def _records() -> list[TemplateRecord]:
    store = template_store()
    found: list[TemplateRecord] = []

    for name in store.names():
        try:
            record = store.record(name)
        except TemplateStoreError:
            continue

        if record is not None:
            found.append(record)

    return found


async def _data(record: TemplateRecord, caller: ControlCaller) -> dict[str, Any]:
    limits = default_limits(caller.principal.policy, record.info.limits)
    cores = (await caller.backend.capacity()).cpu_cores
    return {
        "templateID": _base(record),
        "buildID": id_of(record),
        "cpuCount": cpu_count_of(limits, cores),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        # Every key of the server may use it.
        "public": True,
        "aliases": [_base(record)],
        "names": [_base(record)],
        "createdAt": _built_at(record),
        "updatedAt": _built_at(record),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": envd_version(),
        "buildStatus": "ready",
    }


def _built_at(record: TemplateRecord) -> str:
    return record.info.built_at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _unknown(name: str) -> Response:
    return plain_answer(404, f"there is no template {name[:200]!r}", {"Should-Retry": "false"})
