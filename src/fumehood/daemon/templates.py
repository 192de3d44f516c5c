"""Copies templates from machine to machine: streams on the daemon's loop, and threads that pack and unpack.

A pipe connects the two, so that neither holds more than a few pieces of a template.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from fumehood.assemble import template_store
from fumehood.errors import TemplateStoreError
from fumehood.templates.carried import pack, unpack
from fumehood.templates.store import TemplateStore

_PIECE_BYTES = 1 << 20


class BuildTimes:
    """The build times of this machine's templates; a record is read again only when it has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, float | None]] = {}

    def times(self, store: TemplateStore) -> dict[str, float]:
        """Returns the build times in seconds since 1970, by name, without templates damaged or not portable."""
        self._known = {name: self._read(store, name) for name in store.names()}
        return {name: time for name, (_, time) in self._known.items() if time is not None}

    def _read(self, store: TemplateStore, name: str) -> tuple[object, float | None]:
        publication = store.publication(name)
        known = self._known.get(name)

        if known is not None and known[0] == publication:
            return known

        try:
            record = store.record(name)
        except TemplateStoreError:
            record = None

        is_carried = record is not None and record.image is None
        return publication, record.info.built_at.timestamp() if record is not None and is_carried else None


async def sent_template(name: str) -> AsyncGenerator[bytes, None]:
    """Yields a template of this machine as a stream, in pieces of up to 1 MiB.

    Raises:
        TemplateStoreError: The template does not exist, or cannot be sent.
    """
    read_end, write_end = os.pipe()

    def write() -> None:
        # A reader that has left ends the packing.
        with suppress(BrokenPipeError), os.fdopen(write_end, "wb") as out:
            pack(template_store(), name, out)

    packing = asyncio.create_task(asyncio.to_thread(write))
    source = os.fdopen(read_end, "rb", buffering=0)

    try:
        while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
            yield piece

        await packing
    finally:
        source.close()
        await asyncio.wait({packing})


async def taken_template(name: str, pieces: AsyncIterator[bytes]) -> None:
    """Makes a template of this machine from a stream.

    Raises:
        TemplateStoreError: The stream is not a template, was cut off, or cannot be used here; no part of it is left.
    """
    read_end, write_end = os.pipe()

    def read() -> None:
        with os.fdopen(read_end, "rb") as source:
            unpack(template_store(), name, source)
            # The end of a tar is not the end of its stream: padding follows.
            while source.read(_PIECE_BYTES):
                pass

    unpacking = asyncio.create_task(asyncio.to_thread(read))
    out = os.fdopen(write_end, "wb", buffering=0)

    try:
        # A refusal closes the other end; it is raised below.
        with suppress(BrokenPipeError):
            async for piece in pieces:
                await asyncio.to_thread(_write, out.fileno(), piece)
    finally:
        out.close()
        await asyncio.wait({unpacking})

    await unpacking


def _write(fd: int, piece: bytes) -> None:
    left = memoryview(piece)

    while left:
        left = left[os.write(fd, left) :]
