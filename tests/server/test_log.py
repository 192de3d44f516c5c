"""The log of a real `fumehood serve`: what an operator finds in it, and what never is in it."""

from __future__ import annotations

import json
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

_SECONDS = 60
# In a sandbox: announces more than it sends, as a server that dies does.
CUTTING = """
import socket, threading
listener = socket.create_server(('127.0.0.1', 8000))
def serve():
    while True:
        line = listener.accept()[0]
        line.recv(65536)
        line.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 20\\r\\n\\r\\nok')
        line.close()
threading.Thread(target=serve, daemon=True).start()
"""
THREAD = "import threading; threading.Thread(target=threading.Event().wait, name='{marker}').start()"
PIPELINED = b"GET /healthz HTTP/1.1\r\n"
UPGRADE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Log:
    """The lines of a server that writes JSON.

    Args:
        server: The server.
    """

    def __init__(self, server: RunningServer) -> None:
        self.server = server

    @property
    def text(self) -> str:
        """All that it has written."""
        return "".join(self.server.said)

    def lines(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of an event with these fields."""
        found = [json.loads(line) for line in self.server.said]
        return [
            line
            for line in found
            if line.get("event") == event and all(line.get(name) == fields[name] for name in fields)
        ]

    def one(self, event: str, **fields: object) -> dict[str, Any]:
        """The line of an event, which may still be on its way."""
        until(lambda: self.lines(event, **fields))
        (line,) = self.lines(event, **fields)
        return line

    def faults(self) -> list[str]:
        """What it has written of faults of its own."""
        return [line for line in self.server.said if json.loads(line)["level"] == "error"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    server = RunningServer(
        tmp_path_factory.mktemp("log") / "state",
        log_format="json",
        log_level="debug",
        pool_size=0,
        max_sandboxes=2,
        slow_request_seconds=0.5,
        max_body_bytes=100_000,
        max_network="listed",
    )
    yield Log(server)
    server.stop()


@pytest.fixture
def client(log: Log) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=log.server.url, headers=log.server.headers, timeout=_SECONDS) as client:
        yield client


def test_the_start_names_address_version_and_settings(log: Log) -> None:
    line = log.one("server.started")
    assert line["address"] == log.server.url
    assert line["settings"]["max_sandboxes"] == 2
    assert line["settings"]["token"] == "***"
    assert log.server.token not in log.text
    assert (line["level"], line["logger"]) == ("info", "fumehood.server")


def test_in_text_the_start_names_the_settings_that_differ(tmp_path: Path) -> None:
    """Never the token, and none of the many that are as always."""
    server = RunningServer(tmp_path / "state", max_sandboxes=3, pool_size=0)
    try:
        until(lambda: any("the server listens" in line for line in server.said))
        (line,) = [line for line in server.said if "the server listens" in line]
        assert '"max_sandboxes": 3' in line or "max_sandboxes=3" in line
        assert "log_format" not in line
        assert "token=" not in line
        assert server.token not in "".join(server.said)
    finally:
        server.stop()


def test_a_request_is_one_line_with_its_id_and_key(log: Log, client: httpx2.Client) -> None:
    name = secrets.token_hex(8)
    answer = client.get("/v1/info", headers={"X-Request-Id": name})
    assert answer.headers["x-request-id"] == name
    line = log.one("request.served", request_id=name)
    assert (line["method"], line["route"], line["status"], line["key_id"]) == (
        "GET",
        "/v1/info",
        200,
        "owner",
    )
    assert line["address"] == "127.0.0.1"
    assert log.one("key.used", request_id=name)["key_id"] == "owner"


@pytest.mark.parametrize("name", ["a b", "x" * 129, "a\tb", 'a"}'])
def test_an_id_that_is_none_is_replaced(log: Log, client: httpx2.Client, name: str) -> None:
    given = client.get("/v1/info", headers={"X-Request-Id": name}).headers["x-request-id"]
    assert given != name
    log.one("request.served", request_id=given)


def test_a_probe_is_logged_when_debugging(log: Log, client: httpx2.Client) -> None:
    given = client.get("/healthz").headers["x-request-id"]
    assert log.one("probe.served", request_id=given)["level"] == "debug"


def test_a_refused_key_has_a_reason_and_no_token(log: Log, client: httpx2.Client) -> None:
    token = f"fh_{secrets.token_hex(8)}"
    answer = client.get("/v1/info", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401
    line = log.one("key.refused", request_id=answer.headers["x-request-id"])
    assert "not known" in line["reason"]
    made = client.post("/v1/keys", json={"name": "weak", "scopes": ["execute"]}).json()
    answer = client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.status_code == 403
    line = log.one("key.refused", request_id=answer.headers["x-request-id"])
    assert "scope" in line["reason"]
    assert line["key_id"] == made["key"]["id"]
    assert token not in log.text
    assert made["token"] not in log.text


def test_changes_of_keys_have_lines(log: Log, client: httpx2.Client) -> None:
    """Who changed which field of which key, not its value; and how many sandboxes ended with it."""
    made = client.post("/v1/keys", json={"name": "first"}).json()
    key_id = made["key"]["id"]
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert client.post("/v1/sandboxes", json={}, headers=headers).status_code == 201
    answer = client.patch(f"/v1/keys/{key_id}", json={"name": "hush", "policy": {"max_sandboxes": 3}})
    assert answer.status_code == 200, answer.text
    line = log.one("key.changed", request_id=answer.headers["x-request-id"])
    assert (line["key_id"], line["by"]) == (key_id, "owner")
    assert line["fields"] == ["name", "policy.max_sandboxes"]
    assert "hush" not in log.text
    answer = client.delete(f"/v1/keys/{key_id}")
    line = log.one("key.revoked", request_id=answer.headers["x-request-id"])
    assert (line["key_id"], line["by"], line["sandboxes_ended"]) == (key_id, "owner", 1)


def test_a_request_before_any_route_has_a_line(log: Log, client: httpx2.Client) -> None:
    answer = client.get("/v1/info", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert log.one("request.refused", request_id=answer.headers["x-request-id"])["status"] == 421
    answer = client.post("/v1/execute", content=b" " * 200_000)
    assert answer.status_code == 413
    assert log.one("request.refused", request_id=answer.headers["x-request-id"])["status"] == 413


def test_a_quota_that_is_used_up_has_a_line(log: Log, client: httpx2.Client) -> None:
    made = client.post("/v1/keys", json={"name": "few", "policy": {"max_sandboxes": 0}}).json()
    answer = client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.status_code == 429, answer.text
    line = log.one("quota.refused", request_id=answer.headers["x-request-id"])
    assert (line["key_id"], line["quota"], line["maximum"]) == (made["key"]["id"], "sandboxes", 0)


def test_a_slow_request_has_a_line(log: Log, client: httpx2.Client) -> None:
    answer = client.post("/v1/execute", json={"code": "import time; time.sleep(1)"})
    assert answer.status_code == 200
    line = log.one("request.slow", request_id=answer.headers["x-request-id"])
    assert line["duration_seconds"] > 0.9
    assert line["threshold_seconds"] == 0.5


def test_every_line_is_an_object_to_the_end(start_server: Callable[..., RunningServer]) -> None:
    """Also those of the end; there is nothing beside them."""
    server = start_server(log_format="json", pool_size=0)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.said]
    said = [line.get("event") for line in lines]
    assert set(said[said.index("server.ending") + 1 : -1]) >= {"engine.ended"}
    assert said[-1] == "server.ended"
    assert lines[-1]["exit_code"] == 0


def test_a_level_leaves_out_what_is_below_it(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(log_level="error", pool_size=0)
    assert server.stop() == 0
    assert not [line for line in server.said if " fumehood." in line]


def test_the_console_format_is_text(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(pool_size=0)
    httpx2.get(f"{server.url}/v1/info", headers=server.headers, timeout=_SECONDS)
    server.stop()
    (line,) = [line for line in server.said if "route=/v1/info" in line]
    assert "INFO    fumehood.server: request method=GET route=/v1/info status=200" in line
    assert "request_id=" in line


# -- sandboxes


def connected(server: RunningServer) -> socket.socket:
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname, place.port), timeout=_SECONDS)


@pytest.fixture
def sandbox_id(client: httpx2.Client) -> Iterator[str]:
    made = client.post("/v1/sandboxes", json={})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    client.delete(f"/v1/sandboxes/{made.json()['id']}")


def run(client: httpx2.Client, sandbox_id: str, code: str, **given: object) -> dict[str, Any]:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code, **given})
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    return execution


def test_the_engine_says_what_it_starts_with(log: Log, client: httpx2.Client, sandbox_id: str) -> None:
    line = log.one("engine.started")
    assert (line["max_sandboxes"], line["required_level"]) == (2, "namespaces")
    started = log.one("template.started")
    assert (started["template"], started["isolation_level"]) == ("default", "namespaces")
    assert log.one("runtime.chosen")["layers"]


def test_a_sandbox_has_a_line_at_each_end(log: Log, client: httpx2.Client) -> None:
    made = client.post("/v1/sandboxes", json={})
    sandbox_id = made.json()["id"]
    line = log.one("sandbox.created", sandbox_id=sandbox_id)
    assert line["request_id"] == made.headers["x-request-id"]
    assert (line["template"], line["owner"], line["isolation_level"]) == ("default", "owner", "namespaces")
    killed = client.delete(f"/v1/sandboxes/{sandbox_id}")
    line = log.one("sandbox.ended", sandbox_id=sandbox_id)
    assert (line["reason"], line["level"]) == ("killed", "info")
    assert line["lifetime_seconds"] > 0
    assert line["request_id"] == killed.headers["x-request-id"]
    assert log.one("request.served", request_id=killed.headers["x-request-id"])["sandbox_id"] == sandbox_id


@pytest.mark.parametrize("behind", [b"", PIPELINED], ids=["alone", "before another"])
def test_an_answer_that_a_guest_cuts_off_is_no_fault(
    log: Log, client: httpx2.Client, sandbox_id: str, behind: bytes
) -> None:
    """Also where the client has sent its next request already."""
    run(client, sandbox_id, CUTTING)
    head = f"Host: localhost\r\nAuthorization: Bearer {log.server.token}\r\n\r\n".encode()
    path = f"/v1/sandboxes/{sandbox_id}/ports/8000/"

    with connected(log.server) as line:
        line.sendall(b"GET %s HTTP/1.1\r\n%b%b" % (path.encode(), head, behind and behind + head))
        # What came is delivered, and then the reset.
        with pytest.raises(ConnectionResetError):
            list(iter(lambda: line.recv(4096), b""))

    # In the log in order: whatever there was to say comes before this.
    log.one("request.served", request_id=client.get("/v1/info").headers["x-request-id"])
    assert log.lines("answer.broken_off")
    assert log.faults() == []


@pytest.mark.parametrize("path", ["ports/9/", "ports/8000/w?a#b"])
def test_a_websocket_that_is_refused_is_one_line_with_its_status(
    log: Log, client: httpx2.Client, sandbox_id: str, path: str
) -> None:
    """By a port where nothing listens, and by what is no path."""
    with connected(log.server) as line:
        line.sendall(UPGRADE % (f"/v1/sandboxes/{sandbox_id}/{path}".encode(), log.server.token.encode()))
        answer = b"".join(iter(lambda: line.recv(4096), b""))

    status = int(answer.split()[1])
    name = answer.lower().partition(b"x-request-id: ")[2].partition(b"\r")[0].decode()
    assert log.one("request.served", request_id=name)["status"] == status
    assert status in (422, 502)
    assert log.faults() == []


def test_a_client_that_leaves_in_a_handshake_is_no_fault(
    log: Log, client: httpx2.Client, sandbox_id: str
) -> None:
    """The server inside takes its time, and the client does not wait for it."""
    run(client, sandbox_id, "import socket\nsilent = socket.create_server(('127.0.0.1', 8001))")

    with connected(log.server) as line:
        line.sendall(
            UPGRADE % (f"/v1/sandboxes/{sandbox_id}/ports/8001/".encode(), log.server.token.encode())
        )
        run(client, sandbox_id, "inside = silent.accept()")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    run(client, sandbox_id, "inside[0].close()")
    line = log.one("request.served", method="WEBSOCKET", sandbox_id=sandbox_id)
    assert line["status"] in (499, 502)
    assert log.faults() == []


def test_the_end_of_a_lifetime_has_a_line_of_no_request(log: Log, client: httpx2.Client) -> None:
    sandbox_id = client.post("/v1/sandboxes", json={"timeout_seconds": 1}).json()["id"]
    line = log.one("sandbox.ended", sandbox_id=sandbox_id)
    assert line["reason"] == "expired"
    assert "request_id" not in line
    sandbox_id = client.post("/v1/sandboxes", json={"idle_timeout_seconds": 1}).json()["id"]
    assert log.one("sandbox.ended", sandbox_id=sandbox_id)["reason"] == "idle"


def test_code_that_is_stopped_has_a_line(log: Log, client: httpx2.Client, sandbox_id: str) -> None:
    ran = run(client, sandbox_id, "while True: pass", timeout_seconds=0.5)
    line = log.one("execution.stopped", execution_id=ran["id"])
    assert (line["reason"], line["sandbox_id"], line["context_id"]) == ("time_limit", sandbox_id, "default")


def test_code_without_memory_has_a_line(log: Log, client: httpx2.Client) -> None:
    made = client.post("/v1/sandboxes", json={"limits": {"memory_bytes": 128 << 20}})
    assert made.status_code == 201, made.text
    sandbox_id = made.json()["id"]
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": "a = b'x' * (1 << 30)"})

    # Of its own control group the kernel ends one process; where memory is watched, it may be all of them.
    if answer.status_code == 200 and answer.json()["error"]["kind"] != "exception":
        line = log.one("execution.stopped", execution_id=answer.json()["id"])
        assert (line["reason"], line["state_lost"]) == ("out_of_memory", True)

    client.delete(f"/v1/sandboxes/{sandbox_id}")


def test_a_host_that_is_full_has_a_line(log: Log, client: httpx2.Client) -> None:
    made = [client.post("/v1/sandboxes", json={}) for _ in range(3)]
    assert [answer.status_code for answer in made] == [201, 201, 503]
    line = log.one("admission.refused", request_id=made[2].headers["x-request-id"])
    assert (line["resource"], line["used"], line["maximum"], line["owner"]) == ("sandboxes", 2, 2, "owner")

    for answer in made[:2]:
        client.delete(f"/v1/sandboxes/{answer.json()['id']}")


def test_a_violation_of_the_protocol_has_a_line_with_its_rule(
    log: Log, client: httpx2.Client, sandbox_id: str
) -> None:
    """The guest's channel is its to write to, by whatever code finds it."""
    code = (
        "import os, socket, stat\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try:\n"
        "        if stat.S_ISSOCK(os.fstat(int(name)).st_mode): os.write(int(name), b'\\xff' * 64)\n"
        "    except OSError: pass\n"
    )
    client.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code})
    line = log.one("sandbox.failed", sandbox_id=sandbox_id)
    assert (line["reason"], line["level"]) == ("protocol_violation", "warning")
    assert line["rule"]


def test_a_connection_that_is_refused_has_a_line(log: Log, client: httpx2.Client) -> None:
    made = client.post("/v1/sandboxes", json={"network": {"allow": ["allowed.example"]}})
    assert made.status_code == 201, made.text
    sandbox_id = made.json()["id"]
    code = (
        "import socket\n"
        "with socket.create_connection(('127.0.0.1', 3128)) as s:\n"
        "    s.sendall(b'CONNECT refused.example:443 HTTP/1.1\\r\\nHost: refused.example:443\\r\\n\\r\\n')\n"
        "    s.recv(100)\n"
    )
    run(client, sandbox_id, code)
    line = log.one("egress.refused", sandbox_id=sandbox_id)
    assert (line["host"], line["port"], line["kind"]) == ("refused.example", 443, "connect")
    client.delete(f"/v1/sandboxes/{sandbox_id}")


def test_a_fork_that_fails_has_a_line(log: Log, client: httpx2.Client, sandbox_id: str) -> None:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/forks", json={"count": 1, "checkpoint_id": "none"})
    assert answer.status_code == 404, answer.text
    line = log.one("fork.failed", sandbox_id=sandbox_id)
    assert line["request_id"] == answer.headers["x-request-id"]


def test_a_checkpoint_that_fails_has_a_line(log: Log, client: httpx2.Client, sandbox_id: str) -> None:
    run(client, sandbox_id, "import threading; threading.Thread(target=threading.Event().wait).start()")
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/checkpoints", json={"strict": True})
    assert answer.status_code == 409, answer.text
    assert log.one("checkpoint.failed", sandbox_id=sandbox_id)["code"] == "checkpoint"


def test_neither_code_nor_output_nor_secrets_are_logged(log: Log, client: httpx2.Client) -> None:
    """At the level that says most: in code, its output and errors, files, names, the environment, and bad requests."""
    marker = f"marker{secrets.token_hex(8)}"
    made = client.post("/v1/sandboxes", json={"envs": {"SECRET": marker}, "metadata": {"note": marker}})
    sandbox_id = made.json()["id"]
    place = f"/v1/sandboxes/{sandbox_id}"

    for code in (
        f"print('{marker}'); '{marker}'",
        f"raise ValueError('{marker}')",
        f"{marker} = 1; import os; os.write(2, b'{marker}')",
        f"{marker} = (",
        f"open('/proc/{marker}')",
        f"import sys; sys.exit('{marker}')",
        f"# {marker}\nwhile True: pass",
        f"# {marker}\nimport os; os._exit(3)",
    ):
        run(client, sandbox_id, code, timeout_seconds=1)

    client.post(f"{place}/executions", json={"code": marker, "made_up": marker})
    client.post(f"{place}/executions", content=f'{{"code": "{marker}'.encode())
    client.post(f"{place}/commands", json={"command": f"echo {marker}"})
    client.put(f"{place}/files/content", params={"path": marker}, content=marker.encode())
    client.get(f"{place}/files/content", params={"path": f"/{marker}"})
    client.get(f"/{marker}", params={"token": marker}, headers={"User-Agent": marker, "Cookie": marker})
    client.post("/v1/execute", json={"code": f"print('{marker}')"}, headers={"Idempotency-Key": marker})
    # Words of a guest in the errors of the host: of a thread's name, and of what a fork writes before it ends.
    run(client, sandbox_id, THREAD.format(marker=marker))
    kept = client.post(f"{place}/checkpoints", json={"strict": True})
    assert (kept.status_code, marker in kept.text) == (409, True), kept.text
    client.post(f"{place}/checkpoints/{marker}/rollback")
    client.post(f"{place}/forks", json={"count": 1, "checkpoint_id": marker})
    client.delete(place)
    log.one("sandbox.ended", sandbox_id=sandbox_id)
    # Control: all of it was under way.
    assert log.lines("execution.stopped", sandbox_id=sandbox_id)
    assert log.lines("fork.failed", sandbox_id=sandbox_id)
    assert log.lines("checkpoint.failed", sandbox_id=sandbox_id)[0]["reason"] == "not everything can be kept"
    assert marker not in log.text
    assert log.server.token not in log.text
