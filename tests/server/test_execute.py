"""Stateless runs over HTTP: what goes in, what comes out, many at once, and who waits for whom."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from tests.waiting import DEADLINE_SECONDS, at_some_pace, until

from fumehood.cancellation import cancel_and_wait
from fumehood.client.backend import HttpBackend
from fumehood.client.connection import ServerAddress
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.stateless import StatelessReply, StatelessRequest


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        yield client


def run(client: httpx2.Client, code: str, **fields: Any) -> Any:
    answer = client.post("/v1/execute", json={"code": code, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_code_runs_and_nothing_stays(client: httpx2.Client) -> None:
    before = {item["id"] for item in client.get("/v1/sandboxes").json()["items"]}
    first = run(client, "open('left', 'w').write('x'); x = 1; print(6 * 7)")
    assert first["execution"]["logs"]["stdout"] == ["42\n"]
    assert first["isolation"]["level"] == first["execution"]["isolation"]
    second = run(client, "import os; print(os.path.exists('left'), 'x' in globals())")
    assert second["execution"]["logs"]["stdout"] == ["False False\n"]
    # Neither is among the sandboxes that somebody holds.
    after = {item["id"] for item in client.get("/v1/sandboxes").json()["items"]}
    assert after <= before


def test_files_go_in_and_come_out(client: httpx2.Client) -> None:
    reply = run(
        client,
        "import os\nos.makedirs('out')\nopen('out/b', 'wb').write(open('a.bin', 'rb').read() * 2)\n"
        "print(open('t.txt').read())",
        files={"a.bin": {"base64": base64.b64encode(b"\x00\xff").decode()}, "t.txt": {"text": "täxt"}},
        outputs=["out", "not-there"],
    )
    assert reply["execution"]["logs"]["stdout"] == ["täxt\n"]
    assert {name: base64.b64decode(data) for name, data in reply["files"].items()} == {
        "out/b": b"\x00\xff\x00\xff"
    }


def test_input_bash_limits_and_errors(client: httpx2.Client) -> None:
    assert run(client, "print(input() + input())", stdin="a\nb\n")["execution"]["logs"]["stdout"] == ["ab\n"]
    assert run(client, "echo $X; exit 3", language="bash", envs={"X": "y"})["execution"]["error"] is not None
    failed = run(client, "1/0")["execution"]["error"]
    assert (failed["kind"], failed["name"]) == ("exception", "ZeroDivisionError")
    slow = run(client, "while True: pass", timeout_seconds=0.2)["execution"]["error"]
    assert slow["kind"] == "time_limit"
    big = run(client, "x = bytearray(1 << 30)", limits={"memory_bytes": 128 << 20})["execution"]["error"]
    assert big["kind"] in ("out_of_memory", "exception")


def test_events_stream_as_they_happen(client: httpx2.Client) -> None:
    """The first line is here while the code still waits for what the client does next."""
    body = {"code": "import time\nprint('first', flush=True)\ntime.sleep(0.2)\nprint('second')"}
    headers = {"Accept": "application/x-ndjson"}

    with client.stream("POST", "/v1/execute", json=body, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(line) for line in answer.iter_lines() if line]

    kinds = [line["type"] for line in lines]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["finished", "reply"]
    printed = [line["text"] for line in lines if line["type"] == "stdout"]
    assert "".join(printed) == "first\nsecond\n"
    assert lines[-1]["execution"] == lines[-2]["execution"]


def test_a_batch_comes_as_it_finishes(client: httpx2.Client) -> None:
    """Each line names its request, and one that fails does not disturb the others; bad ones stop all beforehand."""
    requests = [{"code": f"print({number})"} for number in range(20)]
    requests[7] = {"code": "1/0"}
    requests[8] = {"code": "1", "template": "no-such-template"}
    answer = client.post("/v1/execute/batch", json={"requests": requests})
    lines = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
    assert sorted(lines) == list(range(20))
    assert lines[3]["reply"]["execution"]["logs"]["stdout"] == ["3\n"]
    assert lines[7]["reply"]["execution"]["error"]["name"] == "ZeroDivisionError"
    assert lines[8]["problem"]["code"] == "template"
    broken = {"requests": [{"code": "print(1)"}, {"code": "1", "files": {"a": {"base64": "!"}}}]}
    assert client.post("/v1/execute/batch", json=broken).status_code == 422


def test_a_batch_is_read_on_after_its_connection_broke(client: httpx2.Client) -> None:
    """A resumable one goes on meanwhile; its lines come once each, and another key does not see it."""
    requests = [{"code": f"print({number})"} for number in range(30)]
    body = {"requests": requests, "resumable": True, "concurrency": 2}

    with client.stream("POST", "/v1/execute/batch", json=body) as answer:
        lines = answer.iter_lines()
        begun = json.loads(next(lines))
        got = [json.loads(next(lines)) for _ in range(5)]

    path = f"/v1/execute/batch/{begun['batch_id']}"
    key = client.post("/v1/keys", json={"name": "other"}).json()
    assert (
        client.get(path, headers={"Authorization": f"Bearer {key['token']}"}).json()["code"]
        == "batch_not_found"
    )
    rest = [json.loads(line) for line in client.get(path, params={"cursor": 5}).text.splitlines()]
    assert [line["cursor"] for line in got + rest] == list(range(1, 31))
    assert sorted(line["index"] for line in got + rest) == list(range(30))
    assert client.get(path, params={"cursor": 31}).status_code == 410
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_a_client_whose_connections_break_off_gets_each_answer_once(server: Any) -> None:
    """All bytes pass a relay that cuts each connection after some; nothing is lost, and nothing runs twice."""
    count = 60

    async def scene() -> tuple[list[int], int]:
        cuts = 0

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cuts
            host, port = server.url.removeprefix("http://").split(":")
            there, back = await asyncio.open_connection(host, int(port))

            async def send() -> None:
                while data := await reader.read(65536):
                    back.write(data)
                    await back.drain()

            sending = asyncio.create_task(send())
            left = 12_000

            try:
                while left > 0 and (data := await there.read(min(left, 4096))):
                    writer.write(data)
                    await writer.drain()
                    left -= len(data)
            finally:
                cuts += left <= 0
                await cancel_and_wait(sending)
                back.transport.abort()
                writer.transport.abort()

        relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = relaying.sockets[0].getsockname()[1]
        address = ServerAddress(url=f"http://127.0.0.1:{port}", token=server.token)
        backend = HttpBackend(address, asyncio.get_running_loop())
        requests = [
            StatelessRequest(spec=SandboxSpec(), code=ExecuteRequest(code=str(number)))
            for number in range(count)
        ]
        indices = []
        try:
            async for index, answer in backend.run_many(requests):
                assert isinstance(answer, StatelessReply), answer
                assert answer.execution.text == str(index)
                indices.append(index)
        finally:
            await backend.aclose()
            relaying.close()

        return indices, cuts

    before = _executions(server)
    indices, cuts = asyncio.run(scene())
    assert sorted(indices) == list(range(count))
    assert cuts >= 2
    assert _executions(server) - before == count


def _executions(server: Any) -> float:
    text = httpx2.get(f"{server.url}/metrics", headers=server.headers).text
    found = re.findall(r"^fumehood_executions_total\{.*\} (.+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_the_time_of_a_batch_is_that_of_all_its_items(client: httpx2.Client) -> None:
    """What has not begun by then is refused, and what runs goes on to its end."""

    def scene(seconds: float) -> None:
        requests = [{"code": f"import time; time.sleep({seconds}); 1"}] * 3
        body = {"requests": requests, "concurrency": 1, "timeout_seconds": seconds}
        lines = [json.loads(line) for line in client.post("/v1/execute/batch", json=body).text.splitlines()]
        assert ["reply" in line for line in lines] == [True, False, False]
        assert {line["problem"]["code"] for line in lines[1:]} == {"queue_timeout"}

    at_some_pace(scene, 0.5, 5)


def test_a_faulty_item_of_thousands_is_named(client: httpx2.Client) -> None:
    requests: list[dict[str, Any]] = [{"code": "1"}] * 2000
    requests[1234] = {"code": "1", "typo": 1}
    answer = client.post("/v1/execute/batch", json={"requests": requests})
    assert answer.status_code == 422
    assert "1234" in answer.text
    assert "typo" in answer.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        {"code": "1", "language": "klingon"},
        {"code": "1", "typo": 1},
        {"code": "1", "limits": {"memory_bytes": 1}},
        {"code": "1", "limits": {"memory": 1 << 30}},
        {"code": "1", "timeout_seconds": -1},
        {"code": "1", "files": {"a": {}}},
        {"code": "1", "files": {"a": {"text": "x", "base64": "eA=="}}},
        {"code": "1", "files": {"": {"text": "x"}}},
        {"code": "1", "envs": {"A=B": "x"}},
        {"code": "1", "outputs": ["x"] * 1001},
    ],
)
def test_bad_requests_are_named(client: httpx2.Client, body: Any) -> None:
    answer = client.post("/v1/execute", json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_argument"


def test_a_client_that_leaves_frees_its_place(start_server: Callable[..., Any]) -> None:
    """Its run ends, and the one that waited behind it is done."""
    server = start_server(max_concurrent_runs=1, pool_size=1, dialects="")

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        with client.stream(
            "POST",
            "/v1/execute",
            json={"code": "print('on', flush=True)\nwhile True: pass", "timeout_seconds": 600},
            headers={"Accept": "application/x-ndjson"},
        ) as answer:
            next(line for line in answer.iter_lines() if '"stdout"' in line)

        assert run(client, "print(1)")["execution"]["logs"]["stdout"] == ["1\n"]


def test_a_full_queue_answers_at_once(start_server: Callable[..., Any]) -> None:
    """Beyond what may wait, a request is refused with the time to come again; what waits too long is told so."""
    server = start_server(max_concurrent_runs=1, max_queued_runs=1, pool_size=1, dialects="")
    begun = threading.Event()
    hold = {"code": "print('on', flush=True)\nimport time; time.sleep(600)", "timeout_seconds": 600}

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:

        def holder() -> None:
            accept = {"Accept": "application/x-ndjson"}
            with client.stream("POST", "/v1/execute", json=hold, headers=accept) as answer:
                for line in answer.iter_lines():
                    if '"stdout"' in line:
                        begun.set()
                        # No time of its own: whoever is let go too early would make room.
                        done.wait()
                        return

        done = threading.Event()

        with ThreadPoolExecutor(3) as threads, ExitStack() as let_go:
            let_go.callback(done.set)
            held = threads.submit(holder)
            assert begun.wait(DEADLINE_SECONDS)
            late = client.post("/v1/execute", json={"code": "1", "queue_timeout_seconds": 0.05})
            assert (late.status_code, late.json()["code"]) == (504, "queue_timeout")
            waiting = threads.submit(client.post, "/v1/execute", json={"code": "print(2)"})

            until(lambda: "fumehood_queue_waiting 1.0" in client.get("/metrics").text, "one waits")
            full = client.post("/v1/execute", json={"code": "1"})
            assert (full.status_code, full.json()["code"]) == (503, "overloaded")
            assert int(full.headers["retry-after"]) >= 1
            done.set()
            held.result()
            assert waiting.result().json()["execution"]["logs"]["stdout"] == ["2\n"]


def test_many_at_once(client: httpx2.Client) -> None:
    with ThreadPoolExecutor(32) as threads:
        replies = list(threads.map(lambda number: run(client, f"print({number})"), range(100)))

    printed = [reply["execution"]["logs"]["stdout"] for reply in replies]
    assert printed == [[f"{number}\n"] for number in range(100)]
