"""What fumehood is compared with: `python -c pass`, and a cell through jupyter_client and ipykernel.

Runs in the measuring process. Each reference gets what is best for it: the cheapest way to start a child
process; a kernel that is up and warm, and a client that waits for the reply only.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PYTHON_PASS = "python -c pass"
JUPYTER_CELL = "jupyter_client + ipykernel"


def python_pass() -> None:
    """Starts `python -c pass` and waits for it (vfork and exec inside; see subprocess)."""
    subprocess.run(
        [sys.executable, "-c", "pass"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        check=True,
    )


class JupyterKernel:
    """A live ipykernel and its blocking client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run_cell(self, code: str) -> None:
        """Runs one cell and waits for its reply; collecting its output as well would take twice as long."""
        reply = self._client.execute(code, reply=True, timeout=60)

        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the reference kernel failed: {reply['content']}")


@contextmanager
def jupyter_kernel() -> Iterator[JupyterKernel]:
    """Starts a kernel, warm and with the same packages imported, and shuts it down at the end."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
    try:
        kernel = JupyterKernel(client)
        kernel.run_cell("import numpy, pandas, matplotlib.pyplot")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
