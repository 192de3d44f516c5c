"""Thread pools of OpenMP: ended before a fork, since the fork would wait for threads that it does not have.

Runs in a context, between two cells, when a checkpoint is made. scikit-learn, xgboost, LightGBM and PyTorch compute
with the OpenMP of GCC (libgomp), which keeps its threads for the next parallel region and knows nothing of forks. Ended
by its own function for that, it starts new ones when they are needed: in the fork and in the context itself.
"""

from __future__ import annotations

import os
from typing import Set

from fumehood_jail import syscalls

_LIBRARY = "libgomp"
# OpenMP 5.0, section 3.2.43: `int omp_pause_resource_all(omp_pause_resource_t kind)`, omp_pause_hard.
_PAUSE = "omp_pause_resource_all"
_HARD = 2


def end_idle() -> None:
    """Ends the idle threads of the calling thread's pools; what cannot be ended stays."""
    for path in _loaded():
        try:
            syscalls.call_loaded(path, _PAUSE, _HARD)
        except (OSError, AttributeError):
            continue  # of a compiler older than GCC 9


def _loaded() -> Set[str]:
    """Returns the paths of the loaded libraries: each package brings its own."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").partition("/")[2] for line in file if _LIBRARY in line}

    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_LIBRARY)}
