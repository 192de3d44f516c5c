"""Stands in for zygote and init: prepares a shell, then forks a context for each request on its standard
input.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys

from fumehood_guest.context.late_imports import import_ipython

# As the zygote does, before anything imports IPython.
import_ipython()

from fumehood_guest.context.context import run_context  # noqa: E402
from fumehood_guest.context.rehearsal import prepare_shell  # noqa: E402
from fumehood_guest.context.shell import PythonShell  # noqa: E402
from fumehood_guest.shared.preloads import Preloading  # noqa: E402


def main() -> None:
    control = socket.socket(fileno=0)
    preload = Preloading([name for name in sys.argv[1].split(",") if name], lambda _: None)
    shell = prepare_shell(preload)
    gc.collect()
    gc.freeze()
    state = {
        "threads": len(os.listdir("/proc/self/task")),
        "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    }
    control.send(
        json.dumps({**state, "names": sorted(shell.user_ns), "modules": sorted(sys.modules)}).encode()
    )

    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 3)

        if not data:
            return

        request = json.loads(data)

        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            control.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue

        pid = os.fork()

        if pid == 0:
            be_context(shell, fds, request)

        for fd in fds:
            os.close(fd)

        control.send(json.dumps({"pid": pid}).encode())


def be_context(shell: PythonShell, fds: list[int], request: dict) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        run_context(shell, fds[0], fds[1], fds[2], **request)
    finally:
        os._exit(111)


main()
