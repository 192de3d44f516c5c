"""How `fumehood mcp` ends: when its host goes away, by a signal, in the middle of a call; it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .raw import WAIT_SECONDS, RawServer

_LOOK_SECONDS = 0.02


@pytest.fixture
def start() -> Iterator[Callable[..., RawServer]]:
    started: list[RawServer] = []

    def begin(**envs: str) -> RawServer:
        started.append(RawServer(**envs))
        return started[-1]

    yield begin

    for server in started:
        server.close()


def descendants(pid: int) -> list[int]:
    """All that descend from a process."""
    parents: dict[int, int] = {}

    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
        except OSError:
            continue

        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])

    found = [pid]

    for one in found:
        found += [child for child, parent in parents.items() if parent == one]

    return found[1:]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS

    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_LOOK_SECONDS)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _close_input(server: RawServer) -> None:
    assert server.process.stdin is not None
    server.process.stdin.close()


def _signal(number: int) -> Callable[[RawServer], None]:
    return lambda server: server.process.send_signal(number)


WAYS = {
    "the input ends": _close_input,
    "SIGTERM": _signal(signal.SIGTERM),
    "SIGINT": _signal(signal.SIGINT),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_and_leaves_nothing(start: Callable[..., RawServer], way: str) -> None:
    """In the middle of a call: the code waits for a file that never comes."""
    server = start()
    server.begin()
    place = server.call("create_sandbox")["structuredContent"]["sandbox_id"]
    code = "import os, time\nopen('begun', 'w')\nwhile True: time.sleep(0.01)"
    server.send("tools/call", {"name": "run_code", "arguments": {"code": code, "sandbox_id": place}})
    until(lambda: server.call("read_file", sandbox_id=place, path="begun").get("isError") is not True)
    below = descendants(server.process.pid)
    assert len(below) >= 4

    WAYS[way](server)

    assert (server.wait(), "Traceback" in server.said()) == (0, False)
    until(lambda: not any(map(is_alive, below)))


@pytest.mark.parametrize("way", [*WAYS, "the host is killed"])
def test_sandboxes_of_a_server_elsewhere_end_too(
    start: Callable[..., RawServer], server: Any, way: str, tmp_path: Path
) -> None:
    """With FUMEHOOD_URL the sandboxes live in another process, which would keep them."""

    def living() -> set[str]:
        answer = httpx2.get(f"{server.url}/v1/sandboxes", headers=server.headers, timeout=60)
        return {item["id"] for item in answer.json()["items"]}

    envs = {"FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token}
    before = living()
    kept = httpx2.post(f"{server.url}/v1/sandboxes", json={}, headers=server.headers, timeout=60).json()["id"]
    host = None

    if way == "the host is killed":
        host = _started_host(envs, tmp_path)
        (made,) = living() - before - {kept}
        host.kill()
        host.wait()
        assert host.stdin is not None
        host.stdin.close()
    else:
        ours = start(**envs)
        ours.begin()
        ours.call("run_code", code="1")
        (made,) = living() - before - {kept}
        WAYS[way](ours)
        assert ours.wait() == 0

    until(lambda: made not in living())
    # What somebody else made is not ours to end.
    assert kept in living()
    httpx2.delete(f"{server.url}/v1/sandboxes/{kept}", headers=server.headers, timeout=60)


_HOST = """
import sys
sys.path.insert(0, {folder!r})
from tests.mcp.raw import RawServer
server = RawServer(**{envs!r})
server.begin()
print(server.call("run_code", code="1")["structuredContent"]["value"], flush=True)
sys.stdin.read()
"""


def _started_host(envs: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    """A host in a process of its own, and the sandbox that its server has made."""
    script = folder / "host.py"
    script.write_text(_HOST.format(folder=str(Path(__file__).parents[2]), envs=envs))
    host = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    assert host.stdout.readline().strip() == "1"
    host.stdout.close()
    return host


def test_a_cancelled_call_ends_its_code(start: Callable[..., RawServer]) -> None:
    """The sandbox that it has made is the last one, in which the next call goes on."""
    server = start()
    server.begin()
    number = server.send(
        "tools/call",
        {"name": "run_code", "arguments": {"code": "kept = 4\nopen('begun', 'w')\nwhile True: pass"}},
    )
    until(lambda: len(server.call("list_sandboxes")["structuredContent"]["sandboxes"]) == 1)
    until(lambda: server.call("read_file", path="begun").get("isError") is not True)
    server.send("notifications/cancelled", {"requestId": number}, is_note=True)
    assert (
        server.call("run_code", code="import os; os.remove('begun'); kept")["structuredContent"]["value"]
        == "4"
    )

    # So does one that is named.
    place = server.call("run_code", code="kept = 5")["structuredContent"]["sandbox_id"]
    code = "open('begun', 'w').close()\nimport time; time.sleep(600)"
    number = server.send("tools/call", {"name": "run_code", "arguments": {"code": code, "sandbox_id": place}})
    until(lambda: server.call("read_file", sandbox_id=place, path="begun").get("isError") is not True)
    server.send("notifications/cancelled", {"requestId": number}, is_note=True)
    assert server.call("run_code", code="kept", sandbox_id=place)["structuredContent"]["value"] == "5"


def test_an_unused_sandbox_ends_by_itself(start: Callable[..., RawServer]) -> None:
    server = start()
    server.begin()
    place = server.call("create_sandbox", idle_timeout=1)["structuredContent"]["sandbox_id"]
    until(lambda: not server.call("list_sandboxes")["structuredContent"]["sandboxes"])
    result = server.call("run_code", code="1", sandbox_id=place)
    assert result["isError"]
    assert "it was idle" in result["content"][0]["text"]
    assert "create_sandbox" in result["content"][0]["text"]


_MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_client_that_goes_away_ends_its_code(server: Any, version: str) -> None:
    """Over HTTP nobody is left to be told; the sandbox is free for the next call."""
    headers = {
        **server.headers,
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "run_code",
    }

    with httpx2.Client(base_url=server.url, headers=headers, timeout=WAIT_SECONDS) as web:

        def message(code: str) -> dict[str, Any]:
            params: dict[str, Any] = {
                "name": "run_code",
                "arguments": {"code": code, "sandbox_id": place, "timeout": 600},
                "_meta": {"progressToken": 1, **(_MODERN if version == "2026-07-28" else {})},
            }
            return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

        place = web.post("/v1/sandboxes", json={}).json()["id"]
        code = "import time\nkept = 5\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"

        with web.stream("POST", "/mcp", json=message(code)) as answer:
            assert answer.status_code == 200
            assert any("begun" in line for line in answer.iter_lines())

        assert '"value":"5"' in web.post("/mcp", json=message("kept")).text.replace('": ', '":')
        web.delete(f"/v1/sandboxes/{place}")


def test_a_server_that_ends_does_not_wait_for_ever(start_server: Callable[..., Any]) -> None:
    """It waits as long as it may, and its log holds no accident."""
    server = start_server(pool_size=0, drain_seconds=0.2, dialects="mcp")
    headers = {**server.headers, "Accept": "application/json, text/event-stream"}
    arguments = {"code": "import time; time.sleep(600)", "timeout": 600}
    params = {"name": "run_code", "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answers: list[str] = []

    with httpx2.Client(base_url=server.url, headers=headers, timeout=WAIT_SECONDS) as web:
        calling = threading.Thread(target=lambda: answers.append(web.post("/mcp", json=message).text))
        calling.start()
        until(lambda: server.process.poll() is None and bool(web.get("/v1/sandboxes").json()["items"]))
        assert server.stop() == 1
        calling.join(WAIT_SECONDS)

    assert answers == [""]
    assert "Traceback" not in "".join(server.said)
