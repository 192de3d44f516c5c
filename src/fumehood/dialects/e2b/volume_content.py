"""The files of a volume, read and written from outside, as E2B's clients do.

While a sandbox holds a volume, its files are read in their last stored state, and cannot be written from outside.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.dialects.e2b.answers import NotOfferedError, VolumeError
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.dialects.e2b.bodies import body_pieces
from fumehood.dialects.e2b.streams import StreamAnswer
from fumehood.dialects.e2b.volume_store import MAX_DEPTH, MAX_VOLUME_BYTES, Entries, clean_path, is_folder
from fumehood.dialects.e2b.volumes import Volumes, time_text
from fumehood.errors import InvalidArgumentError
from fumehood.storage.files import StoredFile

_ID_OF_USER = 1000
_MODES = {"directory": 0o755, "file": 0o644}


@dataclass(frozen=True, slots=True)
class _Place:
    """A volume's entry that a request names.

    Attributes:
        volume: The volume.
        path: The path in it; empty: the volume itself.
        entries: The entries of the volume.
    """

    volume: StoredFile
    path: str
    entries: Entries

    def kind(self) -> str:
        """Returns what the entry is: file, directory or nothing."""
        found = self.entries.get(self.path)

        if found is not None and not is_folder(found):
            return "file"

        is_there = not self.path or found is not None or any(self.below())
        return "directory" if is_there else ""

    def below(self) -> Sequence[str]:
        """Returns the paths below this one."""
        start = f"{self.path}/" if self.path else ""
        return [path for path in self.entries if path.startswith(start)]

    def check(self, *kinds: str) -> None:
        """Raises VolumeError unless the entry is of one of these kinds."""
        kind = self.kind()

        if not kind:
            raise VolumeError(f"there is nothing at {self.path!r} in the volume", status=404)

        if kind not in kinds:
            raise VolumeError(f"{self.path or '/'!r} is a {kind}", status=400)


class VolumeContent:
    """The files of the volumes of a server, for its clients.

    Args:
        volumes: The volumes.
        max_upload_bytes: The largest file that the server takes.
    """

    def __init__(self, volumes: Volumes, max_upload_bytes: int) -> None:
        self._volumes = volumes
        self._store = volumes.store
        self._max_bytes = min(max_upload_bytes, MAX_VOLUME_BYTES)

    async def stat(self, request: Request, caller: ControlCaller) -> Response:
        """Returns the description of a file or folder of a volume."""
        place = await self._place(request, caller)
        place.check("file", "directory")
        return JSONResponse(_entry_data(place.volume, place.path, place.entries))

    async def list_folder(self, request: Request, caller: ControlCaller) -> Response:
        """Lists what is in a folder, some levels deep."""
        place = await self._place(request, caller)
        place.check("directory")
        depth = _depth(request.query_params.get("depth", "1"))
        start = place.path.count("/") + 1 if place.path else 0
        shown = {
            "/".join(path.split("/")[:end])
            for path in place.below()
            for end in range(start + 1, start + depth + 1)
        }
        return JSONResponse([_entry_data(place.volume, path, place.entries) for path in sorted(shown)])

    async def make_folder(self, request: Request, caller: ControlCaller) -> Response:
        """Makes a folder; with `force`, also its parents, and an existing folder is no error."""
        async with self._volumes.turn(await self._volumes.of_caller(request, caller)):
            place = await self._place(request, caller, writing=True)
            is_forced = request.query_params.get("force") == "true"

            if not (is_forced and place.kind() == "directory"):
                if place.kind():
                    raise VolumeError(f"{place.path or '/'!r} is there already", status=409)

                if not is_forced:
                    self._check_parent(place)

                async with self._store.storing(place.volume, place.entries) as files:
                    await files.put_folder(place.path)

        return JSONResponse(_entry_data(place.volume, place.path, place.entries), 201)

    async def read_file(self, request: Request, caller: ControlCaller) -> Response:
        """Sends the last stored content of a file."""
        place = await self._place(request, caller)
        place.check("file")
        entry = place.entries[place.path]
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": "attachment",
            "content-length": str(entry.size_bytes),
        }
        return StreamAnswer(_pieces(await self._store.read(entry)), headers)

    async def write_file(self, request: Request, caller: ControlCaller) -> Response:
        """Writes a file; folders above it are made."""
        self._check_target(await self._place(request, caller, writing=True))

        # A slow body holds up nothing: the volume may be mounted or deleted meanwhile, which refuses the file.
        async with (
            aclosing(body_pieces(request, self._max_bytes)) as body,
            self._store.receiving(body, self._max_bytes) as content,
            self._volumes.turn(await self._volumes.of_caller(request, caller)),
        ):
            place = await self._place(request, caller, writing=True)
            self._check_target(place)

            async with self._store.storing(place.volume, place.entries) as files:
                await files.keep(place.path, content)

        return JSONResponse(_entry_data(place.volume, place.path, place.entries), 201)

    async def remove(self, request: Request, caller: ControlCaller) -> Response:
        """Removes a file, or a folder with its content."""
        async with self._volumes.turn(await self._volumes.of_caller(request, caller)):
            place = await self._place(request, caller, writing=True)
            place.check("file", "directory")

            itself = [place.path] if place.path in place.entries else []
            await self._store.remove([*place.below(), *itself], place.entries)

        return Response(status_code=204)

    async def refuse_metadata(self, request: Request, caller: ControlCaller) -> Response:
        """Refuses owners and modes, which volumes do not keep."""
        await self._volumes.of_caller(request, caller)
        raise NotOfferedError(what="owners and modes in volumes", instead="set them in the sandbox")

    async def _place(self, request: Request, caller: ControlCaller, *, writing: bool = False) -> _Place:
        path = clean_path(request.query_params.get("path", ""))
        volume = await self._volumes.of_caller(request, caller)

        if writing:
            volume = await self._volumes.mounts.check_free(volume)

        return _Place(volume, path, await self._store.entries(volume))

    def _check_target(self, place: _Place) -> None:
        if place.kind() == "directory":
            raise VolumeError(f"{place.path or '/'!r} is a directory", status=400)

    def _check_parent(self, place: _Place) -> None:
        above = posixpath.dirname(place.path)

        if _Place(place.volume, above, place.entries).kind() != "directory":
            raise VolumeError(f"there is no folder {above!r} in the volume", status=404, hint="use force")


def _entry_data(volume: StoredFile, path: str, entries: Entries) -> dict[str, Any]:
    entry = entries.get(path)
    kind = "file" if entry is not None and not is_folder(entry) else "directory"
    at = time_text(volume.created_at if entry is None else entry.created_at)
    return {
        "name": posixpath.basename(path) or "/",
        "type": kind,
        "path": f"/{path}",
        "size": 0 if entry is None else entry.size_bytes,
        "mode": _MODES[kind],
        "uid": _ID_OF_USER,
        "gid": _ID_OF_USER,
        "atime": at,
        "mtime": at,
        "ctime": at,
    }


def _depth(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_DEPTH:
        raise InvalidArgumentError(field="depth", value=text, allowed=f"a number from 1 to {MAX_DEPTH}")

    return int(text)


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        yield chunk
