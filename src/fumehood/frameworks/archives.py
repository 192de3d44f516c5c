"""Checks archives that a sandbox has packed, before a framework unpacks them on this machine.

Runs in the process of a framework. An archive is a guest's: a few kilobytes of it may stand for terabytes.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_PIECE_BYTES = 1 << 20


def check_expansion(archive: Path, most_bytes: int) -> None:
    """Raises ValueError unless a gzip archive is complete, and expands to at most this many bytes."""
    expanded = 0

    try:
        with gzip.open(archive) as file:
            while piece := file.read(_PIECE_BYTES):
                expanded += len(piece)

                if expanded > most_bytes:
                    raise ValueError(f"the archive of the sandbox expands to more than {most_bytes:,} bytes")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the archive of the sandbox cannot be read: {error}") from None
