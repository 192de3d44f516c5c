"""Fresh random state for a forked context.

All contexts of a template are forked from the same memory, random states included, and may even have the same pid. This
runs once in each, before user code, and reseeds every loaded generator from the kernel's entropy. It must never import
one.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from typing import Any, Callable, Dict


def reseed() -> None:
    """Reseeds every global generator of the loaded libraries."""
    random.seed()
    # Recreated on the next use.
    tempfile._name_sequence = None  # type: ignore[attr-defined]

    for name, refresh in _LIBRARIES.items():
        module = sys.modules.get(name)

        if module is not None:
            refresh(module)


def _numpy(module: Any) -> None:
    # A single number of 32 bits: a list of them, or the generator's own seeding, touches ten times as many pages, and a
    # fork pays for each.
    module.seed(int.from_bytes(os.urandom(4), "little"))


def _torch(module: Any) -> None:
    module.seed()


def _multiprocessing(module: Any) -> None:
    module.current_process().authkey = os.urandom(32)


def _uuid(module: Any) -> None:
    module._last_timestamp = None
    module._node = None


# OpenSSL is not here: it detects forks itself (since 1.1.1), and a call would cost milliseconds.
_LIBRARIES: Dict[str, Callable[[Any], None]] = {
    "numpy.random": _numpy,
    "torch": _torch,
    "multiprocessing.process": _multiprocessing,
    "uuid": _uuid,
}
