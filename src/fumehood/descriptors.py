"""Several descriptors at once: copied, or closed.

Runs in the host process. A descriptor is a number that nobody else gives back: what fails in the middle must not
leave those that it had before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def copies(fds: Iterable[int]) -> tuple[int, ...]:
    """Copies all of them, or none."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        close_all(made)
        raise

    return tuple(made)


def close_all(fds: Iterable[int]) -> None:
    """Closes all of them."""
    for fd in fds:
        os.close(fd)
