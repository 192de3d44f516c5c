"""Volumes in sandboxes: a volume is copied into a folder of one sandbox at a time, and changes there are stored.

A round that takes long makes the next one wait longer, so that no guest takes more than a tenth of a task.

The record of a volume names the sandbox that holds it, and the server that stores its changes. A hold ends with its
sandbox, for whatever reason: the next round, or the next request for the volume, detects it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fumehood.cancellation import cancel_and_wait, complete
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_folders import Mount, VolumeFolders
from fumehood.dialects.e2b.volume_store import VolumeStore, clean_path, is_deleted
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    SandboxClosedError,
    SandboxNotFoundError,
    SandboxPausedError,
)
from fumehood.log import events
from fumehood.server.services import Services
from fumehood.server.state_files import derive, server_secret
from fumehood.storage.files import StoredFile
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

INTERVAL_SECONDS = 5.0
MAX_MOUNTS = 8
_ROUND_SECONDS = 60.0
# Of the caller that ends or pauses the sandbox.
_LAST_SECONDS = 15.0
# After a round, the wait in times of what it took.
_REST = 10.0
_BELOW = (f"{HOME_PATH}/", f"{DATA_PATH}/", "/tmp/")  # noqa: S108 - a path of the guest
# In a hold's details until all files of the volume are in the folder: till then nothing may be concluded from it.
_FILLING = "filling"
_ENDED = (SandboxNotFoundError, SandboxClosedError)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A volume that a new sandbox is to hold, and the absolute path of the folder there."""

    volume: StoredFile
    path: str


def read_path(path: str) -> str:
    """Returns the folder in a sandbox that a volume is to be copied into.

    Raises:
        InvalidArgumentError: Code in a sandbox may not write the folder, or the folder has another use.
    """
    try:
        cleaned = f"/{clean_path(path)}"
    except InvalidArgumentError:
        cleaned = ""

    if not path.startswith("/") or not (cleaned == DATA_PATH or cleaned.startswith(_BELOW)):
        raise InvalidArgumentError(
            field="volumeMounts",
            value=path,
            allowed=f"{DATA_PATH}, or a path below one of {' '.join(_BELOW)}",
        )

    return cleaned


def check_apart(paths: Sequence[str]) -> None:
    """Raises InvalidArgumentError if one of the folders is, or is in, another one, or there are too many."""
    if len(paths) > MAX_MOUNTS:
        raise InvalidArgumentError(
            field="volumeMounts", value=f"{len(paths)} volumes", allowed=f"up to {MAX_MOUNTS}"
        )

    for number, path in enumerate(paths):
        for other in paths[number + 1 :]:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise InvalidArgumentError(
                    field="volumeMounts", value=other, allowed="folders of which none is in another"
                )


class VolumeMounts:
    """The volumes that sandboxes hold.

    Args:
        services: The services of the server.
        store: The volumes.
    """

    def __init__(self, services: Services, store: VolumeStore) -> None:
        self._backend = services.backend
        self._cpu = services.spending.cpu
        self._store = store
        self._folders = VolumeFolders(services.backend, store)
        self._server = derive(server_secret(services.state), "the server that stores volumes").hex()[:16]
        self._mounts: dict[str, Mount] = {}
        # The ids of volumes that are being copied in.
        self._filled_now: set[str] = set()
        self._beginning: asyncio.Task[None] | None = None

    # -- the life of a mount

    def begin(self) -> None:
        """Continues the holds of sandboxes that have outlived an earlier process of this server."""
        self._beginning = asyncio.create_task(self._resume())

    async def close(self) -> None:
        """Stores the changes within a bounded time, and ends; the holds are kept."""
        if self._beginning is not None:
            await cancel_and_wait(self._beginning)

        mounts = list(self._mounts.values())
        await asyncio.gather(*(self._settle(mount) for mount in mounts))

        for mount in mounts:
            await self._forget(mount)

    async def check_free(self, volume: StoredFile) -> StoredFile:
        """Returns the record of a volume that no sandbox holds; a hold of an ended sandbox is ended.

        Raises:
            VolumeError: A sandbox holds the volume, or it is being deleted.
        """
        if is_deleted(volume):
            raise VolumeError(f"volume {volume.name!r} is being deleted", status=409, hint="delete it again")

        if not (sandbox_id := volume.details.get("sandbox")):
            return volume

        is_here = volume.details.get("server") == self._server
        is_cut_off = _FILLING in volume.details and volume.id not in self._filled_now

        if is_here and (is_cut_off or await self._has_ended(sandbox_id)):
            if (mount := self._mounts.get(volume.id)) is not None:
                await self._forget(mount)

            if (freed := await self._store.set_details(volume, {})) is not None:
                return freed

        raise VolumeError(
            f"volume {volume.name!r} is held by sandbox {sandbox_id!r}",
            status=409,
            hint="one sandbox at a time holds a volume; kill that one first",
        )

    async def mount(self, sandbox_id: str, wanted: Sequence[Wanted]) -> None:
        """Copies volumes into a new sandbox, and stores changes there from now on.

        If that fails, the sandbox holds none of them; the caller ends it.

        Raises:
            VolumeError: Another sandbox holds one of the volumes.
            FumehoodError: The copy failed.
        """
        taken: list[Mount] = []

        try:
            for one in wanted:
                details = {"sandbox": sandbox_id, "path": one.path, "server": self._server}
                free = await self.check_free(one.volume)
                mount = Mount(await self._take(free, {**details, _FILLING: "yes"}))
                taken.append(mount)
                self._filled_now.add(free.id)
                await self._folders.copy_in(mount)
                mount.volume = await self._take(mount.volume, details)
        except BaseException:
            await complete(self._undo(taken))
            raise
        finally:
            self._filled_now.difference_update(mount.volume.id for mount in taken)

        for mount in taken:
            self._watch(mount)

    async def settle(self, sandbox_id: str, owner: str | None) -> None:
        """Stores the changes of a sandbox that a caller is about to end or pause, within a bounded time.

        Args:
            sandbox_id: The sandbox.
            owner: The key that must own the sandbox; None: any key.
        """
        mounts = [mount for mount in self.of_sandbox(sandbox_id) if owner in (None, mount.volume.owner)]
        await asyncio.gather(*(self._settle(mount) for mount in mounts))

    def of(self, volume: StoredFile) -> Mount | None:
        """Returns the mount of a volume, if this server stores its changes."""
        return self._mounts.get(volume.id)

    def of_sandbox(self, sandbox_id: str) -> Sequence[Mount]:
        """Returns the mounts in a sandbox whose changes this server stores."""
        return [mount for mount in self._mounts.values() if mount.sandbox_id == sandbox_id]

    async def _resume(self) -> None:
        try:
            volumes = await self._store.list_all()
        except FumehoodError:
            # The database has logged why; what is held is found again when it is asked for.
            return

        for volume in volumes:
            is_known = volume.id in self._mounts or volume.id in self._filled_now

            if is_known or volume.details.get("server") != self._server:
                continue

            if _FILLING in volume.details:
                # The copy was cut off: what its folder lacks was not removed by anyone.
                await self._free(volume)
            else:
                self._watch(Mount(volume))

    def _watch(self, mount: Mount) -> None:
        self._mounts[mount.volume.id] = mount
        mount.task = asyncio.create_task(self._rounds(mount))

    async def _forget(self, mount: Mount) -> None:
        if self._mounts.get(mount.volume.id) is mount:
            del self._mounts[mount.volume.id]

        if mount.task is not None:
            await cancel_and_wait(mount.task)

    async def _take(self, volume: StoredFile, details: Mapping[str, str]) -> StoredFile:
        if (held := await self._store.set_details(volume, details)) is None:
            raise VolumeError(f"volume {volume.name!r} has just been taken", status=409)

        return held

    async def _undo(self, taken: Sequence[Mount]) -> None:
        for mount in taken:
            await self._store.set_details(mount.volume, {})

    async def _has_ended(self, sandbox_id: str) -> bool:
        try:
            return (await self._backend.info(sandbox_id)).state == "ending"
        except _ENDED:
            return True
        except FumehoodError:
            # Its machine does not answer: that is no end.
            return False

    # -- rounds

    async def _rounds(self, mount: Mount) -> None:
        wait = INTERVAL_SECONDS

        while True:
            await asyncio.sleep(wait)
            begun = time.monotonic()

            if await self._has_ended(mount.sandbox_id):
                break

            await self._round(mount, _ROUND_SECONDS)
            wait = max(INTERVAL_SECONDS, _REST * (time.monotonic() - begun))

        if self._mounts.get(mount.volume.id) is mount:
            del self._mounts[mount.volume.id]

        await self._free(mount.volume)

    async def _free(self, volume: StoredFile) -> None:
        try:
            await self._store.set_details(volume, {})
        except FumehoodError as error:
            # The next request for the volume ends the hold.
            events.VOLUME_NOT_STORED.log(
                volume_id=volume.id, sandbox_id=volume.details["sandbox"], reason=error.log_reason
            )

    async def _settle(self, mount: Mount) -> None:
        # What was missing once may have been renamed meanwhile; the second round is sure of it.
        await self._round(mount, _LAST_SECONDS, reads_all=True)

        if mount.missing:
            await self._round(mount, _LAST_SECONDS)

    async def _round(self, mount: Mount, seconds: float, *, reads_all: bool = False) -> None:
        """Stores the changes; a failure is recorded, logged once, and retried in the next round."""
        problem = logged = ""

        try:
            async with asyncio.timeout(seconds), mount.lock:
                if (await self._backend.info(mount.sandbox_id)).state != "running":
                    return

                await self._folders.store_changes(mount, reads_all=reads_all)
                mount.stored_at = time.time()
        except (*_ENDED, SandboxPausedError):
            return
        except FumehoodError as error:
            problem, logged = error.message, error.log_reason
        except TimeoutError:
            problem = logged = f"it took longer than {seconds:g} seconds; it goes on in the next round"
        except Exception as error:  # noqa: BLE001 - a fault must not end the storing of a volume
            problem = logged = f"the server failed: {type(error).__name__}"
        finally:
            self._cpu.note_work(mount.sandbox_id)

        if mount.left_out and not problem:
            path, reason = next(iter(mount.left_out.items()))
            logged = f"{len(mount.left_out)} entries are left out"
            shown = f"{logged}, such as {path[:100]!r}: {reason}"
        else:
            shown = problem

        if shown and shown != mount.problem:
            events.VOLUME_NOT_STORED.log(
                volume_id=mount.volume.id, sandbox_id=mount.sandbox_id, reason=logged
            )

        mount.problem = shown
