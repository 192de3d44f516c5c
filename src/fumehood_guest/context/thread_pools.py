"""Thread pools of libraries: a fork has one thread, and a library that continues there would wait for the others.

Runs in a context, between two cells, when a checkpoint is made, and in contexts made from it. scikit-learn, xgboost,
LightGBM and PyTorch compute with the OpenMP of GCC (libgomp), which keeps its threads for the next parallel region and
does not handle forks. After its own function has ended the pool, it starts new threads when needed: in the fork and in
the context itself. Python's own pools, which dask and `asyncio.to_thread` use, are reset in the fork. Pools for which
there is no remedy are listed.
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
# Libraries that never notice that their threads are gone, by their threads' names.
_LASTING = {"polars": re.compile(r"polars-\d"), "jax": re.compile("tf_XLA")}


def end_idle() -> None:
    """Ends the idle threads of the calling thread's OpenMP pools, where the library supports it."""
    for path in _loaded():
        try:
            syscalls.call_loaded(path, _PAUSE, _HARD)
        except (OSError, AttributeError):
            continue  # of a compiler older than GCC 9


def renew() -> None:
    """In a fork: makes each `ThreadPoolExecutor` start threads again, in place of idle ones that no longer exist."""
    module = sys.modules.get("concurrent.futures.thread")

    for thread in list(getattr(module, "_threads_queues", ())):
        try:
            # As `ThreadPoolExecutor._adjust_thread_count` starts them: the first argument refers to the pool.
            pool = thread._args[0]()
            pool._threads.clear()
            pool._idle_semaphore = threading.Semaphore(0)
        except (AttributeError, IndexError, TypeError):
            continue  # its pool is gone, or this Python implements it otherwise


def lasting() -> List[str]:
    """Returns the libraries whose thread pools exist and cannot be restored."""
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
    """Returns the paths of the loaded OpenMP libraries: each package brings its own."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").partition("/")[2] for line in file if _LIBRARY in line}

    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_LIBRARY)}
