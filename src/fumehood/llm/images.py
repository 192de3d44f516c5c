"""Selects the pictures of an execution for a model: checked by their first bytes, counted, bounded.

A picture is a guest's bytes: only its header is read, with `struct`; nothing is decoded, scaled or converted here,
because a decoder is a large attack surface. A picture that is too large is named, with the way out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from fumehood import Result
from fumehood.llm.readable_text import in_bytes
from fumehood.llm.result import ToolImage

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
# The maximum of the providers: 8000 pixels a side (Anthropic; OpenAI scales down larger pictures).
_MAX_SIDE = 8_000
_SMALLER = "draw it smaller, for example plt.figure(figsize=(8, 5), dpi=100)"


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """The number of pictures of one call, and the size of each."""

    max_images: int
    max_image_bytes: int


class ImageShelf:
    """Collects the pictures of one call, in order, and returns a line about each."""

    def __init__(self, bounds: ImageBounds) -> None:
        self._bounds = bounds
        self._seen = self._left_out = 0
        self.images: list[ToolImage] = []

    def take(self, result: Result) -> str | None:
        """Take the picture of a result, and return its line: None without a picture, empty beyond the bounds."""
        found = _picture(result)

        if found is None:
            return None

        self._seen += 1
        mime, data = found

        if len(self.images) >= self._bounds.max_images:
            self._left_out += 1
            return ""

        refusal = self._refusal(mime, data)

        if refusal:
            return f"[image {self._seen} is not shown: {refusal}]"

        ending = mime.removeprefix("image/").replace("jpeg", "jpg")
        self.images.append(ToolImage(name=f"image-{self._seen}.{ending}", mime=mime, data=data))
        return f"[image {self._seen}: {mime}, {in_bytes(len(data))}]"

    def left_out(self) -> str:
        """Return a line about the pictures that were too many; empty if there were none."""
        if not self._left_out:
            return ""

        images = "image is" if self._left_out == 1 else "images are"
        return (
            f"[{self._left_out} more {images} not shown: at most {self._bounds.max_images} are, of one call]"
        )

    def _refusal(self, mime: str, data: bytes) -> str:
        if not data.startswith(_PNG if mime == "image/png" else _JPEG):
            return f"its bytes are no {mime}"

        if len(data) > self._bounds.max_image_bytes:
            limit = in_bytes(self._bounds.max_image_bytes)
            return f"it has {in_bytes(len(data))}, and {limit} are allowed; {_SMALLER}"

        sides = _png_sides(data) if mime == "image/png" else _jpeg_sides(data)

        if sides is None:
            return f"its bytes are no complete {mime}"

        if max(sides) > _MAX_SIDE:
            return f"{sides[0]} x {sides[1]} pixels are more than {_MAX_SIDE} a side; {_SMALLER}"

        return ""


def oversized(results: Iterable[Result]) -> list[str]:
    """Return lines about pictures that the sandbox left out because of `limits.result_bytes`."""
    return [
        f"[an image of {in_bytes(size)} is not shown: it is too large for one result; {_SMALLER}]"
        for result in results
        for mime, size in result.truncated.items()
        if mime in ("image/png", "image/jpeg")
    ]


def _picture(result: Result) -> tuple[str, bytes] | None:
    for mime in ("image/png", "image/jpeg"):
        if (data := result.parts.get(mime)) is not None:
            return mime, data

    return None


def _png_sides(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, from the header chunk that every PNG begins with (RFC 2083, 4.1.1)."""
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None

    width, height = struct.unpack_from(">II", data, 16)
    return (width, height) if width and height else None


def _jpeg_sides(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a JPEG, from its frame header (ITU-T T.81, B.2.2)."""
    place = 2

    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]

        # SOF0 to SOF15, except DHT, JPG and DAC, which have numbers among them.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 5)
            return (width, height) if width and height else None

        place += 2 + struct.unpack_from(">H", data, place + 2)[0]

    return None
