"""Parts and versions of a file by HTTP (RFC 9110, sections 8.8, 13 and 14): pure functions over headers.

What cannot be read as a range is no range: the whole file is given then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import format_datetime
from urllib.parse import quote

from fumehood.values.sandbox import FileInfo

# One range; several at once are answered with the whole, as the standard allows.
_RANGE = re.compile(r"bytes\s*+=\s*+(\d{0,18}+)\s*+-\s*+(\d{0,18}+)\s*+", re.ASCII | re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file, from `start` up to but not including `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes it has; none when the file has no such part."""
        return max(0, self.end - self.start)


def etag_of(info: FileInfo) -> str:
    """Returns the tag of a file's version: it changes with its size and the time of its last change."""
    changed = 0 if info.modified_at is None else round(info.modified_at.timestamp() * 1_000_000)
    return f'"{changed:x}-{info.size_bytes:x}"'


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Tells whether the client has this version already (`If-None-Match`)."""
    given = headers.get("if-none-match", "")
    return given.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in given.split(",")]


def wanted_span(headers: Mapping[str, str], info: FileInfo, etag: str) -> Span | None:
    """Returns the part that is asked for, or None for the whole; an empty one cannot be given."""
    match = _RANGE.fullmatch(headers.get("range", ""))

    if match is None or not (match[1] or match[2]):
        return None

    condition = headers.get("if-range")

    # The part of another version would not fit what the client has.
    if condition is not None and condition.strip() not in (etag, last_modified(info)):
        return None

    size = info.size_bytes

    if not match[1]:
        return Span(max(0, size - int(match[2])), size)

    start = int(match[1])
    end = min(size, int(match[2]) + 1) if match[2] else size

    # 5-2 is no range at all.
    return None if match[2] and int(match[2]) < start else Span(start, end)


def last_modified(info: FileInfo) -> str | None:
    """Returns the value of `Last-Modified`, or None if the guest's clock made no sense."""
    return None if info.modified_at is None else format_datetime(info.modified_at, usegmt=True)


def attachment(name: str) -> str:
    """Returns the `Content-Disposition` of a download: no character of the name can end the header."""
    plain = _UNSAFE.sub("_", name)[:255] or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
