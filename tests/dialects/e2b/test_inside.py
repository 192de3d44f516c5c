"""The interpreter at port 49999 inside a sandbox: what programs there can do with it, and what they cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2b_code_interpreter import Sandbox

# For programs inside: one request, and its status and text.
ASK = """
import json, urllib.error, urllib.request
def ask(path, body=None, method=None, timeout=20, **headers):
    data = None if body is None else json.dumps(body).encode()
    names = {name.replace('_', '-'): value for name, value in headers.items()}
    request = urllib.request.Request('http://localhost:49999' + path, data, names, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
"""
FLOOD = """
import socket, threading
pieces = {
    'garbage': b'\\x00\\xff' * 20_000,
    'half': b'POST /execute HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 100000\\r\\n\\r\\n{',
    'pipelined': b'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' * 500,
    'chunks': b'POST /execute HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n' + b'1\\r\\nx\\r\\n' * 20_000,
    'head': b'GET /health HTTP/1.1\\r\\n' + b'A: b\\r\\n' * 20_000,
}
def flood(piece):
    for _ in range(40):
        try:
            with socket.create_connection(('127.0.0.1', 49999), timeout=1) as line:
                line.sendall(piece)
        except OSError:
            pass
threads = [threading.Thread(target=flood, args=(piece,), daemon=True) for piece in pieces.values()]
for thread in threads: thread.start()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Any]:
    """A server whose owner allows it."""
    from tests.conftest import RunningServer

    folder = tmp_path_factory.mktemp("inside") / "state"
    server = RunningServer(folder, dialects="e2b", pool_size=2, interpreter_inside="true")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared(addresses) -> Iterator[Sandbox]:
    """One sandbox for all tests, with a way to ask in its default context."""
    sandbox = Sandbox.create(timeout=600)
    assert sandbox.run_code(ASK).error is None
    yield sandbox
    sandbox.kill()


def value(sandbox: Sandbox, expression: str, before: str = "") -> Any:
    """Evaluates an expression in the default context, and returns its value."""
    execution = sandbox.run_code(f"{before}\nprint(json.dumps({expression}))")
    assert execution.error is None, execution.error
    return json.loads("".join(execution.logs.stdout))


def test_health_is_asked_as_in_the_tests_of_e2b(shared):
    """By curl, at 0.0.0.0; and the interpreter outlives what a program does to it."""
    asked = "curl -s -o /dev/null -w '%{http_code}' http://0.0.0.0:49999/health"
    assert shared.commands.run(asked).stdout == "200"
    shared.commands.run("kill -9 $(pgrep -f '[u]vicorn main:app') || true", user="root")
    assert shared.commands.run(asked).stdout == "200"
    assert shared.run_code("x = 1; x").text == "1"


def test_programs_get_the_answers_that_clients_get(shared, http, headers_of):
    """The lines of a run, contexts, refusals."""

    def shape(text: str) -> list[dict[str, Any]]:
        return [{**json.loads(line), "timestamp": 0, "execution_count": 0} for line in text.splitlines()]

    status, text = value(shared, "ask('/contexts', {'language': 'python'})")
    assert status == 201
    context = json.loads(text)["id"]
    body = {"code": "print(1)\n2", "context_id": context}
    status, text = value(shared, f"ask('/execute', {body!r})")
    outside = http.post("/execute", json=body, headers=headers_of(shared, 49999))
    assert (status, shape(text)) == (200, shape(outside.text))
    assert context in value(shared, "ask('/contexts')")[1]
    assert value(shared, "ask('/execute', {'code': '1', 'context_id': 'none'})")[0] == 404
    assert value(shared, f"ask('/contexts/{context}', method='DELETE')")[0] == 204


def test_the_record_tells_what_came_from_inside(shared, http, server):
    """The cells of a program's own requests name the way; those of its client do not."""

    def ways(context: str) -> set[str]:
        place = f"/v1/sandboxes/{shared.sandbox_id}/contexts/{context}/executions"
        return {cell["via"] for cell in http.get(place, headers=server.headers).json()["items"]}

    context = json.loads(value(shared, "ask('/contexts', {'language': 'python'})")[1])["id"]
    assert value(shared, f"ask('/execute', {{'code': '1', 'context_id': '{context}'}})")[0] == 200
    assert ways(context) == {"e2b from inside"}
    assert ways("default") == {"e2b"}


def test_a_program_is_its_own_sandbox_only(shared, http, headers_of, sandbox):
    """Headers that name another sandbox, with its token, and paths of the server change nothing; outside they do."""
    sandbox.run_code("whose = 'theirs'")
    shared.commands.run("true")
    theirs = headers_of(sandbox, 49999)
    code = {"code": "globals().get('whose', 'ours')", "context_id": "default"}
    assert "theirs" in http.post("/execute", json=code, headers=theirs).text

    process = shared.commands.run(
        "python3 - <<'EOF'\n"
        f"{ASK}\n"
        f"print(ask('/execute', {code!r}, **{{k.replace('-', '_'): v for k, v in {theirs!r}.items()}})[1])\n"
        "for path in ('/v1/sandboxes', '/sandboxes', '/files?path=a', '/healthz', '//execute', '/p/a/b/1/'):\n"
        "    print(ask(path)[0])\n"
        "EOF"
    )
    assert "ours" in process.stdout
    assert "theirs" not in process.stdout
    assert process.stdout.split()[-6:] == ["404"] * 6


def test_a_cell_that_waits_for_its_own_context_waits_for_as_long_as_it_will(shared):
    """As at E2B. No more than four wait at once; those that it gives up are gone, and never run."""
    waiting = (
        "import concurrent.futures\n"
        "def give_up(_):\n"
        "    return ask('/execute', {'code': 'late = 1', 'context_id': 'default'}, timeout=1)[0]\n"
        "with concurrent.futures.ThreadPoolExecutor(6) as pool:\n"
        "    statuses = sorted(pool.map(give_up, range(6)))\n"
        # Refused while any of the four is left.
        "bodies = [{'code': 'import time; time.sleep(0.2)', 'language': 'bash'}] * 4\n"
        "while True:\n"
        "    with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
        "        if {one[0] for one in pool.map(lambda body: ask('/execute', body), bodies)} == {200}:\n"
        "            break\n"
    )
    assert value(shared, "statuses", waiting) == [0, 0, 0, 0, 429, 429]
    assert shared.run_code("'late' in globals()").text == "False"
    assert value(shared, "ask('/health')") == [200, "OK"]


def test_a_flood_from_inside_reaches_no_neighbour(shared, http, server, sandbox, eventually):
    """Garbage, half requests, pipelines and endless heads; then it answers as before."""
    assert sandbox.run_code(FLOOD).error is None
    slowest = 0.0

    for _ in range(20):
        answer = http.get("/healthz")
        assert answer.status_code == 200
        slowest = max(slowest, answer.elapsed.total_seconds())
        assert shared.run_code("1").text == "1"

    assert slowest < 5
    sandbox.run_code(ASK)
    eventually(lambda: value(sandbox, "ask('/health', timeout=5)") == [200, "OK"])


def test_executions_from_inside_count_for_the_key_and_its_bounds_hold(server, new_key):
    """The day's executions of a key are used up by them, as by its own."""
    token = new_key(executions_per_day=4)
    sandbox = Sandbox.create(timeout=300, api_key=token)
    try:
        assert sandbox.run_code(ASK).error is None
        # The second of the day asks for the others.
        asked = "[ask('/execute', {'code': 'true', 'language': 'bash'})[0] for _ in range(4)]"
        assert value(sandbox, asked) == [200, 200, 429, 429]
    finally:
        sandbox.kill()


def test_forks_have_it_and_base_and_resumed_sandboxes_have_not(shared, server):
    """At E2B `base` has no interpreter; one that requests resume could undo its own pause."""
    look = "curl -s -o /dev/null -w '%{http_code}' http://localhost:49999/health || true"
    fork = shared.fork(count=1)[0] if hasattr(shared, "fork") else None
    base = Sandbox.create(template="base", timeout=300)
    resumed = Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        assert base.commands.run(look).stdout == "000"
        assert resumed.commands.run(look).stdout == "000"
        assert shared.commands.run(look).stdout == "200"

        if fork is not None:
            forked = fork if hasattr(fork, "commands") else fork.sandbox
            assert forked.commands.run(look).stdout == "200"
    finally:
        base.kill()
        resumed.kill()


def test_what_was_sent_before_a_pause_does_not_end_it(shared, http, headers_of):
    """The request waits in the sandbox, or is refused; the pause holds."""
    shared.commands.run(
        f"python3 -c \"{ASK.strip()}\nwhile True: ask('/health')\"", background=True, timeout=0
    )
    shared.pause()
    info = shared.get_info()
    assert info.state == "paused"
    shared.connect()
    assert shared.run_code("1").text == "1"
