"""What the server does when the machine has nothing left: rows X08 (disk) and X09 (descriptors)."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from .ends import fill

TICKS = os.sysconf("SC_CLK_TCK")


def test_x08_a_full_disk_is_reported_and_running_sandboxes_go_on(
    small_disk: Path, start_server: Callable[..., Any]
) -> None:
    """What must be remembered is refused by name; what lives goes on; with room again all is as before."""
    server = start_server(small_disk, pool_size=0, dialects="")

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        place = f"/v1/sandboxes/{sandbox}/executions"
        client.post(place, json={"code": "x = 42"})
        filler = fill(small_disk)
        refused = client.post("/v1/keys", json={"name": "k" * 200})

        # What SQLite still finds in pages of its own is no refusal.
        for _ in range(200):
            if refused.status_code != 201:
                break

            refused = client.post("/v1/keys", json={"name": "k" * 200})

        assert (refused.status_code, refused.json()["code"]) == (503, "storage"), refused.text
        assert str(small_disk) not in refused.text
        assert client.post(place, json={"code": "x"}).json()["text"] == "42"
        assert client.post("/v1/execute", json={"code": "6 * 7"}).json()["execution"]["text"] == "42"
        filler.unlink()
        assert client.post("/v1/keys", json={"name": "again"}).status_code == 201
        assert client.post(place, json={"code": "x"}).json()["text"] == "42"

    assert server.stop() == 0


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def test_x09_without_descriptors_the_server_waits_and_recovers(start_server: Callable[..., Any]) -> None:
    """It does not spin while it can accept nobody, and answers again as soon as there is room."""
    server = start_server(pool_size=0, dialects="")
    pid = server.process.pid
    host, port = server.url.removeprefix("http://").split(":")

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        used, unused = (client.post("/v1/sandboxes", json={}).json()["id"] for _ in range(2))
        code = {"code": "6 * 7"}
        client.post(f"/v1/sandboxes/{used}/executions", json=code)
        held = len(os.listdir(f"/proc/{pid}/fd"))
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + 10, hard))

        with contextlib.ExitStack() as idle:
            for _ in range(60):
                idle.enter_context(socket.create_connection((host, int(port)), 10))

            before = _cpu_seconds(pid)

            with socket.create_connection((host, int(port)), 10) as late:
                late.settimeout(2)
                late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

                # Nobody can be let in; the wait for that is what is measured.
                with contextlib.suppress(TimeoutError):
                    late.recv(100)

            assert _cpu_seconds(pid) - before < 1.0
            # Who was in already is served, and what cannot be done is refused by name.
            served = client.post(f"/v1/sandboxes/{used}/executions", json=code)
            assert served.json().get("text") == "42", served.text
            refused = client.post(f"/v1/sandboxes/{unused}/executions", json=code)
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded"), refused.text
            full = client.post("/v1/sandboxes", json={})
            assert full.status_code == 503, full.text
            assert full.json()["code"] in ("capacity", "overloaded")

        with httpx2.Client(base_url=server.url, timeout=30) as fresh:
            assert fresh.get("/healthz").status_code == 200

        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        served = client.post(f"/v1/sandboxes/{unused}/executions", json=code)
        assert served.json().get("text") == "42", served.text
        assert client.post("/v1/sandboxes", json={}).status_code == 201

    assert server.stop() == 0
