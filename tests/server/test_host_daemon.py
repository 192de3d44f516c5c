"""The host daemon: sandboxes outlive the server in front of them, and a host that dies is told truthfully."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests import forked
from tests.forked import ForkedCommand

from fumehood.client.backend import HttpBackend
from fumehood.client.connection import ServerAddress
from fumehood.errors import TemplateError
from fumehood.values.limits import Limits
from fumehood.values.requests import ExecuteRequest, ReadFile, SandboxSpec
from fumehood.values.stateless import StatelessReply, StatelessRequest

from .ends import Following, Remains, client_of, files_in, kill, new_sandbox, run, until

Start = Callable[..., Any]
USAGE = 64


@pytest.fixture
def start_server(start_server: Start) -> Start:
    """Starts servers that have nothing but what these tests need, for the sake of time."""
    return lambda *given, **flags: start_server(*given, **{"pool_size": 0, "dialects": "", **flags})


def host_client(host: Any) -> httpx2.Client:
    return httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(host.socket)), base_url="http://host", timeout=60
    )


def problem(answer: httpx2.Response) -> tuple[int, str, bool]:
    body = answer.json()
    return answer.status_code, body["code"], body["outcome_unknown"]


# -- what is made again elsewhere


def test_a_machine_that_is_back_ends_what_was_restored_elsewhere(start_host: Start) -> None:
    """A server says that it was lost: those with `on_host_loss="restore"` end for that reason, and no others."""
    host = start_host()

    with host_client(host) as api:
        kept, restored = (new_sandbox(api, **given) for given in ({}, {"on_host_loss": "restore"}))
        fork = api.post(f"/v1/sandboxes/{restored}/forks", json={"count": 1}).json()["items"][0]
        assert fork["on_host_loss"] == "raise"
        assert api.get(f"/v1/sandboxes/{restored}").json()["on_host_loss"] == "restore"
        first = api.get("/v1/host/figures").json()
        assert "host_loss" in first["abilities"]
        again = api.get("/v1/host/figures", params={"lease": first["lease"]})
        assert again.status_code == 200
        assert len(api.get("/v1/sandboxes").json()["items"]) == 3

        assert api.get("/v1/host/figures", params={"lost": "true"}).status_code == 200
        answer = api.get(f"/v1/sandboxes/{restored}")
        assert problem(answer)[:2] == (410, "sandbox_closed")
        assert answer.json()["fields"]["reason"] == "lost"
        left = {one["id"] for one in api.get("/v1/sandboxes").json()["items"] if one["state"] == "running"}
        assert left == {kept, fork["id"]}


# -- what outlives what


def test_a_servers_crash_leaves_the_sandboxes(start_host: Start, start_server: Start, tmp_path: Path) -> None:
    """Another server over the same host and database goes on with the same keys, ids and variables."""
    host = start_host()
    first = start_server(tmp_path / "state", host_socket=host.socket)

    with client_of(first) as owner:
        mine, other = (owner.post("/v1/keys", json={"name": name}).json()["token"] for name in "ab")

    with client_of(first, mine) as api:
        sandbox_id = new_sandbox(api)
        run(api, sandbox_id, "x = 41")

    kill(first)
    second = start_server(tmp_path / "state", host_socket=host.socket)

    with client_of(second, mine) as api, client_of(second, other) as stranger, client_of(second) as owner:
        place = f"/v1/sandboxes/{sandbox_id}"
        assert run(api, sandbox_id, "x + 1")["text"] == "42"
        assert [one["id"] for one in api.get("/v1/sandboxes").json()["items"]] == [sandbox_id]
        assert stranger.get("/v1/sandboxes").json()["items"] == []
        assert problem(stranger.get(place))[:2] == (404, "sandbox_not_found")
        assert problem(stranger.post(f"{place}/executions", json={"code": "x"}))[:2] == (
            404,
            "sandbox_not_found",
        )
        assert owner.get(place).status_code == 200
        assert api.delete(place).status_code == 204
        assert owner.get("/v1/sandboxes").json()["items"] == []


def test_the_interpreter_inside_goes_on_with_the_next_server(
    start_host: Start, start_server: Start, tmp_path: Path
) -> None:
    """Over a host's socket as in one process; after a crash of the server, from the next call of a client on."""
    host = start_host()
    flags = {"host_socket": host.socket, "dialects": "e2b", "interpreter_inside": "true"}
    ask = (
        "import urllib.request\n"
        "with urllib.request.urlopen('http://localhost:49999/health', timeout=30) as answer: print(answer.status)"
    )
    first = start_server(tmp_path / "state", **flags)

    with client_of(first) as api:
        made = api.post("/sandboxes", json={"templateID": "code-interpreter-v1", "timeout": 300})
        assert made.status_code == 201, made.text
        sandbox_id = made.json()["sandboxID"]
        assert run(api, sandbox_id, ask)["logs"]["entries"][0]["text"] == "200\n"

    kill(first)
    second = start_server(tmp_path / "state", **flags)

    with client_of(second) as api:
        assert api.post(f"/sandboxes/{sandbox_id}/connect", json={"timeout": 300}).status_code == 200
        assert run(api, sandbox_id, ask)["logs"]["entries"][0]["text"] == "200\n"
        assert api.delete(f"/sandboxes/{sandbox_id}").status_code == 204


def test_a_hosts_crash_is_reported_as_it_is(start_host: Start, start_server: Start) -> None:
    """Calls under way: nobody knows. Later ones: nothing was done. Old ids: lost. New sandboxes: at once."""
    host = start_host()
    server = start_server(host_socket=host.socket)

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        place = f"/v1/sandboxes/{sandbox_id}"
        remains = Remains(host.process.pid)
        under_way = Following(
            api, f"{place}/executions", {"code": "import time; time.sleep(600)", "timeout_seconds": 600}
        )
        under_way.wait_for("started")
        kill(host)

        told = under_way.end()[-1]
        assert told["type"] == "problem"
        assert (told["problem"]["code"], told["problem"]["outcome_unknown"]) == ("host_unavailable", True)

        for answer in (
            api.get(place),
            api.post(f"{place}/executions", json={"code": "1"}),
            api.post("/v1/sandboxes", json={}),
            api.post("/v1/execute", json={"code": "1"}),
        ):
            assert problem(answer) == (503, "host_unavailable", False)
            assert answer.headers["retry-after"] == "1"
            assert str(host.socket) not in answer.text

        assert api.get("/readyz").status_code == 503
        assert api.get("/healthz").status_code == 200
        assert api.get("/metrics").status_code == 200
        remains.assert_ended()

        host = start_host(host.folder)
        until(lambda: api.get("/readyz").status_code == 200, "the host is ready")

        for answer in (
            api.get(place),
            api.post(f"{place}/executions", json={"code": "x"}),
            api.delete(place),
        ):
            assert problem(answer) == (410, "sandbox_closed", False)
            assert answer.json()["fields"]["reason"] == "lost"

        assert api.get("/v1/sandboxes").json()["items"] == []
        assert run(api, new_sandbox(api), "6 * 7")["text"] == "42"
        remains.assert_swept()


def test_a_call_without_a_stream_is_reported_as_well(start_host: Start, start_server: Start) -> None:
    """Row X15: after it was sent nobody can say, so the answer does not claim to know."""
    host = start_host()
    server = start_server(host_socket=host.socket)

    async def cut_off() -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=server.url, headers=server.headers, timeout=60) as api:
            call = asyncio.create_task(api.post("/v1/execute", json={"code": "while True: pass"}))

            while not (await api.get("/v1/info")).json()["sandboxes"]:
                assert not call.done()

            kill(host)
            return await call

    assert problem(asyncio.run(cut_off())) == (503, "host_unavailable", True)


def test_a_server_may_start_before_its_host(start_host: Start, start_server: Start, tmp_path: Path) -> None:
    """It says that it is not ready, and what it waits for; each call looks for the host anew."""
    folder = tmp_path / "later"
    server = start_server(host_socket=folder / "run" / "host.sock", ready=False)

    with client_of(server) as api:
        assert api.get("/readyz").status_code == 503
        assert problem(api.post("/v1/sandboxes", json={})) == (503, "host_unavailable", False)
        assert any("not ready until `fumehood host` listens" in line for line in server.said)

        start_host(folder)
        until(lambda: api.get("/readyz").status_code == 200, "the host is ready")
        assert run(api, new_sandbox(api), "6 * 7")["text"] == "42"


def test_without_a_daemon_ids_of_before_a_restart_are_lost(start_server: Start, tmp_path: Path) -> None:
    """The server's own host has a name that is kept, so it knows its ids again."""
    first = start_server(tmp_path / "state")

    with client_of(first) as api:
        sandbox_id = new_sandbox(api)

    first.stop()
    second = start_server(tmp_path / "state")

    with client_of(second) as api:
        answer = api.get(f"/v1/sandboxes/{sandbox_id}")
        assert problem(answer) == (410, "sandbox_closed", False)
        assert answer.json()["fields"]["reason"] == "lost"
        assert problem(api.get(f"/v1/sandboxes/{'0' * 32}"))[:2] == (404, "sandbox_not_found")


# -- what passes through


def test_ports_of_sandboxes_are_reached_through_both(start_host: Start, start_server: Start) -> None:
    """A tunnel over the unix socket behind the server's proxy."""
    server = start_server(host_socket=start_host().socket)

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        run(api, sandbox_id, "open('hello.txt', 'w').write('through')")
        body = {"argv": ["python3", "-u", "-m", "http.server", "8000"]}
        assert api.post(f"/v1/sandboxes/{sandbox_id}/commands", json=body).status_code == 201
        page = f"/v1/sandboxes/{sandbox_id}/ports/8000/hello.txt"
        answer = until(lambda: (found := api.get(page)).status_code == 200 and found, "the port answers")
        assert answer.text == "through"


def test_owners_are_named_to_a_host_alone(start_host: Start, start_server: Start) -> None:
    """A host makes and lists in anybody's name; a server's clients cannot say who they are."""
    host = start_host()

    with host_client(host) as api:
        ids = [api.post(f"/v1/sandboxes?owner={name}", json={}).json()["id"] for name in "ab"]
        assert [api.get(f"/v1/sandboxes?owner={name}").json()["items"][0]["id"] for name in "ab"] == ids
        # No answer is kept here: a request that is sent again would be done again.
        one = f"/v1/sandboxes/{ids[0]}"
        keyed = {
            "/v1/sandboxes?owner=a": {},
            f"{one}/executions": {"code": "made = 1"},
            f"{one}/forks": {"count": 1},
        }

        for path, body in keyed.items():
            refused = api.post(path, json=body, headers={"Idempotency-Key": "once"})
            assert problem(refused)[:2] == (422, "invalid_argument"), path
            assert "server in front" in refused.text

        assert len(api.get("/v1/sandboxes").json()["items"]) == 2
        assert api.get(f"/v1/sandboxes/{ids[0]}").json()["ends_at"] is None
        assert run(api, ids[0], "6 * 7")["text"] == "42"
        state = {"state": ("state", api.post(f"/v1/sandboxes/{ids[0]}/save").content)}
        loaded = api.post("/v1/sandboxes/load?owner=c", files=state).json()["sandbox"]
        assert loaded["owner"] == "c"
        assert api.delete(f"/v1/sandboxes/{loaded['id']}?wait=false").status_code == 204
        assert api.delete(f"/v1/sandboxes/{ids[0]}?wait=false").status_code == 204

        # What needs a server's database or settings is not there.
        for path in ("/v1/keys", "/v1/settings", "/v1/security-events", "/v1/shares", "/api/kernels"):
            assert api.get(path).status_code == 404, path

    with client_of(start_server(host_socket=host.socket)) as api:
        assert problem(api.post("/v1/sandboxes?owner=a", json={}))[:2] == (422, "invalid_argument")
        # A filter, for the server's owner.
        assert [item["owner"] for item in api.get("/v1/sandboxes?owner=b").json()["items"]] == ["b"]
        made = api.post("/v1/sandboxes/load?owner=a", files=state).json()["sandbox"]
        assert made["owner"] == "owner"
        path = f"/v1/sandboxes/{made['id']}/contexts/default/record"
        assert [cell["code"] for cell in api.get(path).json()["cells"]] == ["6 * 7"]


def test_reads_for_a_volume_are_named_to_a_host_alone(start_host: Start, start_server: Start) -> None:
    """Its audit record notes few of them, since code decides how many there are; a client's own are all noted."""
    host, count = start_host(), 60

    async def read(sandbox_id: str) -> None:
        address = ServerAddress(url="http://host", socket_path=str(host.socket), is_host=True)
        backend = HttpBackend(address, asyncio.get_running_loop())
        try:
            for _ in range(count):
                request = ReadFile(path="a", length_bytes=100, volume="v")
                assert b"".join([piece async for piece in backend.read(sandbox_id, request)]) == b"1"
        finally:
            await backend.aclose()

    with client_of(start_server(host_socket=host.socket)) as api:
        place = f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}"
        api.put(f"{place}/files/content?path=a", content=b"1").raise_for_status()

        for _ in range(count):
            api.get(f"{place}/files/content?path=a", headers={"x-fumehood-volume": "v"}).raise_for_status()

        asyncio.run(read(place.rsplit("/", 1)[1]))
        kinds = [entry["kind"] for entry in api.get(f"{place}/audit").json()["entries"]]
        assert kinds.count("file_out") == count
        assert 0 < kinds.count("volume_read") < count / 2


def test_no_name_of_a_request_leads_to_another_keys_sandbox(start_host: Start, start_server: Start) -> None:
    """The server checks whose sandbox a path names; what it then asks its host for lies in that sandbox alone."""
    server = start_server(host_socket=start_host().socket)

    with client_of(server) as api:
        theirs = new_sandbox(api)
        run(api, theirs, "secret = 'of another key'")
        token = api.post("/v1/keys", json={"name": "curious"}).json()["token"]
        record = f"/v1/sandboxes/{theirs}/contexts/default/record"
        # The control: what is looked for is there.
        assert "of another key" in api.get(record).text

    with httpx2.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as curious:
        own = new_sandbox(curious)
        assert curious.get(record).status_code == 404
        up = "..%2F" * 4 + f"..%2F{theirs}%2Fcontexts%2Fdefault%2Frecord"
        dots = "%2E%2E/" * 4 + f"%2E%2E/{theirs}/contexts/default/record"

        for rest in (
            f"executions/x/results/0/{up}",
            f"executions/x/results/0/{dots}",
            "executions/x/results/0/" + "..%2F" * 6,
            f"contexts/..%2F..%2F{theirs}%2Fcontexts%2Fdefault/record",
            "contexts/%2E%2E/record",
            f"contexts/default/variables/{up}",
        ):
            answer = curious.get(f"/v1/sandboxes/{own}/{rest}")
            assert answer.status_code in (404, 422), (rest, answer.status_code)
            assert "of another key" not in answer.text


def test_a_flood_is_one_request(start_host: Start) -> None:
    """Each answer has its number, an error is the answer of its request alone, and one request carried them all."""
    host = start_host()
    specs = [SandboxSpec()] * 40 + [SandboxSpec(template="no such template")]
    requests = [
        StatelessRequest(spec=spec, code=ExecuteRequest(code=f"{number} * 2"))
        for number, spec in enumerate(specs)
    ]

    async def flood() -> dict[int, Any]:
        address = ServerAddress(url="http://host", socket_path=str(host.socket), is_host=True)
        backend = HttpBackend(address, asyncio.get_running_loop())
        try:
            return {number: answer async for number, answer in backend.run_many(requests, concurrency=4)}
        finally:
            await backend.aclose()

    answers = asyncio.run(flood())
    assert sorted(answers) == list(range(41))
    assert isinstance(answers.pop(40), TemplateError)
    assert all(isinstance(answer, StatelessReply) for answer in answers.values())
    assert [answers[number].execution.text for number in range(40)] == [
        str(number * 2) for number in range(40)
    ]

    with host_client(host) as api:
        lines = [line for line in api.get("/metrics").text.splitlines() if 'route="/v1/execute' in line]
        # What tells the host that all answers came does not count.
        sent = [line for line in lines if line.startswith("fumehood_http_requests_total") and "POST" in line]
        assert [line.rpartition(" ")[2] for line in sent] == ["1.0"]
        assert "/v1/execute/batch" in sent[0]


def test_a_flood_that_breaks_off_is_answered_for_each(start_host: Start) -> None:
    """The host dies in the middle: what came stays, each of the others hears that nobody knows."""
    host = start_host()
    codes = ["1", *["import time; time.sleep(600)"] * 3]
    requests = [
        StatelessRequest(spec=SandboxSpec(limits=Limits(wall_seconds=600)), code=ExecuteRequest(code=code))
        for code in codes
    ]

    async def flood() -> dict[int, Any]:
        address = ServerAddress(url="http://host", socket_path=str(host.socket), is_host=True)
        backend = HttpBackend(address, asyncio.get_running_loop())
        answers = {}
        try:
            async for number, answer in backend.run_many(requests, concurrency=4):
                if not answers:
                    kill(host)

                answers[number] = answer
        finally:
            await backend.aclose()

        return answers

    answers = asyncio.run(flood())
    assert answers.pop(0).execution.text == "1"
    assert [(error.code, error.outcome_unknown) for error in answers.values()] == [
        ("host_unavailable", True)
    ] * 3


# -- one socket, one daemon


def host_words(socket_path: Path, state: Path) -> list[str]:
    words = ["--socket", str(socket_path), "--state-folder", str(state), "--pool-size", "0", "--preload", ""]
    return ["host", *words]


def test_a_daemon_is_drained_from_its_own_machine(start_host: Start) -> None:
    """`fumehood host --drain` refuses new sandboxes at once, and returns when the last has ended."""
    host = start_host()

    with host_client(host) as client:
        mine = client.post("/v1/sandboxes", json={}).json()["id"]
        argv = [sys.executable, "-m", "fumehood", "host", "--drain", "--socket", str(host.socket)]

        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as draining:
            assert draining.stderr is not None
            assert "1 sandboxes live there" in draining.stderr.readline()
            assert problem(client.post("/v1/sandboxes", json={})) == (503, "capacity", False)
            assert draining.poll() is None
            client.delete(f"/v1/sandboxes/{mine}")
            assert draining.wait(60) == 0


def test_the_socket_is_closed_to_others_and_goes_with_the_daemon(start_host: Start) -> None:
    host = start_host()
    assert stat.S_IMODE(host.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(host.socket.stat().st_mode) == 0o600

    with host_client(host) as api:
        new_sandbox(api)

    remains = Remains(host.process.pid)
    assert host.stop() == 0
    remains.assert_ended()
    remains.assert_swept()
    assert sorted(files_in(host.folder)) == ["run", "state", "state/host-id"]


def test_another_user_is_not_heard(start_host: Start) -> None:
    """Whoever gets past the modes of folder and socket is still told from their credentials."""
    if os.geteuid() != 0:
        pytest.skip("needs root")

    host = start_host()

    host.socket.parent.chmod(0o755)
    host.socket.chmod(0o666)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /v1/capacity HTTP/1.1\\r\\nHost: host\\r\\n\\r\\n'); print(s.recv(1))"
    )
    # By its descriptor, since the folders above are closed as well.
    folder = os.open(host.socket.parent, os.O_PATH)

    def ask(uid: int) -> str:
        words = ["/usr/bin/env", "python3", "-I", "-c", program, f"/proc/self/fd/{folder}/host.sock"]
        done = subprocess.run(
            words, user=uid, group=uid, cwd="/", pass_fds=[folder], capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]

    try:
        assert ask(0) == "b'H'"
        assert ask(12345).partition(":")[0] in ("b''", "ConnectionResetError", "BrokenPipeError")
    finally:
        os.close(folder)

    assert until(lambda: any("another user was refused" in line for line in host.said), "it says so")


def test_x06_a_second_daemon_loses_and_a_stale_socket_is_replaced(start_host: Start, tmp_path: Path) -> None:
    """Row X06."""
    host = start_host()
    late = forked.run(host_words(host.socket, tmp_path / "other"), environ=os.environ, folder=os.getcwd())
    assert late.returncode == USAGE
    assert "end that one first" in late.stderr

    with host_client(host) as api:
        assert api.get("/v1/capacity").status_code == 200
        before = api.get("/v1/capacity").json()

    kill(host)
    assert host.socket.exists()

    with host_client(start_host(host.folder)) as api:
        after = api.get("/v1/capacity").json()

    assert after["host_id"] == before["host_id"]
    assert after["incarnation"] != before["incarnation"]


def test_x06_of_twenty_that_race_one_lives(tmp_path: Path) -> None:
    """Row X06."""
    place = tmp_path / "run" / "host.sock"
    # Forks begin closer to each other than programs that have to import first.
    racers = [ForkedCommand(host_words(place, tmp_path / "state"), os.environ) for _ in range(20)]
    try:
        lost = until(
            lambda: (ended := [one for one in racers if one.poll() is not None])[18:] and ended,
            "19 lose",
            seconds=90,
        )
        assert [one.returncode for one in lost] == [USAGE] * 19
        (winner,) = set(racers) - set(lost)

        transport = httpx2.HTTPTransport(uds=str(place))

        with httpx2.Client(transport=transport, base_url="http://host", timeout=60) as api:
            assert until(lambda: api.get("/readyz").status_code == 200, "the winner answers")

        winner.send_signal(signal.SIGTERM)
        assert winner.wait(30) == 0
    finally:
        for racer in racers:
            racer.kill()
            assert racer.stderr is not None
            racer.stderr.close()

    assert sorted(files_in(tmp_path)) == ["run", "state", "state/host-id"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.parent.chmod(0o755), "no other user can enter"),
        (lambda path: path.write_text("mine"), "nothing else is"),
        (lambda path: path.symlink_to("/dev/null"), "nothing else is"),
    ],
    ids=["an open folder", "a file", "a link"],
)
def test_what_cannot_be_a_socket_is_named(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    path = tmp_path / "run" / "host.sock"
    path.parent.mkdir(mode=0o700)
    spoil(path)
    told = forked.run(host_words(path, tmp_path / "state"), environ=os.environ, folder=os.getcwd())
    assert told.returncode == USAGE
    assert words in told.stderr


def test_a_socket_that_somebody_else_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "host.sock"
    path.parent.mkdir(mode=0o700)

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        told = forked.run(host_words(path, tmp_path / "state"), environ=os.environ, folder=os.getcwd())
        assert told.returncode == USAGE
        assert path.exists()


def test_a_name_of_its_own_is_kept_or_given(start_host: Start) -> None:
    host = start_host(host_id="abc123")

    with host_client(host) as api:
        assert new_sandbox(api).startswith("abc123")
        assert api.get("/v1/capacity").json()["host_id"] == "abc123"


def test_lines_of_server_and_host_have_the_same_request(start_host: Start, start_server: Start) -> None:
    """What the host does for a request of the server is found by its id."""
    host = start_host(log_format="json")
    server = start_server(host_socket=host.socket)

    with client_of(server) as api:
        answer = api.post("/v1/sandboxes", json={}, headers={"X-Request-Id": "one-of-ours"})
        assert answer.status_code == 201
        sandbox_id = answer.json()["id"]

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in host.said if line.startswith("{")]
        return [line for line in lines if line.get("request_id") == "one-of-ours"]

    until(lambda: {"sandbox.created", "request.served"} <= {line.get("event") for line in found()})
    assert sandbox_id in {line.get("sandbox_id") for line in found()}
