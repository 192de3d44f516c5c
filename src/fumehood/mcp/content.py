"""The content of a sandbox's file, for a model or a resource: its type, and a bounded part of it.

Runs in the process of the MCP server. Names and bytes come from a guest: the type is derived from the name alone, and
no bytes are interpreted here.
"""

from __future__ import annotations

import mimetypes
from contextlib import aclosing
from dataclasses import dataclass

from fumehood import AsyncSandbox

UNKNOWN_TYPE = "application/octet-stream"
# Text types that do not begin with text/.
_TEXT_TYPES = frozenset(
    {
        "application/javascript",
        "application/json",
        "application/toml",
        "application/x-ipynb+json",
        "application/x-ndjson",
        "application/x-python-code",
        "application/x-sh",
        "application/xml",
        "application/yaml",
        "image/svg+xml",
    }
)
# Types that the system's table lacks, or that differ between systems.
_OWN_TYPES = {
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".parquet": "application/vnd.apache.parquet",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".py": "text/x-python",
    ".js": "text/javascript",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_TABLE = mimetypes.MimeTypes()


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a text.

    Attributes:
        text: The lines.
        next_line: The number of the line that follows them; None at the end.
        is_cut: Whether the last line is longer than what is shown of it.
    """

    text: str
    next_line: int | None
    is_cut: bool


def type_of(path: str) -> str:
    """Return the type of a file by its name."""
    name = path.rpartition("/")[2].lower()
    ending = name[name.rfind(".") :] if "." in name else ""
    return _OWN_TYPES.get(ending) or _TABLE.guess_type(f"x{ending}")[0] or UNKNOWN_TYPE


def is_text_type(mime_type: str) -> bool:
    """Tell whether files of a type are read as text."""
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES


async def read_bounded(sandbox: AsyncSandbox, path: str, max_bytes: int) -> tuple[bytes, bool]:
    """Return the head of a file, and whether that is all of it."""
    content = bytearray()

    async with aclosing(await sandbox.files.read(path, format="stream")) as pieces:
        async for piece in pieces:
            content += piece

            if len(content) > max_bytes:
                return bytes(content[:max_bytes]), False

    return bytes(content), True


async def read_lines(
    sandbox: AsyncSandbox, path: str, first_line: int, max_lines: int, max_chars: int
) -> Lines | None:
    """Return lines of a file, from the first one wanted on; None when it is no UTF-8 text.

    Args:
        sandbox: Where it lies.
        path: The file.
        first_line: The first line wanted, from 1.
        max_lines: How many at most.
        max_chars: How many characters at most; a longer line is cut.
    """
    window = _Window(first_line, max_lines, 4 * max_chars)

    async with aclosing(await sandbox.files.read(path, format="stream")) as pieces:
        async for piece in pieces:
            if window.take(piece):
                break

    return window.lines(max_chars)


class _Window:
    """Takes a file piece by piece and keeps the wanted lines, within a bound."""

    def __init__(self, first_line: int, max_lines: int, max_bytes: int) -> None:
        self._first_line = first_line
        # Lines that are still wanted: kept ones are not counted again with each piece.
        self._lines_left = max_lines
        self._max_bytes = max_bytes
        self._skip = first_line - 1
        self._kept = bytearray()
        self._is_binary = False
        self._has_more = False

    def take(self, piece: bytes) -> bool:
        """Take the next piece; True: no more are needed."""
        if b"\0" in piece:
            self._is_binary = True
            return True

        if self._skip:
            piece = self._after_skipped(piece)

        end = _end_of_lines(piece, self._lines_left)

        if 0 <= end < len(piece):
            self._kept += piece[:end]
            self._has_more = True
            return True

        self._kept += piece
        self._lines_left -= piece.count(b"\n")

        if len(self._kept) > self._max_bytes:
            self._has_more = True
            return True

        return False

    def lines(self, max_chars: int) -> Lines | None:
        """Return the kept lines."""
        if self._is_binary:
            return None

        try:
            # A cut may be inside a character.
            text = self._kept.decode("utf-8") if not self._has_more else _decode_head(bytes(self._kept))
        except UnicodeDecodeError:
            return None

        shown = text[:max_chars]
        is_cut = False

        if len(shown) < len(text):
            self._has_more = True
            whole = shown.rfind("\n") + 1
            is_cut = not whole
            shown = shown[:whole] if whole else shown

        count = shown.count("\n") + (1 if is_cut else 0)
        return Lines(shown, self._first_line + count if self._has_more else None, is_cut)

    def _after_skipped(self, piece: bytes) -> bytes:
        found = piece.count(b"\n")

        if found < self._skip:
            self._skip -= found
            return b""

        end = _end_of_lines(piece, self._skip)
        self._skip = 0
        return piece[end:]


def _end_of_lines(content: bytes | bytearray, count: int) -> int:
    """Return where the line of this number ends; -1 when there are fewer."""
    end = 0

    for _ in range(count):
        end = content.find(b"\n", end) + 1

        if not end:
            return -1

    return end


def _decode_head(head: bytes) -> str:
    """Decode text that may end in the middle of a character."""
    for cut in range(4):
        try:
            return head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:
                raise

    return head.decode("utf-8")
