"""Long encoded texts, and whether what they hold looks like code.

Pure functions over bounded pieces. What is decoded is looked at and thrown away.
"""

from __future__ import annotations

import base64
import binascii
import re

from fumehood.advice.constant_folding import unpacked

_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{200,}+={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){100,}")
_CODE = re.compile(
    rb"\b(?:import\s+\w|from\s+[\w.]+\s+import|exec\s*\(|eval\s*\(|__import__|os\.system|subprocess|socket\.|/bin/(?:ba)?sh)"
)
_MAX_LOOKED_AT = 65_536
# Pictures and archives begin with these; they are data and are not reported.
_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"<svg", b"%PDF")


def code_in_blob(text: str) -> tuple[str, str] | None:
    """Return the rule and the words for a long encoded text; None if it is none, or a picture."""
    head = text[:_MAX_LOOKED_AT]
    data = _decoded(head)

    if data is None or data.startswith(_PICTURES):
        return None

    if _CODE.search(unpacked(data)):
        return "hidden-code", "a long encoded text holds code"

    return "encoded-blob", f"an encoded text of {len(text):,} characters"


def _decoded(text: str) -> bytes | None:
    stripped = text.strip()

    try:
        if _HEX.fullmatch(text):
            return bytes.fromhex(text)

        # Prose has spaces between its words, an encoding at most line ends.
        if " " in stripped or not _BASE64.fullmatch(stripped):
            return None

        whole = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(whole[: len(whole) // 4 * 4])
    except (ValueError, binascii.Error):
        return None
