"""A terminal over a WebSocket: with real frames, resized, refused, and never left behind."""

from __future__ import annotations

import json

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect


@pytest.fixture
def address(server, place):
    return f"{server.url.replace('http', 'ws', 1)}{place}/pty"


def read_until(terminal, wanted):
    """Everything that is shown until `wanted` is in it."""
    shown = b""

    while wanted not in shown:
        message = terminal.recv(timeout=30)
        assert isinstance(message, bytes), message
        shown += message

    return shown


def test_a_shell_is_typed_to(server, address):
    """Bytes both ways; text says when it began and how it ended."""
    with connect(f"{address}?cols=100&rows=30&cwd=/tmp", additional_headers=server.headers) as terminal:
        started = json.loads(terminal.recv(timeout=30))
        assert started["type"] == "started"
        terminal.send(b"echo $((6 * 7)) $PWD; stty size\n")
        read_until(terminal, b"42 /tmp")
        terminal.send(json.dumps({"type": "resize", "cols": 90, "rows": 20}))
        terminal.send(b"stty size\n")
        read_until(terminal, b"20 90")
        terminal.send(b"exit 3\n")
        messages = list(terminal)

    assert json.loads(messages[-1]) == {
        "type": "exited",
        "exit_code": 3,
        "timed_out": False,
        "truncated": {"stdout_bytes": 0, "stderr_bytes": 0, "results": 0},
    }
    assert terminal.protocol.close_code == 1000


def test_a_client_that_leaves_takes_its_shell_along(server, api, place, address):
    """Nothing that it started lives on."""
    with connect(address, additional_headers=server.headers) as terminal:
        terminal.recv(timeout=30)
        terminal.send(b"sleep 1000 & sleep 1000\n")
        assert len(api.get(f"{place}/commands").json()["items"]) == 1

    while api.get(f"{place}/commands").json()["items"]:
        continue


def test_a_terminal_of_a_command_outlives_those_that_attach(server, api, place):
    """What was shown before comes again, from the byte that is asked for; who only looks cannot type."""
    body = {"argv": ["/bin/bash", "-i"], "stdin": True, "pty": {"cols": 80, "rows": 24}}
    pid = api.post(f"{place}/commands", json=body).json()["pid"]
    address = f"{server.url.replace('http', 'ws', 1)}{place}/commands/{pid}/terminal"

    with connect(address, additional_headers=server.headers) as terminal:
        assert json.loads(terminal.recv(timeout=30)) == {"type": "started", "pid": pid}
        terminal.send(b"echo $((6 * 7))x\n")
        shown = read_until(terminal, b"42x")

    with (
        connect(address, additional_headers=server.headers) as terminal,
        connect(f"{address}?after={len(shown)}&read_only=true", additional_headers=server.headers) as viewer,
    ):
        terminal.recv(timeout=30)
        assert read_until(terminal, b"42x").startswith(shown)
        viewer.recv(timeout=30)
        viewer.send(b"echo not $((6 * 7))z\n")
        terminal.send(b"echo $((6 * 8))y; exit 3\n")
        assert json.loads(list(terminal)[-1])["exit_code"] == 3
        seen = list(viewer)

    texts = [json.loads(message)["type"] for message in seen if isinstance(message, str)]
    output = b"".join(message for message in seen if isinstance(message, bytes))
    assert texts == ["problem", "exited"]
    assert b"48y" in output
    assert b"42" not in output
    headers = server.headers
    assert refusal(address) == 401
    assert refusal(address.replace(f"/{pid}/", "/4000/"), additional_headers=headers) == 404
    assert refusal(f"{address}?after=x", additional_headers=headers) == 422


def test_a_browser_gives_its_token_as_a_subprotocol(server, address):
    """It is not sent back, and not read from the address."""
    offered = ["fumehood.pty", f"fumehood.token.{server.token}"]

    with connect(address, subprotocols=offered) as terminal:
        assert terminal.subprotocol == "fumehood.pty"
        assert json.loads(terminal.recv(timeout=30))["type"] == "started"

    assert refusal(f"{address}?token={server.token}") == 401
    assert refusal(address, subprotocols=["fumehood.pty", "fumehood.token.wrong"]) == 401
    assert not any(server.token in line for line in server.said)


def test_a_refusal_has_a_status(server, address, other):
    """The upgrade is answered as any request would be."""
    headers = server.headers
    elsewhere = address.rpartition("/v1/")[0] + "/v1/sandboxes/unknown/pty"
    assert refusal(elsewhere, additional_headers=headers) == 404
    assert refusal(address, additional_headers={"Authorization": other.headers["authorization"]}) == 404
    assert refusal(f"{address}?cols=0", additional_headers=headers) == 422
    assert refusal(f"{address}?cols=wide", additional_headers=headers) == 422
    assert refusal(f"{address}?token=x", additional_headers=headers) == 422
    assert refusal(f"{address}?cwd=/nowhere", additional_headers=headers) == 422
    assert refusal(address, additional_headers={**headers, "Origin": "https://evil.test"}) == 403


def refusal(address, **given):
    with pytest.raises(InvalidStatus) as refused:
        connect(address, **given)

    return refused.value.response.status_code


@pytest.mark.parametrize(
    "text", ["", "{}", '{"type": "resize", "cols": 0}', "[" * 100_000, '{"type": "boom"}']
)
def test_what_cannot_be_understood_is_said_and_harms_nothing(server, address, text):
    """A wrong message is a problem; the shell goes on."""
    with connect(address, additional_headers=server.headers) as terminal:
        terminal.recv(timeout=30)
        terminal.send(text)
        message = terminal.recv(timeout=30)

        while isinstance(message, bytes):
            message = terminal.recv(timeout=30)

        assert json.loads(message)["problem"]["code"] == "invalid_argument"
        terminal.send(b"echo $((6 * 7))\n")
        read_until(terminal, b"42")


def test_a_flood_waits_for_its_reader(server, api, address):
    """A terminal whose reader does not read stands still; the server stays small, and others are served."""
    before = _resident_bytes(server.process.pid)

    with connect(address, additional_headers=server.headers, max_queue=1) as terminal:
        terminal.recv(timeout=30)
        terminal.send(b"yes fumehood | head -c 16000000; echo; echo en''d\n")
        assert api.get("/healthz").status_code == 200
        seen = 0
        last = b""

        while b"end\r" not in last:
            message = terminal.recv(timeout=30)
            seen += len(message)
            last = last[-10:] + message
            assert _resident_bytes(server.process.pid) - before < 60 << 20

    assert seen > 16_000_000


def test_the_end_of_the_sandbox_ends_the_terminal(server, api, place, address):
    """Its last word is why."""
    with connect(address, additional_headers=server.headers) as terminal:
        terminal.recv(timeout=30)
        api.delete(place)
        # Until the server closes the connection.
        said = list(terminal)

    assert (
        json.loads([text for text in said if isinstance(text, str)][-1])["problem"]["code"]
        == "sandbox_closed"
    )


def _resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
