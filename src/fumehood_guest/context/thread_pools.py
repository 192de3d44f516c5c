"""Thread pools of libraries: a fork has one thread, and a library that goes on in it would wait for the others.

Runs in a context, between two cells, when a checkpoint is made, and in what is made of it. scikit-learn, xgboost,
LightGBM and PyTorch compute with the OpenMP of GCC (libgomp), which keeps its threads for the next parallel region and
knows nothing of forks. Ended by its own function for that, it starts new ones when they are needed: in the fork and in
the context itself. Python's own pools, which dask and `asyncio.to_thread` use, are told in the fork that they have no
threads. Pools that cannot be helped are named.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import List, Set

from fumehood_jail import syscalls

_LIBRARY = "libgomp"
# OpenMP 5.0, section 3.2.43: `int omp_pause_resource_all(omp_pause_resource_t kind)`, omp_pause_hard.
_PAUSE = "omp_pause_resource_all"
_HARD = 2
# By the names of their threads: libraries that never notice that these are gone.
_LASTING = {"polars": re.compile(r"polars-\d"), "jax": re.compile("tf_XLA")}


def end_idle() -> None:
    """Ends the idle threads of the calling thread's pools; what cannot be ended stays."""
    for path in _loaded():
        try:
            syscalls.call_loaded(path, _PAUSE, _HARD)
        except (OSError, AttributeError):
            continue  # of a compiler older than GCC 9


def renew() -> None:
    """In a fork: lets each `ThreadPoolExecutor` start threads again; it counts on idle ones that are not there."""
    module = sys.modules.get("concurrent.futures.thread")

    for thread in list(getattr(module, "_threads_queues", ())):
        try:
            # As `ThreadPoolExecutor._adjust_thread_count` starts them: the first argument refers to the pool.
            pool = thread._args[0]()
            pool._threads.clear()
            pool._idle_semaphore = threading.Semaphore(0)
        except (AttributeError, IndexError, TypeError):
            continue  # its pool has gone, or is of a Python that does this otherwise


def lasting() -> List[str]:
    """Names the libraries that have computed with threads and cannot go on without them."""
    names = [_name(thread) for thread in os.listdir("/proc/self/task")]
    found = (library for library, known in _LASTING.items() if any(map(known.match, names)))
    return [f"the threads of {library}, without which it hangs" for library in found]


def _name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""  # it has ended


def _loaded() -> Set[str]:
    """Returns the paths of the loaded libraries: each package brings its own."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").partition("/")[2] for line in file if _LIBRARY in line}

    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_LIBRARY)}
