"""The REST side, several clients on one kernel, and the ends of kernels and connections."""

from __future__ import annotations

import pytest
import requests
from websockets.exceptions import ConnectionClosed

from .conftest import SECONDS, Gateway, parent_of, sandbox_of, type_of


def state_of(message) -> str | None:
    return message["content"]["execution_state"] if type_of(message) == "status" else None


def all_until_closed(channels) -> list:
    """What still comes on a connection, up to its end; the last item is the close code."""
    messages = []

    def receive_all() -> None:
        while True:
            messages.append(channels.receive())

    with pytest.raises(ConnectionClosed) as closed:
        receive_all()

    assert closed.value.rcvd is not None
    return [*messages, closed.value.rcvd.code]


def new_key(server, **policy) -> Gateway:
    answer = requests.post(
        f"{server.url}/v1/keys", json={"name": "tester", **policy}, headers=server.headers, timeout=SECONDS
    )
    assert answer.status_code == 201, answer.text
    return Gateway(server.url, answer.json()["token"])


def test_the_server_says_what_it_is(gateway, server):
    assert requests.get(f"{server.url}/api", timeout=SECONDS).json()["version"].startswith("2.")
    status = gateway.call("GET", "/api/status").json()
    assert set(status) == {"started", "last_activity", "connections", "kernels"}
    assert gateway.call("GET", "/api/me").json()["identity"]["username"] == "owner"


def test_specs_are_python_and_bash(gateway):
    listed = gateway.call("GET", "/api/kernelspecs").json()
    one = gateway.call("GET", "/api/kernelspecs/python3").json()

    assert listed["default"] == "python3"
    assert {"python3", "bash"} <= set(listed["kernelspecs"])
    assert listed["kernelspecs"]["python3"] == one
    assert one["spec"]["language"] == "python"
    logo = gateway.call("GET", one["resources"]["logo-svg"])
    assert logo.headers["Content-Type"] == "image/svg+xml"
    assert gateway.call("GET", "/api/kernelspecs/abap").status_code == 404
    assert gateway.call("GET", "/kernelspecs/python3/../../etc/passwd").status_code == 404


def test_a_kernel_is_started_listed_described_and_ended(gateway):
    answer = gateway.call("POST", "/api/kernels", json={"name": "python3", "env": {"WHO": "ada"}})
    model = answer.json()
    path = f"/api/kernels/{model['id']}"

    assert answer.status_code == 201
    assert answer.headers["Location"] == path
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert model["id"] in [kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()]
    messages = gateway.connect(model["id"]).run("import os; print(os.environ['WHO'])")
    assert [message["content"]["text"] for message in messages if type_of(message) == "stream"] == ["ada\n"]
    assert gateway.call("GET", path).json()["connections"] == 1
    assert gateway.call("DELETE", path).status_code == 204
    assert gateway.call("GET", path).status_code == 404
    assert gateway.call("DELETE", path).status_code == 404


def test_bad_requests_are_refused_with_a_message(gateway):
    for options in ({"json": {"name": "abap"}}, {"json": {"env": 3}}, {"data": b"{"}, {"json": [1]}):
        answer = gateway.call("POST", "/api/kernels", **options)
        assert answer.status_code == 400, answer.text
        assert answer.json()["message"]

    for kernel_id in ("nothing", "00000000-0000-0000-0000-000000000000", "..%2f..%2fapi"):
        assert gateway.call("GET", f"/api/kernels/{kernel_id}").status_code == 404
        assert gateway.call("POST", f"/api/kernels/{kernel_id}/interrupt").status_code == 404


def test_a_restart_keeps_files_and_forgets_state(gateway):
    kernel_id = gateway.start()
    channels = gateway.connect(kernel_id)
    channels.run("x = 1\nopen('kept.txt', 'w').write('kept')")
    running = channels.execute("print('begun')\nimport time; time.sleep(600)")
    waiting = channels.execute("print('not run')")
    channels.until(lambda message: type_of(message) == "stream")

    assert gateway.call("POST", f"/api/kernels/{kernel_id}/restart").json()["id"] == kernel_id
    messages = channels.until(lambda message: state_of(message) == "idle" and parent_of(message) is None)
    replies = {
        parent_of(message): message["content"]["status"]
        for message in messages
        if type_of(message) == "execute_reply"
    }
    assert replies == {running: "error", waiting: "aborted"}
    assert [state_of(message) for message in messages if parent_of(message) is None] == ["starting", "idle"]

    messages = channels.run("print(open('kept.txt').read(), 'x' in globals())")
    assert [message["content"]["text"] for message in messages if type_of(message) == "stream"] == [
        "kept False\n"
    ]
    assert messages[-2]["content"]["execution_count"] == 1


def test_a_restart_can_be_asked_for_by_a_message(channels):
    channels.run("x = 1")
    assert channels.ask("shutdown_request", {"restart": True}, channel="control") == {
        "status": "ok",
        "restart": True,
    }
    assert channels.run("x")[-2]["content"]["ename"] == "NameError"


def test_a_shutdown_message_ends_the_kernel(gateway):
    kernel_id = gateway.start()
    channels = gateway.connect(kernel_id)
    channels.send("shutdown_request", {"restart": False}, channel="control")
    *messages, code = all_until_closed(channels)

    assert "shutdown_reply" in [type_of(message) for message in messages if message["channel"] == "control"]
    assert state_of(messages[-1]) == "dead"
    assert code == 1000
    assert gateway.call("GET", f"/api/kernels/{kernel_id}").status_code == 404


def test_everybody_sees_what_is_shown_and_who_asked_gets_the_reply(gateway):
    kernel_id = gateway.start()
    asker, listener = gateway.connect(kernel_id), gateway.connect(kernel_id, v1=True)
    msg_id = asker.execute("print('to all')")
    heard, seen = asker.answers(msg_id), listener.answers(msg_id)

    assert [type_of(message) for message in seen] == ["status", "execute_input", "stream", "status"]
    assert [type_of(message) for message in heard] == [
        "status",
        "execute_input",
        "stream",
        "execute_reply",
        "status",
    ]
    assert {message["channel"] for message in seen} == {"iopub"}


def test_who_comes_back_gets_what_was_missed(gateway):
    kernel_id = gateway.start()
    first = gateway.connect(kernel_id, session="mine")
    msg_id = first.execute("input('ready? ')\nprint('while away')", allow_stdin=True)
    question = first.until(lambda message: message["channel"] == "stdin")[-1]
    first.socket.close()

    other = gateway.connect(kernel_id, session="other")
    other.send("input_reply", {"value": ""}, channel="stdin", parent_header=question["header"])
    other.until(lambda message: state_of(message) == "idle" and parent_of(message) == msg_id)
    again = gateway.connect(kernel_id, session="mine")
    missed = again.answers(msg_id)

    assert [type_of(message) for message in missed] == ["stream", "execute_reply", "status"]


def test_a_second_connection_of_a_session_replaces_the_first(gateway):
    kernel_id = gateway.start()
    first = gateway.connect(kernel_id, session="mine")
    second = gateway.connect(kernel_id, session="mine")

    assert all_until_closed(first)[-1] == 1001
    assert second.run("1")[-1]["content"]["execution_state"] == "idle"


def test_a_malformed_frame_ends_the_connection_and_not_the_kernel(gateway):
    kernel_id = gateway.start()

    for frame in ("{", "[]", "[" * 100_000, '{"header": 5}', b"", b"\xff" * 40, b"\0\0\0\2\0\0\0\1\0\0\0\0"):
        channels = gateway.connect(kernel_id)
        channels.socket.send(frame)
        assert all_until_closed(channels) == [1007]

    for frame in (b"", b"\xff" * 64, (3).to_bytes(8, "little") * 4):
        channels = gateway.connect(kernel_id, v1=True)
        channels.socket.send(frame)
        assert all_until_closed(channels) == [1007]

    assert gateway.connect(kernel_id).run("1")[-1]["content"]["execution_state"] == "idle"


def test_a_client_that_does_not_read_is_dropped_and_the_kernel_goes_on(gateway):
    kernel_id = gateway.start()
    # Its socket takes no more after a few frames, since nobody reads what has come.
    idle = gateway.connect(kernel_id, max_queue=1)
    reader = gateway.connect(kernel_id)
    code = "from IPython.display import HTML, display\nfor _ in range(6): display(HTML('x' * 8_000_000))"

    for _ in range(3):
        messages = reader.run(code)
        assert len([message for message in messages if type_of(message) == "display_data"]) == 6

    assert all_until_closed(idle)[-1] == 1013
    assert reader.run("1")[-1]["content"]["execution_state"] == "idle"


def test_a_sandbox_that_ends_otherwise_is_a_dead_kernel(gateway):
    kernel_id = gateway.start()
    channels = gateway.connect(kernel_id)
    channels.run("1")
    answer = gateway.native("DELETE", f"/v1/sandboxes/{sandbox_of(kernel_id)}")
    assert answer.status_code == 204, answer.text
    channels.execute("print('too late')")
    *messages, code = all_until_closed(channels)

    assert "execute_reply" in [type_of(message) for message in messages]
    assert state_of(messages[-1]) == "dead"
    assert code == 1000
    assert gateway.call("GET", f"/api/kernels/{kernel_id}").status_code == 404


def test_a_kernel_of_another_key_is_not_there(gateway, server):
    stranger = new_key(server)
    kernel_id = gateway.start()
    theirs = stranger.start()

    assert stranger.call("GET", f"/api/kernels/{kernel_id}").status_code == 404
    assert stranger.call("DELETE", f"/api/kernels/{kernel_id}").status_code == 404
    assert [kernel["id"] for kernel in stranger.call("GET", "/api/kernels").json()] == [theirs]
    assert theirs not in [kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()]
    stranger.close()


def test_sessions_have_a_kernel_and_end_with_it(gateway):
    body = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": "python3"}}
    made = gateway.call("POST", "/api/sessions", json=body)
    session = made.json()
    path = f"/api/sessions/{session['id']}"
    assert made.status_code == 201
    assert gateway.call("POST", "/api/sessions", json=body).json()["id"] == session["id"]
    assert gateway.call("GET", path).json()["path"] == "a.ipynb"
    assert session["id"] in [one["id"] for one in gateway.call("GET", "/api/sessions").json()]

    renamed = gateway.call("PATCH", path, json={"path": "b.ipynb"}).json()
    assert (renamed["path"], renamed["kernel"]["id"]) == ("b.ipynb", session["kernel"]["id"])
    changed = gateway.call("PATCH", path, json={"kernel": {"name": "bash"}}).json()
    assert changed["kernel"]["name"] == "bash"
    assert gateway.call("GET", f"/api/kernels/{session['kernel']['id']}").status_code == 404

    assert gateway.call("DELETE", path).status_code == 204
    assert gateway.call("GET", path).status_code == 404
    assert gateway.call("GET", f"/api/kernels/{changed['kernel']['id']}").status_code == 404
    assert gateway.call("POST", "/api/sessions", json={"type": "notebook"}).status_code == 400


def test_requests_beyond_the_queue_are_aborted_and_the_kernel_goes_on(gateway):
    channels = gateway.connect(gateway.start())
    running = channels.execute("input('wait ')", allow_stdin=True)
    question = channels.until(lambda message: message["channel"] == "stdin")[-1]
    large = "#" * 7_000_000
    asked = [channels.execute(large) for _ in range(12)]
    aborted = channels.until(lambda message: state_of(message) == "idle" and parent_of(message) == asked[-1])
    assert "aborted" in [message["content"].get("status") for message in aborted]

    channels.send("input_reply", {"value": "go"}, channel="stdin", parent_header=question["header"])
    channels.answers(running)
    assert channels.run("'fine'")[-2]["content"]["status"] == "ok"


def test_quotas_of_a_key_are_reported_in_jupyters_way(server):
    limited = new_key(server, policy={"max_sandboxes": 1, "executions_per_day": 1})
    channels = limited.connect(limited.start())
    refused = limited.call("POST", "/api/kernels")
    assert refused.status_code == 429
    assert "sandboxes" in refused.json()["message"]

    channels.run("1")
    error = channels.run("2")[-2]["content"]
    assert (error["status"], error["ename"]) == ("error", "QuotaError")
    limited.close()


def test_a_key_without_sandboxes_has_no_kernels(server):
    stateless = new_key(server, scopes=["execute"])
    assert stateless.call("POST", "/api/kernels").status_code == 403
    assert stateless.call("GET", "/api/kernels").status_code == 403
    stateless.close()


@pytest.mark.parametrize(
    ("code", "exit_code"), [("print('begun')", 0), ("print('begun')\nwhile True: pass", 1)]
)
def test_a_server_that_ends_closes_the_channels_in_order(start_server, code, exit_code):
    server = start_server(pool_size=0, drain_seconds=1)
    gateway = Gateway(server.url, server.token)
    channels = gateway.connect(gateway.start())
    msg_id = channels.execute(code)
    channels.until(lambda message: type_of(message) == "stream")

    if exit_code == 0:
        channels.answers(msg_id)

    # 1 says that something was cut off.
    assert server.stop() == exit_code, server.said
    assert all_until_closed(channels)[-1] in (1000, 1012)
    assert [line for line in server.said if "Traceback" in line or "ERROR" in line or "never" in line] == []
    gateway.http.close()
