"""The display of a template's sandboxes: a framebuffer of Xvfb, which its programs draw on by X11.

Plain data of the host process. The server is a program of the sandbox, as the template's start command; its screen is a
file of the sandbox, which is as hostile as any other.
"""

from __future__ import annotations

import struct
import zlib

from fumehood.values.start_command import StartCommand

DISPLAY = ":99"
# In the file that Xvfb keeps in memory and names by its screen (Xvfb(1), -fbdir).
SCREEN_PATH = "/tmp/.display/Xvfb_screen0"  # noqa: S108 - in the sandbox
_SOCKET = "/tmp/.X11-unix/X99"  # noqa: S108 - in the sandbox
_SIZE = "1280x800x24"
_SERVER = f"Xvfb {DISPLAY} -screen 0 {_SIZE} -nolisten tcp -noreset -fbdir /tmp/.display"
_PREPARE = "mkdir -p -m 1777 /tmp/.X11-unix && mkdir -p /tmp/.display"
# The layout of an XWD file (X11/XWDFile.h): numbers of 32 bits, the name of the window, the colours, the pixels.
_HEADER = struct.Struct(">25I")
_VERSION, _Z_PIXMAP, _COLOUR_BYTES = 7, 2, 12
_MASKS = (0xFF0000, 0xFF00, 0xFF)
_MOST_PIXELS = 1 << 23
MAX_SCREEN_BYTES = 4 * _MOST_PIXELS + (1 << 16)


def with_display(start: StartCommand | None) -> StartCommand:
    """Returns the start command that brings up a display, and then runs another command, if one is given."""
    if start is None:
        return StartCommand(command=f"{_PREPARE} && exec {_SERVER}", ready=f"file:{_SOCKET}")

    wait = f"while [ ! -S {_SOCKET} ]; do kill -0 $! || exit 1; sleep 0.05; done"
    return StartCommand(
        command=f"{_PREPARE} && {{ {_SERVER} & }} && {wait}\n{start.command}",
        ready=start.ready or f"file:{_SOCKET}",
        ready_seconds=start.ready_seconds,
    )


def png_of_screen(screen: bytes) -> bytes:
    """Returns the picture in a file of Xvfb as a PNG.

    Raises:
        ValueError: The file is not a picture of a screen.
    """
    if len(screen) < _HEADER.size:
        raise ValueError("it is too short")

    head = _HEADER.unpack_from(screen)
    header_bytes, version, kind, _, width, height, _, byte_order = head[:8]
    depth_bits, line_bytes, masks, colours = head[11], head[12], head[14:17], head[19]

    if version != _VERSION or kind != _Z_PIXMAP or byte_order != 0 or depth_bits != 32 or masks != _MASKS:
        raise ValueError("its pixels are not of 32 bits, blue first")

    begin = header_bytes + colours * _COLOUR_BYTES

    if not 0 < width * height <= _MOST_PIXELS or line_bytes != 4 * width:
        raise ValueError(f"it is {width} by {height} pixels, of {line_bytes} bytes a line")

    pixels = memoryview(screen)[begin : begin + height * line_bytes]

    if len(pixels) != height * line_bytes:
        raise ValueError("it ends before its pixels do")

    colour = bytearray(3 * width * height)

    for place in range(3):
        colour[place::3] = pixels[2 - place :: 4]

    lines = (b"\0" + colour[begin : begin + 3 * width] for begin in range(0, len(colour), 3 * width))
    picture = zlib.compress(b"".join(lines), 3)
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", size) + _chunk(b"IDAT", picture) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
