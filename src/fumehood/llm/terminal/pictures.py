"""Pictures inside the terminal, where it can show them: the protocols of kitty and of iTerm2.

Runs in the user's terminal. A picture is a guest's bytes: it is sent as base64 within the escape sequence, so nothing
in it can end the sequence; only a file of the right type and a bounded size is sent. The environment shows what the
terminal supports; it is never queried, because its answer would come in on the user's keyboard.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Literal

Protocol = Literal["kitty", "iterm2", "none"]

# kitty's graphics protocol takes base64 in pieces of at most so many characters.
_PIECE_CHARS = 4_096
_MAX_BYTES = 4 * 1024 * 1024
_SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpg": b"\xff\xd8\xff"}


def detect_protocol(environment: Mapping[str, str]) -> Protocol:
    """Return the picture protocol of the terminal, by its environment."""
    # A multiplexer is in between, and passes neither on by itself.
    if environment.get("TMUX") or environment.get("STY"):
        return "none"

    program = environment.get("TERM_PROGRAM", "").lower()

    if environment.get("KITTY_WINDOW_ID") or environment.get("TERM") in ("xterm-kitty", "xterm-ghostty"):
        return "kitty"

    if program in ("iterm.app", "wezterm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"

    return "none"


def picture_sequence(protocol: Protocol, content: bytes, ending: str) -> str:
    """Return the escape sequence that shows a picture; empty when the terminal cannot.

    Args:
        protocol: The protocol of the terminal.
        content: The bytes of the file.
        ending: Of the file's name: png or jpg.
    """
    signature = _SIGNATURES.get(ending)

    if signature is None or not content.startswith(signature) or len(content) > _MAX_BYTES:
        return ""

    data = base64.b64encode(content).decode("ascii")

    match protocol:
        case "kitty" if ending == "png":
            return _kitty(data)
        case "iterm2":
            return f"\x1b]1337;File=inline=1;size={len(content)};preserveAspectRatio=1:{data}\x07\n"
        case _:
            return ""


def _kitty(data: str) -> str:
    pieces = [data[start : start + _PIECE_CHARS] for start in range(0, len(data), _PIECE_CHARS)]
    last = len(pieces) - 1
    shown: list[str] = []

    for number, piece in enumerate(pieces):
        # q=2: it answers nothing, which would come in on the user's keyboard.
        control = "a=T,f=100,q=2," if number == 0 else ""
        shown.append(f"\x1b_G{control}m={int(number < last)};{piece}\x1b\\")

    return "".join(shown) + "\n"
