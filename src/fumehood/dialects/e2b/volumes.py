"""Volumes as E2B's clients use them: create, list, describe, delete, and mount in sandboxes.

The token of a volume gives access only to its files, and acts for the key that the volume belongs to, as long as that
key is valid; it is derived, so that nothing is stored for it.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.cancellation import cancel_and_wait
from fumehood.dialects.e2b.answers import GuestJSON, VolumeError
from fumehood.dialects.e2b.auth import ControlCaller, E2BAuthenticator, token_of
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.messages import ClientMessage
from fumehood.dialects.e2b.volume_folders import Mount
from fumehood.dialects.e2b.volume_mounts import VolumeMounts, Wanted, check_apart, read_path
from fumehood.dialects.e2b.volume_store import (
    VolumeStore,
    is_deleted,
)
from fumehood.errors import FumehoodError, InvalidArgumentError, UnauthenticatedError
from fumehood.log import events
from fumehood.server.json_bodies import Text
from fumehood.server.services import Services
from fumehood.server.state_files import derive, server_secret
from fumehood.storage.files import StoredFile

_TIDYING_SECONDS = 3600.0
_TOKEN = re.compile(r"fhv_([A-Za-z0-9_-]{1,64})\.([0-9a-f]{64})", re.ASCII)


class VolumeMount(ClientMessage):
    """A volume, by its name or id, and the folder of a new sandbox that is to hold it."""

    name: Text = ""
    path: Text = ""


class _NewVolume(ClientMessage):
    name: Text = ""


class Volumes:
    """The volumes of a server, for its clients.

    Attributes:
        store: The volumes.
        mounts: The volumes that sandboxes hold.

    Args:
        services: The services of the server.
        callers: Authenticates callers.
    """

    def __init__(self, services: Services, callers: E2BAuthenticator) -> None:
        self._callers = callers
        self._keys = services.keys
        self._secret = derive(server_secret(services.state), "tokens of volumes")
        self.store = VolumeStore(services)
        self.mounts = VolumeMounts(services, self.store)
        # One lock for each volume that is written from outside, mounted or deleted now.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.mounts.begin()
        services.at_end.push_async_callback(self.mounts.close)
        tidying = asyncio.create_task(self._tidy())
        services.at_end.push_async_callback(cancel_and_wait, tidying)

    # -- volumes

    async def create(self, request: Request, caller: ControlCaller) -> Response:
        """Makes a volume."""
        body = await json_body(request, _NewVolume)
        volume = await self.store.create(caller.principal.key_id, body.name)
        return JSONResponse(self._data(volume), 201)

    async def list(self, _request: Request, caller: ControlCaller) -> Response:
        """Lists the caller's volumes."""
        found = await self.store.list(caller.principal.key_id)
        return JSONResponse([{"volumeID": one.id, "name": one.name} for one in found])

    async def describe(self, request: Request, caller: ControlCaller) -> Response:
        """Describes a volume: E2B's fields, the sandbox that holds it, and the entries there that are not stored."""
        volume = await self.of_caller(request, caller)
        entries = await self.store.entries(volume)
        data = {
            **self._data(volume),
            "entries": len(entries),
            "sizeBytes": sum(one.size_bytes for one in entries.values()),
            "heldBy": volume.details.get("sandbox"),
        }
        mount = self.mounts.of(volume)
        return GuestJSON(data if mount is None else {**data, **_mount_data(mount)})

    async def delete(self, request: Request, caller: ControlCaller) -> Response:
        """Deletes a volume that no sandbox holds, with its content."""
        found = await self.of_caller(request, caller)

        async with self.turn(found):
            await self._delete(await self.of_caller(request, caller))

        return Response(status_code=204)

    async def remove_unreachable(self) -> None:
        """Deletes the volumes of revoked keys that no sandbox holds, and bytes that no record has."""
        revoked = {key.id for key in await self._keys.list() if key.revoked_at is not None}

        for volume in await self.store.list_all():
            if volume.owner in revoked:
                async with self.turn(volume):
                    # A sandbox that holds it outlives its key; then it is deleted later.
                    with suppress(VolumeError):
                        await self._delete(volume)

        await self.store.remove_strays()

    async def _delete(self, volume: StoredFile) -> None:
        free = volume if is_deleted(volume) else await self.mounts.check_free(volume)
        await self.store.delete(free)

    async def _tidy(self) -> None:
        while True:
            try:
                await self.remove_unreachable()
            except FumehoodError as error:
                events.HOUSEKEEPING_FAILED.log(reason=error.log_reason)

            await asyncio.sleep(_TIDYING_SECONDS)

    # -- in sandboxes

    async def wanted(self, mounts: Sequence[VolumeMount], caller: ControlCaller) -> Sequence[Wanted]:
        """Returns the volumes that a create request names.

        Raises:
            VolumeError: A volume does not exist, or a sandbox holds it.
            InvalidArgumentError: A folder cannot be used.
        """
        paths = [read_path(one.path) for one in mounts]
        check_apart(paths)
        owner = caller.principal.key_id
        volumes = [await self.store.find(owner, one.name) for one in mounts]

        if len({volume.id for volume in volumes}) < len(volumes):
            raise InvalidArgumentError(field="volumeMounts", value="a volume twice", allowed="each once")

        free = [await self.mounts.check_free(volume) for volume in volumes]
        return [Wanted(volume, path) for volume, path in zip(free, paths, strict=True)]

    async def mount(self, sandbox_id: str, wanted: Sequence[Wanted]) -> None:
        """Copies volumes into a new sandbox, which holds them until it ends; takes the turn of each meanwhile."""
        async with AsyncExitStack() as stack:
            # In one order for all, so that no two wait for each other.
            for one in sorted(wanted, key=lambda one: one.volume.id):
                await stack.enter_async_context(self.turn(one.volume))

            await self.mounts.mount(sandbox_id, wanted)

    def held_by(self, sandbox_id: str) -> Sequence[dict[str, str]]:
        """Returns the volumes that a sandbox holds, by their names, with its folders."""
        return [{"name": one.volume.name, "path": one.path} for one in self.mounts.of_sandbox(sandbox_id)]

    async def settle(self, sandbox_id: str, caller: ControlCaller) -> None:
        """Stores the changes of a sandbox that its caller is about to end or pause."""
        principal = caller.principal
        await self.mounts.settle(sandbox_id, None if principal.is_owner else principal.key_id)

    async def of_content(self, request: Request) -> ControlCaller:
        """Returns the caller of a request for the files of a volume: by the volume's token, or by a key."""
        token = token_of(request) or ""

        if (parts := _TOKEN.fullmatch(token)) is None:
            return await self._callers.of_key(request)

        expected = self._token(request.path_params["volume_id"], parts[1])

        if not hmac.compare_digest(expected, token):
            raise UnauthenticatedError(reason="the token is not that of this volume")

        return await self._callers.of_owner(parts[1])

    def turn(self, volume: StoredFile) -> asyncio.Lock:
        """Returns the lock to hold while a volume is written from outside, given to a sandbox or deleted."""
        return self._turns.setdefault(volume.id, asyncio.Lock())

    async def of_caller(self, request: Request, caller: ControlCaller) -> StoredFile:
        """Returns the caller's volume that the path of a request names.

        Raises:
            VolumeError: The caller has no such volume.
        """
        return await self.store.find(caller.principal.key_id, request.path_params["volume_id"])

    def _data(self, volume: StoredFile) -> dict[str, Any]:
        return {
            "volumeID": volume.id,
            "name": volume.name,
            "token": self._token(volume.id, volume.owner),
        }

    def _token(self, volume_id: str, owner: str) -> str:
        return f"fhv_{owner}.{hmac.digest(self._secret, f'{volume_id}:{owner}'.encode(), 'sha256').hex()}"


def _mount_data(mount: Mount) -> dict[str, Any]:
    return {
        "path": mount.path,
        "storedAt": time_text(mount.stored_at) if mount.stored_at else None,
        "problem": mount.problem or None,
        "notStored": [{"path": path[:1000], "reason": why} for path, why in mount.left_out.items()],
    }


def time_text(seconds: float) -> str:
    """Returns a time as E2B writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
