"""The places of saved states: a file of this machine, or an object in a bucket.

A file appears completely or not at all, readable only by its owner; a bucket uses `obstore`, loaded when one is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import IO, TYPE_CHECKING, TypeAlias

from fumehood.errors import FumehoodError, InvalidArgumentError, LoadError, SaveError

if TYPE_CHECKING:
    from fumehood.saved.object_store import SingleObject

# How the address of a bucket begins, for everything that is kept in one.
BUCKET_SCHEMES = ("s3://", "az://", "gs://")
# What the address of a store of many files may be.
ALLOWED_STORES = "a folder, s3://BUCKET[/PREFIX], az://CONTAINER[/PREFIX] or gs://BUCKET[/PREFIX]"
StatePlace: TypeAlias = str | os.PathLike[str]


async def store(pieces: AsyncGenerator[bytes, None], path: str) -> int:
    """Writes a stream to a new file of this machine, which takes the place of `path` when it is whole."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".fumehood-", dir=os.path.dirname(path) or ".")
    except OSError as error:
        await pieces.aclose()
        raise SaveError(
            reason=f"{path}: {error.strerror}", hint="name a file in an existing folder"
        ) from None

    size_bytes = 0
    try:
        with open(descriptor, "wb") as file:
            async with aclosing(pieces):
                async for piece in pieces:
                    size_bytes += len(piece)
                    await asyncio.to_thread(file.write, piece)

            await asyncio.to_thread(_to_disk, file)

        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

        # Errors of the tree can be of the system's kind too.
        is_systems = not isinstance(error, FumehoodError)

        if is_systems and isinstance(error, OSError) and error.filename in (None, temporary, path):
            raise SaveError(reason=f"{path}: {error.strerror or error}") from None

        raise

    return size_bytes


@asynccontextmanager
async def held(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[str]:
    """Gives the path of a file that has a stream in it, and is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fumehood-") as folder:
        path = os.path.join(folder, "state")
        await store(pieces, path)
        yield path


def local_path(place: StatePlace) -> str | None:
    """Returns the path that a place names, or None when it is in a bucket.

    Raises:
        InvalidArgumentError: It is neither.
    """
    text = os.fspath(place) if isinstance(place, (str, os.PathLike)) else place

    if isinstance(text, str) and text.startswith(BUCKET_SCHEMES):
        return None

    if not isinstance(text, str) or "://" in text or not text or "\0" in text:
        raise InvalidArgumentError(
            field="place",
            value=text,
            allowed="a path, or s3://BUCKET/NAME, az://CONTAINER/NAME or gs://BUCKET/NAME",
        )

    return text


def open_object(place: str) -> SingleObject:
    """Returns the object in a bucket that an address names."""
    try:
        from fumehood.saved.object_store import SingleObject
    except ModuleNotFoundError as missing:
        raise InvalidArgumentError(
            field="place", value=place, allowed=f"{missing.name}, which is not installed", extra="blobs"
        ) from None

    return SingleObject(place)


def check_readable(path: str) -> None:
    """Raises LoadError unless there is such a file."""
    if not os.path.isfile(path):
        raise LoadError(reason=f"{path}: there is no such file")


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
