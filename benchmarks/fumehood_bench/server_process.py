"""A real `fumehood serve` in a process of its own, with a state folder that is thrown away.

Used in the measuring process. The server reads FUMEHOOD_POOL_SIZE like the library here, so both keep as many ready.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fumehood_bench.http_client import Connection, Place
from fumehood_bench.processes import descendants, memory_bytes

_TOKEN = "a-token-for-measuring"
_GREETING = re.compile(r"listens on http://([\d.]+):(\d+)")
# A sandbox of the pool is there a moment before it has been rehearsed.
_REHEARSAL_SECONDS = 0.02
_LOOK_SECONDS = 0.005
_SETTLED_SECONDS = 1.0
_END_SECONDS = 30
EXECUTE = {"code": "print(6*7)"}


class ServerProcess:
    """A server that runs.

    Attributes:
        place: Where it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], place: Place) -> None:
        self.place = place
        self._process = process
        self._full = 0

    def connect(self) -> Connection:
        """Returns a connection to it."""
        return Connection(self.place)

    def warm_up(self) -> None:
        """Returns when its default template runs and its pool is full."""
        with self.connect() as connection:
            check_executed(connection.ask(self.place.request("POST", "/v1/execute", EXECUTE)).json())

        self._full = -1
        since = time.monotonic()

        # Nobody outside is told how full a pool is; its processes can be counted.
        while time.monotonic() - since < _SETTLED_SECONDS:
            if (count := len(self._below())) != self._full:
                self._full, since = count, time.monotonic()

            time.sleep(_LOOK_SECONDS * 10)

    def wait_until_full(self) -> None:
        """Returns when its pool is as full as it was after `warm_up`."""
        while len(self._below()) != self._full:
            time.sleep(_LOOK_SECONDS)

        time.sleep(_REHEARSAL_SECONDS)

    def memory_megabytes(self) -> float:
        """Returns the proportional memory of it and of all below it."""
        return tree_megabytes(self._process.pid)

    @property
    def pid(self) -> int:
        """The process of the server itself."""
        return self._process.pid

    def _below(self) -> set[int]:
        return descendants(self._process.pid)


def tree_megabytes(root: int) -> float:
    """Returns the proportional memory of a process and of all below it."""
    return sum(memory_bytes(pid)[0] for pid in descendants(root) | {root}) / 1e6


def check_executed(reply: Any) -> None:
    """Checks that a stateless run did what it should."""
    execution = reply["execution"]
    assert execution["error"] is None, execution
    assert execution["logs"]["stdout"] == ["42\n"], execution


@contextmanager
def serving(**settings: object) -> Iterator[ServerProcess]:
    """Starts a server with these settings beside the defaults, and ends it with the block."""
    with tempfile.TemporaryDirectory(prefix="fumehood-bench-") as folder:
        given = {"state_folder": folder, "port": 0, "token": _TOKEN, "log_level": "warning", **settings}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        said = Path(folder, "said")

        with said.open("wb") as file:
            process = subprocess.Popen([sys.executable, "-m", "fumehood", "serve", *flags], stderr=file)

        try:
            yield ServerProcess(process, _place(process, said))
        finally:
            process.terminate()
            process.wait(_END_SECONDS)


def _place(process: subprocess.Popen[bytes], said: Path) -> Place:
    while (greeting := _GREETING.search(said.read_text())) is None:
        assert process.poll() is None, f"the server did not start: {said.read_text()}"
        time.sleep(_LOOK_SECONDS)

    return Place(greeting[1], int(greeting[2]), _TOKEN)
