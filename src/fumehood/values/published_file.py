"""A file of a sandbox that was published, as the caller receives it.

A plain value; its name and size come from a guest, and its type from a fixed list.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file of a sandbox that was published, or left out.

    Attributes:
        name: Its name; control characters are escaped.
        mime: Its type, derived from its suffix by a fixed list; `application/octet-stream` for all others.
        size_bytes: Its size.
        url: Its address, or None when it was left out.
        expires_at: When the address stops working (UTC), or None if it does not expire.
        path: Its path in the sandbox; empty for a picture that was displayed.
        skipped: Why it was left out; empty if it was not.
    """

    name: str
    mime: str
    size_bytes: int
    url: str | None = None
    expires_at: datetime | None = None
    path: str = ""
    skipped: str = ""
