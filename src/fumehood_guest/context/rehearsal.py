"""Warms up a shell in the zygote: runs every path that a cell may take once, and removes the traces.

Runs in the zygote, which must stay single-threaded. The rehearsal uses a real channel, so that lazy initialisation is
done before the fork: a fork shares what is loaded and pays for what is not.
"""

from __future__ import annotations

import linecache
import socket
import sys
from typing import Any, Dict, Sequence

from fumehood_guest.context.channel import FrameSocket
from fumehood_guest.context.event_loop import BackgroundLoop
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.restore import Repairs
from fumehood_guest.context.shell import PythonShell
from fumehood_guest.context.streams import Streams
from fumehood_guest.shared.heap_layout import forget_lookups
from fumehood_guest.shared.preloads import Preloading

_CELLS = (
    "1 + 1",
    "print('a', 1.5)\nimport sys\nprint('b', file=sys.stderr)",
    "display({'text/plain': 'x', 'text/html': '<b>x</b>'}, raw=True)",
    "def f(x):\n    return 1 / x\nf(0)",
    "1 +",
    "[n for n in range(3)]",
    "%time 1",
    "import asyncio\nawait asyncio.sleep(0)",
)
_CELLS_BY_PACKAGE = {
    "pandas": ("import pandas\npandas.DataFrame({'a': [1, 2.5], 'b': ['x', None]})",),
    "matplotlib": (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='x')\nplt.title('t')\nplt.legend()",
    ),
}
_REQUEST: Dict[str, Any] = {
    "id": "rehearsal",
    "stdout_bytes": 1 << 20,
    "stderr_bytes": 1 << 20,
    "result_bytes": 1 << 20,
    "result_count": 100,
    "allow_stdin": False,
    "silent": False,
    "store_history": True,
    "envs": {},
}


def prepare_shell(preload: Preloading) -> PythonShell:
    """Makes the one shell of this process, imports `preload`, and runs everything once.

    Afterwards no thread is alive, and no object of the rehearsal remains.
    """
    shell = PythonShell.make()
    _warm_up(shell, preload)
    shell.repairs = Repairs(shell)
    # Whatever descriptor 0 will be in a context, this reads it.
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    return shell


def _warm_up(shell: PythonShell, preload: Preloading) -> None:
    """Imports the modules of `preload` and rehearses; does not rehearse if some of them are unfit."""
    preload.load()

    if preload.unfit:
        return

    for name in preload.found:
        # A module of a package, such as `matplotlib.pyplot`, stands for the package.
        if cells := _CELLS_BY_PACKAGE.get(name.partition(".")[0]):
            _rehearse(shell, cells)
            preload.check_threads(name, "its first use")

    forget_lookups()
    _rehearse(shell, _CELLS)

    # Disconnected here: otherwise each context would deallocate them, and copy pages for that.
    for name in ("outlet", "streams", "background"):
        setattr(shell, name, None)


def _rehearse(shell: PythonShell, cells: Sequence[str]) -> None:
    """Runs the cells as a context would, and reverts all their changes."""
    streams = sys.stdout, sys.stderr, sys.modules["__main__"]
    namespaces = dict(shell.user_ns), dict(shell.user_ns_hidden)
    near, far = socket.socketpair()
    far.setblocking(False)
    channel = FrameSocket(near)
    outlet = Outlet(channel)
    background = BackgroundLoop(channel.fileno())
    shell.attach(outlet, Streams(outlet), background)
    try:
        for cell in cells:
            execution = GuestExecution(_REQUEST)
            outlet.begin(execution)
            shell.run_source(cell, execution)
            shell.report()
            shell.streams.flush()
            outlet.reply(shell.reply_count, {})
            _drain(far)
    finally:
        background.close()
        near.close()
        far.close()
        sys.stdout, sys.stderr, sys.modules["__main__"] = streams
        _forget(shell, *namespaces)


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(1 << 20):
            continue
    except BlockingIOError:
        return


def _forget(shell: PythonShell, namespace: Dict[str, Any], hidden: Dict[str, Any]) -> None:
    history = shell.history_manager
    history.reset(new_session=False)
    history.input_hist_parsed[:] = [""]
    history.input_hist_raw[:] = [""]
    history.db_input_cache.clear()
    history.output_hist_reprs.clear()
    history._i00 = history._i = history._ii = history._iii = ""
    hook = shell.displayhook
    hook._ = hook.__ = hook.___ = ""

    for name in shell.compile._filename_map:
        linecache.cache.pop(name, None)

    shell.compile._filename_map.clear()
    shell.user_ns.clear()
    shell.user_ns.update(namespace)
    shell.user_ns_hidden.clear()
    shell.user_ns_hidden.update(hidden)
    shell.execution_count = 1
    shell.last_execution_result = None
    shell.running_source = ""

    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
