"""The floors: what the kernel charges for the barest form of what a sandbox does.

Two halves. `Floor` lives in the measuring process and asks for one sample at a time, so that floors are
measured in turn with the rest. `serve` is a process of its own that has imported what a zygote imports, and
nothing else: it forks or clones a child that exits at once, or runs a cell, and answers with the
milliseconds that took. No jail, no limits, no wire: nobody could run hostile code this way, which is why it
is a floor and not a rival.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

FORK = "bare fork of a loaded Python"
CLONE = "bare clone, 7 namespaces"
CELL = "IPython run_cell in process"


class Floor:
    """A loaded process that does the bare thing when asked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fumehood_bench.floor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Floor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def fork(self) -> float:
        """Milliseconds of a fork whose child exits at once, until it is reaped."""
        return self._ask("fork")

    def clone(self) -> float:
        """Milliseconds of a clone into all namespaces with mapped ids, until the child is reaped."""
        return self._ask("clone")

    def cell(self) -> float:
        """Milliseconds of `y = 1` in an IPython shell of that process."""
        return self._ask("cell")

    def _ask(self, what: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        answer = self._process.stdout.readline()

        if not answer:
            raise RuntimeError(f"the floor process died when asked for {what!r}")

        return float(answer)


def _fork() -> None:
    pid = os.fork()

    if pid == 0:
        os._exit(0)

    os.waitpid(pid, 0)


def _clone() -> None:
    from fumehood_jail import syscalls

    released, release = os.pipe()
    pid = syscalls.clone(syscalls.CLONE_NAMESPACES)

    if pid == 0:
        os.close(release)
        os.read(released, 1)
        os._exit(0)

    # An ordinary user may map its own id only, and must give up setgroups first (user_namespaces(7)).
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {os.getuid()} 1"),
        ("gid_map", f"0 {os.getgid()} 1"),
    ):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/{name}", "w") as file:
            file.write(line)

    os.write(release, b"!")
    os.waitpid(pid, 0)
    os.close(release)
    os.close(released)


def _cell() -> Callable[[], None]:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(user_ns={}, history_load_length=0)
    shell.history_manager.enabled = False
    return lambda: shell.run_cell("y = 1", store_history=True) and None


def serve() -> None:
    """Answers lines on standard input until it is closed."""
    for package in ("numpy", "pandas", "matplotlib.pyplot"):
        importlib.import_module(package)

    actions: dict[str, Callable[[], None]] = {"fork": _fork, "clone": _clone, "cell": _cell()}
    gc.collect()
    gc.freeze()

    for line in sys.stdin:
        action = actions[line.strip()]
        start = time.perf_counter()
        action()
        print((time.perf_counter() - start) * 1e3, flush=True)


if __name__ == "__main__":
    serve()
