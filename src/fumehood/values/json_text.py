"""JSON as bytes that any client can read, whatever characters a guest has put into it.

Pure; used wherever plain data leaves this process as a line.
"""

from __future__ import annotations

import json

# JSON leaves them as they are, and some clients end lines at them: a guest could forge lines.
_LINE_ENDS = tuple((character.encode(), b"\\u%04x" % ord(character)) for character in "\x85\u2028\u2029")
# Made once: `json.dumps` with options makes one for each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(value: object) -> bytes:
    """Returns plain data as JSON bytes that any client can read; surrogates of a guest's text are escaped."""
    return readable_json(_encode(value))


def readable_json(text: str) -> bytes:
    """Returns the bytes of a JSON text, in characters that any client can read."""
    # A guest's JSON may hold halves of characters, which UTF-8 has no bytes for.
    data = text.encode("utf-8", "replace")

    for character, written in _LINE_ENDS:
        data = data.replace(character, written)

    return data
