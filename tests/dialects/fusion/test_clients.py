"""Unmodified clients: verl scores programs, ByteDance's SDK runs code and cells; many at once, and too many."""

from __future__ import annotations

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import Any

import requests
from tests.waiting import until

ADDING = "a, b = map(int, input().split())\nprint(a + b)"
# Runs until it is let go.
WAITING = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)"


def _living(server: Any) -> int:
    listed = requests.get(f"{server.url}/v1/sandboxes", headers=server.headers, timeout=60)
    return len(listed.json()["items"])


def _ask(server: Any, code: str) -> int:
    body = {"code": code, "language": "python", "run_timeout": 60}
    return requests.post(f"{server.url}/run_code", json=body, headers=server.headers, timeout=60).status_code


def _let_go(server: Any) -> None:
    """Lets programs that are `WAITING` end."""
    for item in requests.get(f"{server.url}/v1/sandboxes", headers=server.headers, timeout=60).json()[
        "items"
    ]:
        # One that has ended meanwhile needs no leave.
        requests.put(
            f"{server.url}/v1/sandboxes/{item['id']}/files/content",
            params={"path": "/tmp/go"},
            data=b"",
            headers=server.headers,
            timeout=60,
        )


def test_verl_scores_what_it_generates(verl, address):
    """Right, wrong, raising, hanging and malformed programs get verl's own codes."""
    cases = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}

    results, told = verl.check_correctness(address, cases, ADDING, timeout=10)
    assert results == [True, True]
    assert [item["status"] for item in told] == ["success", "success"]

    one = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    assert verl.check_correctness(address, one, "print(4)")[0] == [False]
    assert verl.check_correctness(address, one, "1/0")[0] == [-2]
    assert verl.check_correctness(address, one, "while True: pass", timeout=1)[0] == [-3]
    assert verl.check_correctness(address, one, "int main() {", language="cpp")[0] == [-4]
    assert verl.check_correctness(address, one, "import sys\nsys.exit(3)")[0] == [-2]


def test_verl_computes_a_score(verl, address):
    """`compute_score`, as the reward manager calls it, with its semaphore and a limit of memory."""
    cases = {"inputs": ["1 2\n", "3 4\n", "5 6\n"], "outputs": ["3\n", "7\n", "0\n"]}
    fenced = f"Here:\n```python\n{ADDING}\n```\n"
    score, told = verl.compute_score(address, threading.Semaphore(4), 1024, fenced, cases, continuous=True)

    assert round(float(score), 2) == 0.67
    assert [item["status"] for item in told] == ["success", "success", "wrong_answer"]


def test_64_calls_at_once_are_all_right(verl, address):
    """Each of 64 callers gets its own answer."""

    def ask(number: int) -> object:
        case = {"inputs": [f"{number} {number}\n"], "outputs": [f"{2 * number}\n"]}
        return verl.check_correctness(address, case, ADDING, timeout=30)[0]

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == [[True]] * 64


def test_overload_waits_and_is_then_a_504(start_server):
    """One place and two in the queue: the fourth is told to come back, the others are served."""
    server = start_server(max_concurrent_runs=1, max_queued_runs=2, pool_size=1)

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(_ask, server, WAITING) for _ in range(6)]
        # Nobody is let go before all others have been refused.
        refused = list(islice(as_completed(asked), 3))

        until(lambda: _let_go(server) or all(future.done() for future in asked), "all others were served")

    assert [future.result() for future in refused] == [504] * 3
    assert [future.result() for future in asked if future not in refused] == [200] * 3


def test_verl_tries_again_after_a_504(verl, start_server, caplog):
    """What was refused for lack of room is asked for again by verl, and served then."""
    server = start_server(max_concurrent_runs=1, max_queued_runs=0, pool_size=1)
    address = server.url.replace("http://", f"http://u:{server.token}@") + "/run_code"
    case = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    # The first sandbox of a server takes longer than the others.
    assert _ask(server, "pass") == 200

    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.WARNING):
        holder = pool.submit(_ask, server, WAITING)
        until(lambda: _living(server), "a program that holds the only place")
        asking = pool.submit(verl.check_correctness, address, case, ADDING)
        until(lambda: "(504) on attempt 1/3" in caplog.text, "verl was refused")

        until(lambda: _let_go(server) or holder.done(), "the place is free")
        assert holder.result() == 200
        assert asking.result()[0] == [True]


def test_the_sdk_runs_code_and_cells(sdk, server):
    """ByteDance's SDK, with the token in its endpoint."""
    endpoint = server.url.replace("http://", f"http://sdk:{server.token}@")

    ran = sdk.run_code(sdk.RunCodeRequest(code="print(1+1)", language="python"), endpoint=endpoint)
    assert (ran.status, ran.run_result.stdout, ran.run_result.return_code) == ("Success", "2\n", 0)

    cells = ["a = 123", "a", "print(a)", "raise RuntimeError('no')", "a + 1"]
    told = sdk.run_jupyter(sdk.RunJupyterRequest(cells=cells), endpoint=endpoint)
    assert told.status == "Success"
    assert [cell.stdout for cell in told.cells] == ["", "", "123\n", "", ""]
    assert told.cells[1].display == [{"text/plain": "123"}]
    assert told.cells[3].error[0]["ename"] == "RuntimeError"
    assert told.cells[4].display == [{"text/plain": "124"}]


def test_a_client_that_goes_away_leaves_nothing(start_server):
    """Its program is ended with its sandbox, long before its time is over."""
    server = start_server(pool_size=1, drain_seconds=1)
    body = {"code": "while True: pass", "run_timeout": 600}

    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        text = json.dumps(body).encode()
        lines = ["POST /run_code HTTP/1.1", "Host: localhost", f"X-API-Key: {server.token}"]
        head = "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""])
        connection.sendall(head.encode() + text)

        until(lambda: _living(server), "it runs")

    until(lambda: not _living(server), "it has been ended")
