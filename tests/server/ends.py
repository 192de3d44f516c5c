"""What tests need that end processes: what a server holds now, waiting for a state of it, and streams to look at."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from tests.integration import census
from tests.waiting import DEADLINE_SECONDS, until


def client_of(server: Any, token: str | None = None) -> httpx2.Client:
    """A client with the owner's token, or another."""
    headers = {"Authorization": f"Bearer {token}"} if token else server.headers
    return httpx2.Client(base_url=server.url, headers=headers, timeout=60)


def new_sandbox(api: httpx2.Client, **given: Any) -> str:
    """Make a sandbox and return its id."""
    answer = api.post("/v1/sandboxes", json=given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run(api: httpx2.Client, sandbox_id: str, code: str, **given: Any) -> dict[str, Any]:
    """Run code to its end and return the record."""
    answer = api.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code, **given})
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    return execution


def gauges(api: httpx2.Client) -> dict[str, float]:
    """What a server holds: descriptors, tasks, sandboxes, memory."""
    lines = api.get("/metrics").text.splitlines()
    values = dict(
        line.split(" ", 1) for line in lines if line and not line.startswith("#") and "{" not in line
    )
    names = ("process_open_fds", "fumehood_tasks", "fumehood_sandboxes", "process_resident_memory_bytes")
    return {name: float(values[name]) for name in names}


class Following:
    """A stream of a request, followed in a thread."""

    def __init__(self, api: httpx2.Client, path: str, body: dict[str, Any]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._follow, args=(api, path, body), daemon=True)
        self._thread.start()

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Wait for a line of this type."""
        with self._arrived:
            found = self._arrived.wait_for(lambda: self._first(kind), DEADLINE_SECONDS)

        assert found, self.lines
        line: dict[str, Any] = found
        return line

    def end(self) -> list[dict[str, Any]]:
        """Wait until it has ended and return its lines."""
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        return self.lines

    def _first(self, kind: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["type"] == kind), None)

    def _follow(self, api: httpx2.Client, path: str, body: dict[str, Any]) -> None:
        headers = {"Accept": "application/x-ndjson"}

        try:
            with api.stream("POST", path, json=body, headers=headers) as answer:
                for text in answer.iter_lines():
                    with self._arrived:
                        self.lines.append(json.loads(text))
                        self._arrived.notify_all()
        except httpx2.HTTPError as error:
            self.error = error


class Remains:
    """What of a process is there after its end.

    Args:
        pid: A process whose sandboxes live.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._mounts = _mounts()
        self._pidfds = [os.pidfd_open(one) for one in census.descendants_of(pid)]
        assert self._pidfds

    def assert_ended(self) -> None:
        """See that no process is left, within the seconds that the kernel may take, and nothing mounted."""
        left = census.wait_for_ends(self._pidfds, DEADLINE_SECONDS)

        for fd in self._pidfds:
            os.close(fd)

        assert left == []
        assert [line for line in _mounts() if line not in self._mounts] == []

    def assert_swept(self) -> None:
        """See that no cgroup is left: a process that was killed leaves empty ones to the next engine that starts."""
        until(lambda: not census.cgroups_of(self._pid), "its cgroups are gone")


def _mounts() -> list[str]:
    """What is mounted, but for the small disks of tests that run in other processes at the same time."""
    ours = os.environ.get("PYTEST_XDIST_WORKER", "")
    return [
        line
        for line in census.mounts()
        if not (worker := re.search(r"/pytest-\d+/popen-(gw\d+)/", line)) or worker[1] == ours
    ]


def kill(running: Any) -> None:
    """End a server or a host as a crash would."""
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(30)


def files_in(folder: Path) -> Iterator[str]:
    """The names of what lies in a folder and below."""
    return (str(path.relative_to(folder)) for path in folder.rglob("*"))


def fill(folder: Path) -> Path:
    """Fill a small disk to its last byte, and return the file that does."""
    filler = folder / "filler"

    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)

    return filler
