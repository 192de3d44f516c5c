"""The preload list: imports its modules one after the other, and finds those that cannot be preloaded.

Runs in the zygote, before it forks anything. A fork copies one thread only: a library whose import has started others
would wait in every context for threads that do not exist. An import cannot be undone, so the host restarts the
template's processes without the modules that are found here. The modules are checked one by one, so that each can be
named.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Sequence, Set, Tuple

# Packages must not start threads at their import.
_SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS"),
    "1",
)
# The allocators in pyarrow and polars start background threads unless this is configured.
_ALLOCATORS = ("JE_ARROW_MALLOC_CONF", "_RJEM_MALLOC_CONF")
_NO_CLEANERS = "background_thread:false"
# A preloaded package, and the modules that nearly every user of it needs as well.
_COMPANIONS = {"matplotlib": ("matplotlib.pyplot",), "numpy": ("numpy.random",)}
# A thread that has finished may need a moment to end.
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.005
_MAX_REASON_CHARS = 300
_MAX_NAMED_THREADS = 5

THREADS = "threads"
ERROR = "error"


class Preloading:
    """The import of one preload list.

    Args:
        names: The modules.
        say: Called with the name of each before it is imported.

    Attributes:
        missing: The modules whose package is not installed.
        unfit: The cause (`THREADS` or `ERROR`) and a description for each module that cannot be preloaded.
    """

    def __init__(self, names: Sequence[str], say: Callable[[str], None]) -> None:
        self.found = [name for name in names if importlib.util.find_spec(name.partition(".")[0])]
        self.missing = [name for name in names if name not in self.found]
        self.unfit: Dict[str, Tuple[str, str]] = {}
        self._say = say
        self._known = _threads()

    def load(self) -> None:
        """Imports the installed modules."""
        for name in self.found:
            self._say(name)
            try:
                importlib.import_module(name)

                for companion in _COMPANIONS.get(name, ()):
                    importlib.import_module(companion)
            except BaseException as error:
                text = f"its import fails: {type(error).__name__}: {error}"
                self.unfit[name] = (ERROR, text[:_MAX_REASON_CHARS])

            self.check_threads(name, "its import")

    def check_threads(self, name: str, what: str) -> None:
        """Records a module as unfit if `what` it did has left threads."""
        left = self._left_threads()

        if left and name not in self.unfit:
            names = ", ".join(sorted(left)[:_MAX_NAMED_THREADS])
            text = f"{what} leaves {len(left)} {'thread' if len(left) == 1 else 'threads'} running: {names}"
            self.unfit[name] = (THREADS, text[:_MAX_REASON_CHARS])

    def _left_threads(self) -> List[str]:
        """Returns the names of new threads, after a wait for those that are about to end."""
        deadline = time.monotonic() + _PATIENCE_SECONDS

        while (new := _threads() - self._known) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

        self._known |= new
        return [_thread_name(thread) for thread in new]


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Sets, during the block, the variables that keep libraries from starting threads at their import."""
    os.environ.update(_SINGLE_THREADED)

    for name in _ALLOCATORS:
        # The last setting wins.
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), _NO_CLEANERS)))

    yield

    # Each context has an environment of its own anyway.
    for name in (*_SINGLE_THREADED, *_ALLOCATORS):
        os.environ.pop(name, None)


def running_threads() -> List[str]:
    """Returns the names of this process's threads, without the main thread."""
    return [_thread_name(thread) for thread in _threads() if int(thread) != os.getpid()]


def _threads() -> Set[str]:
    return set(os.listdir("/proc/self/task"))


def _thread_name(thread: str) -> str:
    """Returns a thread's name in Python, else its name in the kernel."""
    threading = sys.modules.get("threading")
    known = {} if threading is None else {str(one.native_id): one.name for one in threading.enumerate()}

    if thread in known:
        return str(known[thread])

    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "one that has ended since"
