"""Snapshots in E2B's format: a sandbox saved to the server's blobs, and sandboxes made from it.

A snapshot is a saved state, so it holds no memory image: the response that makes it lists what it could not keep. It
belongs to the key that made it, and no other key can name it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.bounds import GIB
from fumehood.cancellation import complete
from fumehood.dialects.e2b.answers import plain_answer
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.messages import ClientMessage, Flag
from fumehood.dialects.e2b.sandboxes import token_headers
from fumehood.errors import InvalidArgumentError
from fumehood.saved.places import held, report_on
from fumehood.server.allowance import used_up
from fumehood.server.json_bodies import Text
from fumehood.server.services import Services
from fumehood.storage.blobs import Blobs
from fumehood.storage.files import StoredFile, StoredFiles, discard_file, new_file_id
from fumehood.values.requests import LoadRequest, SandboxSpec
from fumehood.values.sandbox import SandboxInfo
from fumehood.values.saved_state import LeftOut, SaveReport

MAX_SNAPSHOTS = 100
_SESSION = "e2b snapshots"
_KIND = "snapshots"
_TYPE = "application/vnd.fumehood.state"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}(?::[A-Za-z0-9._-]{1,64})?", re.ASCII)
_DEFAULT_TAG = ":default"
_MAX_NOT_KEPT = 100
_MAX_BYTES = 20 * GIB
_CHUNK_BYTES = 1 << 20


class _NewSnapshot(ClientMessage):
    name: Text = ""
    memory: Flag = True


class SnapshotService:
    """The snapshots of a server.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._files: StoredFiles = services.stored_files
        self._blobs: Blobs = services.blobs
        # One lock for each owner that makes one now.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, request: Request, caller: ControlCaller) -> Response:
        """Saves a sandbox, which continues. A snapshot of the same name replaces the older one."""
        body = await json_body(request, _NewSnapshot)
        name = _read_name(body.name)
        info = await caller.backend.info(request.path_params["sandbox_id"])
        details = {"sandbox": info.id, "files_only": "" if body.memory else "yes"}
        owner = caller.principal.key_id

        # Concurrent ones would all count the same free space.
        async with self._turns.setdefault(owner, asyncio.Lock()):
            replaced = await self._room_for(owner, name)

            async with held(caller.backend.save(info.id)) as path:
                report = await report_on(path)
                blob = await self._blobs.put(_pieces(path), kind=_KIND)

            try:
                kept = await self._files.add(_stored(owner, name, blob.name, blob.size_bytes, details))
            except BaseException:
                await complete(self._blobs.delete(blob.name))
                raise

            for older in replaced:
                await self._forget(older)

        return JSONResponse({**_data(kept), "notKept": _not_kept(report)}, 201)

    async def list(self, request: Request, caller: ControlCaller) -> Response:
        """Lists the caller's snapshots, the newest first."""
        query = request.query_params
        found = [one for one in reversed(await self._all(caller.principal.key_id)) if _fits(one, query)]
        start = _start(found, query.get("nextToken", ""))
        limit = _limit(query.get("limit", ""))
        page = found[start : start + limit]
        token = page[-1].id if page and start + limit < len(found) else ""
        return JSONResponse([_data(one) for one in page], headers=token_headers(token))

    async def delete(self, request: Request, caller: ControlCaller) -> Response:
        """Deletes a snapshot; sandboxes that were made from it continue."""
        name = request.path_params["snapshot_id"]
        found = await self.find(name, caller)

        if found is None:
            return plain_answer(404, f"there is no snapshot {name[:200]!r}", {"Should-Retry": "false"})

        await self._forget(found)
        return Response(status_code=204)

    async def find(self, name: str, caller: ControlCaller) -> StoredFile | None:
        """Returns the caller's snapshot of this id or name, or None."""
        wanted = name.removesuffix(_DEFAULT_TAG)
        known = await self._all(caller.principal.key_id)
        return next((one for one in reversed(known) if wanted and wanted in (one.id, one.name)), None)

    async def load(self, snapshot: StoredFile, spec: SandboxSpec, caller: ControlCaller) -> SandboxInfo:
        """Makes a sandbox from a snapshot."""
        reading = await self._blobs.get(snapshot.blob)
        wish = LoadRequest(
            spec=replace(spec, template="default"), files_only=bool(snapshot.details.get("files_only"))
        )

        async with held(_chunks(reading.chunks)) as path:
            return (await caller.backend.load(wish, path)).sandbox

    async def _room_for(self, owner: str, name: str) -> Sequence[StoredFile]:
        """Checks that there is room for one more snapshot, and returns those that a new one of this name replaces."""
        known = await self._all(owner)
        replaced = [one for one in known if name and one.name == name]

        if len(known) - len(replaced) >= MAX_SNAPSHOTS:
            raise used_up("snapshots", len(known), MAX_SNAPSHOTS)

        size_bytes = sum(one.size_bytes for one in known)

        if size_bytes > _MAX_BYTES:
            raise used_up("bytes of snapshots", size_bytes, _MAX_BYTES)

        return replaced

    async def _all(self, owner: str) -> Sequence[StoredFile]:
        return await self._files.list(_SESSION, owner=owner)

    async def _forget(self, snapshot: StoredFile) -> None:
        await discard_file(self._files, self._blobs, snapshot)


def _stored(owner: str, name: str, blob: str, size_bytes: int, details: Mapping[str, str]) -> StoredFile:
    file_id = new_file_id()
    return StoredFile(
        id=file_id,
        session_id=_SESSION,
        owner=owner,
        # Without a name it is known by its id only.
        name=name or file_id,
        size_bytes=size_bytes,
        content_type=_TYPE,
        blob=blob,
        details=details,
    )


def _data(snapshot: StoredFile) -> dict[str, Any]:
    names = [] if snapshot.name == snapshot.id else [f"{snapshot.name}{_DEFAULT_TAG}"]
    return {"snapshotID": snapshot.id, "names": names}


def _not_kept(report: SaveReport) -> list[dict[str, str]]:
    """Returns the parts that a snapshot of E2B would contain and this one lacks."""
    always = LeftOut(
        kind="environment", name="processes", reason="running commands, threads and connections are not kept"
    )
    return [
        {"kind": one.kind, "name": one.name[:200], "reason": one.reason[:200]}
        for one in (always, *report.left_out[:_MAX_NOT_KEPT])
    ]


def _read_name(name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            field="name",
            value=name,
            allowed="up to 128 letters, digits and . _ - /, and a tag after a colon",
        )

    return name.removesuffix(_DEFAULT_TAG)


def _fits(snapshot: StoredFile, query: QueryParams) -> bool:
    sandbox_id, name = query.get("sandboxID", ""), query.get("name", "").removesuffix(_DEFAULT_TAG)
    return (not sandbox_id or snapshot.details.get("sandbox") == sandbox_id) and (
        not name or name in (snapshot.id, snapshot.name)
    )


def _start(found: Sequence[StoredFile], token: str) -> int:
    if not token:
        return 0

    places = [place for place, one in enumerate(found) if one.id == token]

    if not places:
        raise InvalidArgumentError(field="nextToken", value=token, allowed="the token of a page")

    return places[0] + 1


def _limit(text: str) -> int:
    if not text:
        return MAX_SNAPSHOTS

    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_SNAPSHOTS:
        raise InvalidArgumentError(field="limit", value=text, allowed=f"a number from 1 to {MAX_SNAPSHOTS}")

    return int(text)


async def _chunks(chunks: Any) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        yield chunk


async def _pieces(path: str) -> AsyncGenerator[bytes, None]:
    with open(path, "rb") as file:
        while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield piece
