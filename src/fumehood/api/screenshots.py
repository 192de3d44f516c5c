"""Pictures of a sandbox's display.

Runs in the process of the caller, or of the server: that process makes the picture from a file of the sandbox, without
a program of the sandbox.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from fumehood.errors import FileError, ScreenshotError
from fumehood.port.backend import Backend
from fumehood.values.display import MAX_SCREEN_BYTES, SCREEN_PATH, png_of_screen
from fumehood.values.requests import ReadFile


async def take_screenshot(backend: Backend, sandbox_id: str) -> bytes:
    """Returns the screen of a sandbox's display as a PNG.

    Raises:
        ScreenshotError: The sandbox has no display, or its display file was not made by Xvfb.
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
