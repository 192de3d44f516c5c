"""A real Jupyter server of the user's machine, whose kernels are sandboxes: `jupyter server --gateway-url=...`."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.tied import tied


class JupyterServer:
    """One Jupyter server, open to everybody on this machine, in a folder of its own.

    Args:
        folder: Its folder, for notebooks and everything that it writes.
        gateway_url: Where its kernels are.
        token: What it sends there.
    """

    def __init__(self, folder: Path, gateway_url: str, token: str) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{_free_port()}"
        self._said: list[str] = []
        argv = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            f"--gateway-url={gateway_url}",
            f"--ServerApp.port={self.url.rpartition(':')[2]}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}",
            "--IdentityProvider.token=",
            "--ServerApp.disable_check_xsrf=True",
            "--ServerApp.terminals_enabled=False",
        ]
        self.process = subprocess.Popen(
            tied(argv),
            env=jupyter_envs(folder, JUPYTER_GATEWAY_AUTH_TOKEN=token),
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._wait_until_ready()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)
        self._reader.join(30)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _wait_until_ready(self) -> None:
        assert self.process.stderr is not None

        for line in self.process.stderr:
            self._said.append(line)

            if "is running at" in line:
                self._wait_until_it_listens()
                return

        raise AssertionError("the Jupyter server did not start:\n" + "".join(self._said))

    def _wait_until_it_listens(self) -> None:
        """It says where it runs a moment before it does."""
        place = ("127.0.0.1", int(self.url.rpartition(":")[2]))

        while self.process.poll() is None:
            try:
                socket.create_connection(place).close()
            except ConnectionRefusedError:
                os.sched_yield()
            else:
                return

        raise AssertionError("the Jupyter server ended:\n" + "".join(self._said))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)


def jupyter_envs(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which Jupyter's programs find and leave everything in a folder."""
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    return {**os.environ, **places, "JUPYTER_PLATFORM_DIRS": "1", "HOME": str(folder), **more}


def _free_port() -> int:
    """A port that nobody has, and that the kernel gives to nobody until the server takes it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    while True:
        port = random.randrange(max(1024, lowest // 2), lowest)

        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
