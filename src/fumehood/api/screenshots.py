"""Pictures of a sandbox's display.

Runs in the process of the caller, or of the server: the picture is made there of a file of the sandbox, by no program
of it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from fumehood.errors import FileError, ScreenshotError
from fumehood.port.backend import Backend
from fumehood.values.display import MAX_SCREEN_BYTES, SCREEN_PATH, png_of_screen
from fumehood.values.requests import ReadFile


async def take_screenshot(backend: Backend, sandbox_id: str) -> bytes:
    """Returns what the display of a sandbox shows, as a PNG.

    Raises:
        ScreenshotError: It has no display, or not one that Xvfb has made.
    """
    content = bytearray()
    request = ReadFile(path=SCREEN_PATH, length_bytes=MAX_SCREEN_BYTES)
    try:
        async with aclosing(backend.read(sandbox_id, request)) as pieces:
            async for piece in pieces:
                content += piece
    except FileError:
        raise ScreenshotError(sandbox_id=sandbox_id, reason="it has no display") from None

    try:
        return await asyncio.to_thread(png_of_screen, bytes(content))
    except ValueError as error:
        raise ScreenshotError(
            sandbox_id=sandbox_id, reason=f"{SCREEN_PATH} is no picture of a screen: {error}"
        ) from None
