"""How a server ends while each dialect is at work, and what clients that go or do not read cost it: X05 and X08 to X11.

One server for all dialects: what is held afterwards is what was held before, whichever of them was asked.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import RunningServer
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from .dialect_scenes import new_key
from .dialects import ALL, E2B, Call, Caller, Dialect, Ids, Jupyter, LibreChat, Mcp, frame
from .ends import DEADLINE_SECONDS, Remains, client_of, fill, gauges, until

MIB = 1 << 20
SLACK = 4
ENDLESS = "open('begun', 'w').close()\nimport time\nwhile True: time.sleep(60)"
FLOOD = "for _ in range(40): print('x' * 1000000)\nopen('done', 'w').close()"
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("ends") / "state", pool_size=0)
    yield running
    assert running.stop() == 0


def busy_call(dialect: Dialect, ids: Ids, code: str) -> Call | None:
    """A request that runs code for as long as that likes; None: the dialect has one by WebSocket, or none."""
    match dialect.name:
        case "e2b":
            assert isinstance(dialect, E2B)
            return dialect.inside(ids, "POST", "/execute", {"json": {"code": code}}, 49999)
        case "fusion":
            body = {"code": code, "language": "python", "run_timeout": 60}
            return Call(method="POST", path="/run_code", given={"json": body})
        case "librechat":
            body = {"lang": "py", "code": code, "timeout": 60_000}
            return Call(method="POST", path="/librechat/exec", given={"json": body})
        case "replit":
            return Call(method="POST", path="/replit", given={"json": {"code": code}})
        case "mcp":
            assert isinstance(dialect, Mcp)
            return dialect.tool("run_code", {"sandbox_id": ids["sandbox_id"], "code": code, "timeout": 60})

    return None


def raw_request(server: Any, caller: Caller, call: Call, *, room_bytes: int = 0) -> socket.socket:
    """Send a request, and read nothing of its answer."""
    place = urlsplit(server.url)
    request = caller.client.build_request(
        call.method,
        call.path,
        headers={**({} if call.is_bare else caller.headers), **call.headers},
        **call.given,
    )
    connection = socket.socket()

    if room_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)

    connection.connect((place.hostname, place.port))
    lines = [b"%s: %s" % pair for pair in request.headers.raw]
    head = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1".encode()
    connection.sendall(b"\r\n".join([head, *lines, b"", b""]) + request.read())
    return connection


def reset(connection: socket.socket) -> None:
    """End a connection as a crash of the client's machine would."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
    connection.close()


def channels(server: Any, caller: Caller, ids: Ids, **given: Any) -> Any:
    url = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{ids['kernel_id']}/channels"
    return connect(url, additional_headers=caller.headers, max_size=None, **given)


def execute_request(code: str, number: str = "1") -> str:
    header = {
        "msg_id": number,
        "msg_type": "execute_request",
        "session": "s",
        "username": "",
        "version": "5.3",
    }
    return json.dumps(
        {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}, "channel": "shell"}
    )


def until_message(connection: Any, wanted: str) -> Any:
    while (message := json.loads(connection.recv(timeout=DEADLINE_SECONDS)))["header"]["msg_type"] != wanted:
        continue

    return message


@contextlib.contextmanager
def was_set_up(server: Any, dialect: Dialect) -> Iterator[tuple[Caller, Ids]]:
    """Somebody who speaks a dialect, with the things that it makes."""
    caller = Caller(server, dialect, new_key(server))
    # What waits for a tool would be under way until somebody answers it.
    ids = {} if isinstance(dialect, LibreChat) else dialect.set_up(caller)
    try:
        yield caller, ids
    finally:
        caller.client.close()


def settles(api: httpx2.Client, before: dict[str, float]) -> None:
    names = ("process_open_fds", "fumehood_tasks", "fumehood_sandboxes")
    until(
        lambda: (now := gauges(api)) and all(now[name] <= before[name] + SLACK for name in names),
        f"the server holds no more than {before}",
    )


def is_idle(caller: Caller, ids: Ids) -> bool:
    kernel = caller(Call(method="GET", path=f"/api/kernels/{ids['kernel_id']}")).json()
    return bool(kernel["execution_state"] == "idle")


def sandboxes(api: httpx2.Client) -> float:
    return gauges(api)["fumehood_sandboxes"]


def is_there(api: httpx2.Client, ids: Ids, name: str) -> bool:
    """Whether code in a sandbox has made this file."""
    return api.get(f"/v1/sandboxes/{ids['sandbox_id']}/files/info", params={"path": name}).status_code == 200


def has_begun(api: httpx2.Client, ids: Ids, held: float) -> bool:
    """Whether the code of a request runs: in the sandbox that it named, or in one of its own."""
    return is_there(api, ids, "begun") if "sandbox_id" in ids else sandboxes(api) > held


def has_ended(api: httpx2.Client, ids: Ids, held: float) -> bool:
    """Whether it runs no more."""
    if "sandbox_id" not in ids:
        return sandboxes(api) <= held

    given = {"code": "import os\nos.remove('begun')"}
    return api.post(f"/v1/sandboxes/{ids['sandbox_id']}/executions", json=given).json()["error"] is None


# -- X11 and X10: clients that go, or do not read


def test_x11_who_goes_ends_what_it_asked_for(server: Any, dialect: Dialect) -> None:
    """Code without end, whose client's machine has crashed: it ends, and nothing of it is held."""
    with client_of(server) as api, was_set_up(server, dialect) as (caller, ids):
        probe = dialect.probe(ids)
        assert caller(probe).is_success
        # What the probe ran in ends after its answer.
        until(lambda: sandboxes(api) == min(1, len(ids)), "nothing else is there")
        before = gauges(api)
        held = before["fumehood_sandboxes"]
        call = busy_call(dialect, ids, ENDLESS)

        if isinstance(dialect, Jupyter):
            # A notebook's code goes on when nobody listens; whoever comes back ends it.
            with channels(server, caller, ids) as first:
                first.send(execute_request(ENDLESS))
                until_message(first, "execute_input")
                reset(first.socket)

            assert caller(probe).is_success
            until(lambda: is_idle(caller, ids), "it was interrupted")

            with channels(server, caller, ids) as second:
                second.send(execute_request("6 * 7", "2"))
                assert until_message(second, "execute_result")["content"]["data"]["text/plain"] == "42"
        elif call is not None:
            for _ in range(2):
                connection = raw_request(server, caller, call)
                until(lambda: has_begun(api, ids, held), "the code runs")
                reset(connection)
                until(lambda: has_ended(api, ids, held), "the code has been ended")

        settles(api, before)
        assert caller(probe).is_success
        dialect.unmake(caller, ids) if ids else None


def test_x11_the_same_id_twice_names_two_requests(server: Any) -> None:
    """Ids that clients make up: of MCP's messages, Jupyter's, and the requests of LibreChat."""
    by_name = {dialect.name: dialect for dialect in ALL}
    mcp, jupyter, librechat = by_name["mcp"], by_name["jupyter"], by_name["librechat"]
    assert isinstance(mcp, Mcp)

    with was_set_up(server, mcp) as (one, ids), was_set_up(server, mcp) as (other, others):
        calls = [
            mcp.tool("run_code", {"sandbox_id": which["sandbox_id"], "code": f"'{name}'"})
            for name, which in (("a", ids), ("b", others))
        ]
        assert ["'a'" in one(calls[0]).text, "'b'" in other(calls[1]).text] == [True, True]
        assert "no sandbox has the id" in other(calls[0]).text

    with was_set_up(server, jupyter) as (caller, ids), channels(server, caller, ids) as connection:
        for _ in range(2):
            connection.send(execute_request("6 * 7"))
            assert until_message(connection, "execute_result")["content"]["data"]["text/plain"] == "42"

        jupyter.unmake(caller, ids)

    with was_set_up(server, librechat) as (caller, _), was_set_up(server, librechat) as (stranger, _):
        body = {"code": "await ask()", "tools": [{"name": "ask"}]}
        named = {"X-LibreChat-Code-Request-Id": "same"}
        start = Call(method="POST", path="/librechat/exec/programmatic", given={"json": body})
        cancel = Call(
            method="POST", path="/librechat/exec/programmatic/cancel", given={"json": {"request_id": "same"}}
        )
        tokens = [caller(start, **named).json()["continuation_token"] for _ in range(2)]
        assert tokens[0] != tokens[1]
        endless = Call(method="POST", path=start.path, given={"json": {**body, "code": ENDLESS}})
        said: list[Any] = []
        again = Caller(server, librechat, "")
        again.headers = caller.headers
        asking = threading.Thread(target=lambda: said.append(again(endless, **named).json()))
        asking.start()
        # Somebody else's request of the same id is not his to cancel; its owner's is.
        assert stranger(cancel).json() == {"cancelled": False}
        until(lambda: caller(cancel).json()["cancelled"], "the request is under way")
        asking.join(DEADLINE_SECONDS)
        assert said == [{"status": "error", "error": "cancelled"}]
        again.client.close()

        for token in tokens:
            given = {"continuation_token": token, "tool_results": []}
            caller.client.post(start.path, json=given, headers=caller.headers)


def test_x10_who_does_not_read_costs_others_nothing(server: Any, dialect: Dialect) -> None:
    """Forty megabytes for one who takes none: what waits is bounded, neighbours are answered, its end frees all."""
    with client_of(server) as api, was_set_up(server, dialect) as (caller, ids):
        probe = dialect.probe(ids)
        assert caller(probe).is_success
        # What the probe ran in ends after its answer.
        until(lambda: sandboxes(api) == min(1, len(ids)), "nothing else is there")
        before = gauges(api)
        call = busy_call(dialect, ids, FLOOD)

        if isinstance(dialect, Jupyter):
            with channels(server, caller, ids, max_queue=1) as lazy:
                lazy.send(execute_request(FLOOD))
                until(lambda: is_idle(caller, ids), "it ran to an end, whoever reads")
                reset(lazy.socket)
        elif call is not None:
            with raw_request(server, caller, call, room_bytes=4096) as connection:
                held = before["fumehood_sandboxes"]
                until(
                    lambda: is_there(api, ids, "done") if "sandbox_id" in ids else sandboxes(api) <= held,
                    "it ran to an end, whoever reads",
                )
                assert caller(probe).is_success
                reset(connection)

        grown = gauges(api)["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
        assert grown < 300 * MIB
        assert caller(probe).is_success
        settles(api, before)
        dialect.unmake(caller, ids) if ids else None


# -- X09: no descriptors left


def test_x09_without_descriptors_each_dialect_refuses_in_its_own_words(server: Any) -> None:
    """Whoever is connected is answered; what cannot be done is refused, and afterwards all is as before."""
    pid = server.process.pid

    with contextlib.ExitStack() as stack, client_of(server) as api:
        scenes = [(one, *stack.enter_context(was_set_up(server, one))) for one in ALL]

        for dialect, caller, ids in scenes:
            assert caller(dialect.probe(ids)).is_success

        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))

        try:
            for dialect, caller, ids in scenes:
                answer = caller(dialect.probe(ids))
                assert answer.is_success or answer.status_code in (429, 503, 504), (dialect.name, answer.text)
                assert "Errno" not in answer.text
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

        for dialect, caller, ids in scenes:
            assert caller(dialect.probe(ids)).is_success, dialect.name
            dialect.unmake(caller, ids) if ids else None

        assert api.get("/readyz").status_code == 200


# -- X08: no disk left


def test_x08_a_full_disk_is_reported_by_the_dialect_that_keeps_files(
    small_disk: Any, start_server: Start
) -> None:
    """LibreChat's is the only one that keeps anything: it says so, keeps no half, and goes on with room again."""
    server = start_server(small_disk, pool_size=0, dialects="librechat")
    dialect = LibreChat()
    caller = Caller(server, dialect, new_key(server))
    upload = Call(method="POST", path="/librechat/upload", given={"files": {"file": ("a", b"x" * MIB)}})
    first = caller(upload).json()
    filler = fill(small_disk)
    kept = sorted(path for path in (small_disk / "blobs").rglob("*") if path.is_file())
    refused = caller(upload)
    assert refused.status_code in (503, 507), refused.text
    assert "No space" not in refused.text
    kept_file = f"/librechat/download/{first['session_id']}/{first['files'][0]['fileId']}"
    assert caller(Call(method="GET", path=kept_file)).content == b"x" * MIB
    assert sorted(path for path in (small_disk / "blobs").rglob("*") if path.is_file()) == kept
    filler.unlink()
    assert caller(upload).is_success
    caller.client.close()
    assert server.stop() == 0


# -- X05: a graceful end


def test_x05_a_server_ends_though_every_dialect_is_busy(start_server: Start) -> None:
    """New work is refused in every dialect's words, what runs is cut off and told, and nothing is left."""
    server = start_server(pool_size=0, drain_seconds=2)

    with contextlib.ExitStack() as stack, client_of(server) as api:
        scenes = {one.name: (one, *stack.enter_context(was_set_up(server, one))) for one in ALL}
        held = sandboxes(api)
        answers: dict[str, Any] = {}
        threads = []

        for name, (dialect, caller, ids) in scenes.items():
            call = busy_call(dialect, ids, ENDLESS)

            if call is not None:
                threads.append(threading.Thread(target=heard, args=(server, caller, call, name, answers)))
                threads[-1].start()

        dialect, caller, ids = scenes["jupyter"]
        kernel = stack.enter_context(channels(server, caller, ids))
        kernel.send(execute_request(ENDLESS))
        until_message(kernel, "execute_input")
        # Two run in sandboxes that were there, three in one each.
        until(
            lambda: all(is_there(api, scenes[name][2], "begun") for name in ("e2b", "mcp")), "they are busy"
        )
        until(lambda: sandboxes(api) == held + 3, "all are busy")
        remains = Remains(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: api.get("/readyz").status_code == 503, "the server drains")

        for name, (dialect, caller, ids) in scenes.items():
            probe = dialect.probe(ids)

            if not probe.path.endswith(("/interrupt", "/cancel")):
                refused = caller(probe)
                assert refused.status_code == 503, (name, refused.text)
                assert refused.headers["retry-after"] == "1"

        assert server.process.wait(DEADLINE_SECONDS) == 1

        for thread in threads:
            thread.join(DEADLINE_SECONDS)

        with contextlib.suppress(ConnectionClosed):
            while kernel.recv(timeout=DEADLINE_SECONDS):
                continue

    assert set(answers) == {"e2b", "fusion", "librechat", "replit", "mcp"}
    assert [name for name, said in answers.items() if "Traceback" in said] == []
    remains.assert_ended()
    remains.assert_swept()
    assert "lock" not in os.listdir(server.state)


def heard(server: Any, caller: Caller, call: Call, name: str, answers: dict[str, Any]) -> None:
    """What a client hears whose request is cut off: an answer, or the end of its stream."""
    with raw_request(server, caller, call) as connection:
        connection.settimeout(DEADLINE_SECONDS)
        said = b""

        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                said += piece

    answers[name] = said.decode("utf-8", "replace")


def test_x05_code_that_waits_for_its_client_gets_what_it_waits_for(start_server: Start) -> None:
    """A server that ends lets what was begun go on: results of tools and the standard input of commands arrive."""
    server = start_server(pool_size=0, drain_seconds=60)
    librechat, e2b = LibreChat(), E2B()

    with contextlib.ExitStack() as stack:
        caller = Caller(server, librechat, new_key(server))
        body = {"code": "print(await ask())", "tools": [{"name": "ask"}]}
        start = Call(method="POST", path="/librechat/exec/programmatic", given={"json": body})
        waiting = caller(start).json()
        holder, ids = stack.enter_context(was_set_up(server, e2b))
        begin = {"process": {"cmd": "/bin/cat"}, "stdin": True, "tag": "t"}
        stream = {"Content-Type": "application/connect+json"}
        call = e2b.inside(ids, "POST", "/process.Process/Start", {"content": frame(begin)})
        command = raw_request(
            server, holder, Call(**{**vars_of(call), "headers": {**call.headers, **stream}})
        )
        said = b""

        while b'"pid"' not in said:
            said += command.recv(4096)

        server.process.send_signal(signal.SIGTERM)
        api = stack.enter_context(client_of(server))
        until(lambda: api.get("/readyz").status_code == 503, "the server drains")
        assert caller(start).status_code == 503
        results = [{"call_id": one["id"], "result": "yes"} for one in waiting["tool_calls"]]
        given = {"continuation_token": waiting["continuation_token"], "tool_results": results}
        ended = caller(Call(method="POST", path=start.path, given={"json": given}))
        assert ended.json()["stdout"] == "yes\n"
        data = {"process": {"tag": "t"}, "input": {"stdin": base64.b64encode(b"word").decode()}}
        assert holder(e2b.inside(ids, "POST", "/process.Process/SendInput", {"json": data})).is_success
        ends = {"process": {"tag": "t"}}
        assert holder(e2b.inside(ids, "POST", "/process.Process/CloseStdin", {"json": ends})).is_success

        while piece := command.recv(4096):
            said += piece

        command.close()
        caller.client.close()
        assert base64.b64encode(b"word") in said

    assert server.process.wait(DEADLINE_SECONDS) == 0


def vars_of(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in ("method", "path", "headers", "given", "is_bare")}
