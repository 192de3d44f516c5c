"""The picture of a display: made of a file that a guest may have written."""

from __future__ import annotations

import struct
import zlib

import pytest

from fumehood import StartCommand
from fumehood.values.display import png_of_screen, with_display


def screen(
    width: int = 2, height: int = 1, *, pixels: bytes = b"\x01\x02\x03\0\x04\x05\x06\0", **others: int
) -> bytes:
    """A file as Xvfb keeps it, blue first."""
    head = {
        0: 160,
        1: 7,
        2: 2,
        3: 24,
        4: width,
        5: height,
        11: 32,
        12: 4 * width,
        14: 0xFF0000,
        15: 0xFF00,
        16: 0xFF,
    }
    head |= {int(name[1:]): value for name, value in others.items()}
    return struct.pack(">25I", *(head.get(place, 0) for place in range(25))) + bytes(60) + pixels


def test_a_screen_becomes_a_png():
    """Red comes first there, and each line begins with its filter."""
    png = png_of_screen(screen())
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (2, 1)
    begin = png.index(b"IDAT") + 4
    assert zlib.decompress(png[begin:-16]) == b"\0\x03\x02\x01\x06\x05\x04"
    assert png[begin - 8 : begin - 4] == struct.pack(">I", len(png) - begin - 16)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "too short"),
        (screen()[:99], "too short"),
        (screen(pixels=b""), "ends before"),
        (screen(n19=2**32 - 1), "ends before"),
        (screen(n0=2**32 - 1), "ends before"),
        (screen(0, 5), "0 by 5"),
        (screen(2**29, 2**29), "pixels"),
        (screen(n12=4), "4 bytes a line"),
        (screen(n11=24), "32 bits"),
        (screen(n14=1), "32 bits"),
    ],
)
def test_what_is_no_screen_is_refused(content, match):
    """Numbers of a guest choose no size and no place beyond the file."""
    with pytest.raises(ValueError, match=match):
        png_of_screen(content)


def test_a_display_comes_before_the_start_command():
    """The command begins when the display is there; its check stays the one that counts."""
    alone = with_display(None)
    both = with_display(StartCommand(command="serve", ready="port:80", ready_seconds=5))
    assert alone.ready == "file:/tmp/.X11-unix/X99"
    assert (both.ready, both.ready_seconds, both.command.splitlines()[-1]) == ("port:80", 5, "serve")
