"""The file of a saved state: a ZIP of parts with names of ours, and a manifest at its end.

It is written in one pass to a stream that cannot seek, and read part by part, never extracted: a part is a stream whose
length and digest are in the manifest. The file is untrusted, so its directory is bounded before it is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import struct
import zipfile
import zlib
from collections.abc import AsyncGenerator
from os import PathLike
from types import TracebackType
from typing import IO

from fumehood.bounds import MIB
from fumehood.errors import LoadError, SavedStateDamagedError
from fumehood.values.saved_state import SavedPart

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 * MIB
PART_NAME = re.compile(r"(?:files|variables|records)/[0-9]{1,7}", re.ASCII)
_MAX_DIRECTORY_BYTES = 16 * MIB
# The content of each file, the variables and the record of each context, and the manifest; see `manifest`.
_MAX_PARTS = 100_200
_PIECE_BYTES = 1 * MIB
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ENCRYPTED = 0x1
# The end of a ZIP without a comment, and what stands before it when the numbers are too large: APPNOTE.TXT, 4.3.
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
# What the directory says of a part: its mark, and the lengths of what follows it (name, extra field, comment).
_ENTRY = struct.Struct("<4s24x3H12x")


class _Sink:
    """A stream for the ZIP writer that cannot seek; its bytes are taken piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Does nothing: no data is buffered."""

    def take(self) -> bytes:
        """Returns the bytes written since the last call, and removes them."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


class ArchiveWriter:
    """Writes parts, one after the other; each step returns the bytes to be stored."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1)  # type: ignore[call-overload]

    def begin(self, name: str) -> PartWriter:
        """Begins a part; the one before has ended."""
        self._names.add(name)
        info = zipfile.ZipInfo(name, _EPOCH)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        return PartWriter(name, self._zip.open(info, "w", force_zip64=True), self._sink)

    @property
    def names(self) -> frozenset[str]:
        """The parts that were begun."""
        return frozenset(self._names)

    async def end(self, manifest: bytes) -> bytes:
        """Writes the manifest and the end."""
        part = self.begin(MANIFEST)
        pieces = [await part.write(manifest), await part.end()]
        await asyncio.to_thread(self._zip.close)
        return b"".join([*pieces, self._sink.take()])


class PartWriter:
    """Writes one part, and measures it."""

    def __init__(self, name: str, file: IO[bytes], sink: _Sink) -> None:
        self._name = name
        self._file = file
        self._sink = sink
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    async def write(self, data: bytes) -> bytes:
        """Takes bytes of the part; returns those of the file."""
        return await asyncio.to_thread(self._write, data)

    async def end(self) -> bytes:
        """Ends the part."""
        await asyncio.to_thread(self._file.close)
        return self._sink.take()

    @property
    def part(self) -> SavedPart:
        """The part that was written."""
        return SavedPart(name=self._name, size_bytes=self._size_bytes, sha256=self._digest.hexdigest())

    def _write(self, data: bytes) -> bytes:
        self._digest.update(data)
        self._size_bytes += len(data)
        self._file.write(data)
        return self._sink.take()


class ArchiveReader:
    """Reads the parts of a file.

    Args:
        path: The file, on this machine.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise LoadError(reason=f"{os.fspath(path)}: {error.strerror}") from None

        try:
            _check_directory(self._file)
            self._zip = zipfile.ZipFile(self._file)
            self._parts = {info.filename: info for info in self._zip.infolist()}
            self._check_parts()
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
            self._file.close()

            if isinstance(error, SavedStateDamagedError):
                raise

            raise SavedStateDamagedError(
                part="the file", reason=f"it is not a saved state ({error})"
            ) from None

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._zip.close()
        self._file.close()

    @property
    def names(self) -> frozenset[str]:
        """The names of the parts in the file, without the manifest."""
        return frozenset(self._parts) - {MANIFEST}

    async def manifest(self) -> bytes:
        """Returns the bytes of the manifest."""
        return await asyncio.to_thread(self.manifest_bytes)

    async def pieces(self, part: SavedPart) -> AsyncGenerator[bytes, None]:
        """Yields a part in pieces; raises before the last piece if length or digest are wrong.

        Raises:
            SavedStateDamagedError: The part is shorter, longer or different.
        """
        digest, left = hashlib.sha256(), part.size_bytes
        held = b""

        with self._open(part.name) as file:
            while piece := await asyncio.to_thread(self._piece, file, part.name):
                left -= len(piece)
                digest.update(piece)

                if left < 0:
                    raise SavedStateDamagedError(part=part.name, reason="it is longer than it was")

                if held:
                    yield held

                held = piece

        if left > 0:
            raise SavedStateDamagedError(part=part.name, reason=f"{left:,} bytes of it are missing")

        if digest.hexdigest() != part.sha256:
            raise SavedStateDamagedError(part=part.name, reason="its digest does not match")

        if held:
            yield held

    async def content(self, part: SavedPart, max_bytes: int) -> bytes:
        """Returns a part as a whole."""
        if part.size_bytes > max_bytes:
            raise SavedStateDamagedError(part=part.name, reason=f"it has more than {max_bytes:,} bytes")

        return b"".join([piece async for piece in self.pieces(part)])

    def manifest_bytes(self) -> bytes:
        """Returns the bytes of the manifest; blocks meanwhile."""
        with self._open(MANIFEST) as file:
            content = bytearray()

            while piece := self._piece(file, MANIFEST):
                content += piece

                if len(content) > MAX_MANIFEST_BYTES:
                    raise SavedStateDamagedError(part=MANIFEST, reason="it is too large")

        return bytes(content)

    def _open(self, name: str) -> IO[bytes]:
        info = self._parts.get(name)

        if info is None:
            raise SavedStateDamagedError(part=name, reason="it is missing")

        try:
            return self._zip.open(info)
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise SavedStateDamagedError(part=name, reason=str(error)) from None

    @staticmethod
    def _piece(file: IO[bytes], name: str) -> bytes:
        try:
            return file.read(_PIECE_BYTES)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
            raise SavedStateDamagedError(part=name, reason=str(error) or type(error).__name__) from None

    def _check_parts(self) -> None:
        if len(self._parts) != len(self._zip.infolist()):
            raise SavedStateDamagedError(part="the file", reason="a part is in it twice")

        for name, info in self._parts.items():
            if name != MANIFEST and not PART_NAME.fullmatch(name):
                raise SavedStateDamagedError(part=name, reason="no part has such a name")

            if info.flag_bits & _ENCRYPTED or info.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise SavedStateDamagedError(part=name, reason="it is packed in a way that we never use")

        if MANIFEST not in self._parts:
            raise SavedStateDamagedError(part=MANIFEST, reason="it is missing")


def _check_directory(file: IO[bytes]) -> None:
    """Raises unless the directory at the end is of a size that may be read."""
    size_bytes = file.seek(0, os.SEEK_END)

    if size_bytes < _END.size:
        raise SavedStateDamagedError(part="the file", reason="it is not a saved state: it is too short")

    end = size_bytes - _END.size
    file.seek(end)
    mark, _, _, _, parts, directory_bytes, _, comment_bytes = _END.unpack(file.read(_END.size))

    if mark != b"PK\5\6" or comment_bytes:
        raise SavedStateDamagedError(part="the file", reason="it is not a saved state, or its end is missing")

    if size_bytes >= _END.size + _LOCATOR.size + _END64.size:
        file.seek(size_bytes - _END.size - _LOCATOR.size)
        mark, _, place, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))

        if mark == b"PK\6\7":
            # Readers differ in where they look for it; where it really is, all of them find the same one.
            if place != size_bytes - _END.size - _LOCATOR.size - _END64.size:
                raise SavedStateDamagedError(part="the file", reason="its end is not where it says")

            end = place
            file.seek(place)
            _, _, _, _, _, _, _, parts, directory_bytes, _ = _END64.unpack(file.read(_END64.size))

    if directory_bytes > _MAX_DIRECTORY_BYTES or parts > _MAX_PARTS:
        raise SavedStateDamagedError(part="the file", reason="it has more parts than a saved state may")

    if directory_bytes > end:
        raise SavedStateDamagedError(part="the file", reason="its directory is not where it says")

    file.seek(end - directory_bytes)

    if _count_entries(file.read(directory_bytes)) != parts:
        raise SavedStateDamagedError(
            part="the file", reason="its end says another number of parts than there are"
        )

    file.seek(0)


def _count_entries(directory: bytes) -> int:
    """Counts the entries in the directory itself: readers take all of them, and ignore the end record's count."""
    count = place = 0

    while place < len(directory) and count <= _MAX_PARTS:
        mark, *lengths = _ENTRY.unpack_from(directory, place)

        if mark != b"PK\1\2":
            raise SavedStateDamagedError(part="the file", reason="its directory is broken")

        count += 1
        place += _ENTRY.size + sum(lengths)

    return count
