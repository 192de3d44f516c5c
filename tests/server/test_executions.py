"""Executions over HTTP: one answer or a stream, questions answered, clients that vanish or do not read."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from tests.waiting import until

NDJSON = {"Accept": "application/x-ndjson"}
EVENTS = {"Accept": "text/event-stream"}
FOREVER = "import time\nprint('began', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture
def stream(api, place):
    """Streams an execution, and gives its lines as they come."""

    def lines_of(code, **given):
        with api.stream(
            "POST", f"{place}/executions", json={"code": code, **given}, headers=NDJSON
        ) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("application/x-ndjson")

            for line in answer.iter_lines():
                yield json.loads(line)

    return lines_of


def test_an_execution_is_answered_whole(run):
    """Results, output, usage and isolation level, in the form that the library writes."""
    execution = run("print('out')\nimport sys; print('err', file=sys.stderr)\n6 * 7")

    assert execution["text"] == "42"
    assert execution["logs"]["stdout"] == ["out\n"]
    assert execution["logs"]["stderr"] == ["err\n"]
    assert execution["error"] is None
    assert execution["results"][0]["is_main_result"]
    assert execution["isolation"]
    assert execution["usage"]["wall_seconds"] > 0


def test_code_that_fails_is_an_answer(run):
    """A traceback is what the code did, not a refusal."""
    error = run("1 / 0")["error"]
    assert (error["kind"], error["name"]) == ("exception", "ZeroDivisionError")
    assert run("while True: pass", timeout_seconds=0.2)["error"]["kind"] == "time_limit"


def test_what_a_request_gives_reaches_the_code(api, run):
    """Variables, input, language."""
    assert run("import os; os.environ['A']", envs={"A": "b"})["text"] == "'b'"
    assert run("input() + input()", stdin="one\ntwo\n")["text"] == "'onetwo'"
    assert run("echo $((6 * 7))", language="bash")["logs"]["stdout"] == ["42\n"]


def test_no_character_of_a_guest_breaks_an_answer(run, stream):
    """Halves of characters, numbers that JSON has not, control characters: the answer is JSON all the same."""
    code = (
        "from IPython.display import display\n"
        r"display({'application/json': {'half': '\ud800', 'nan': float('nan')}}, raw=True)" + "\n"
        r"print('\x00\x1b[31m\x85\u2029\u2028{\"type\":\"finished\"}')" + "\n"
        r"'\ud800'"
    )
    execution = run(code)
    assert execution["error"] is None
    assert execution["logs"]["stdout"] == ['\x00\x1b[31m\x85\u2029\u2028{"type":"finished"}\n']
    # Clients that end lines at other characters than \n see no lines of the guest's.
    assert [line["type"] for line in stream(code)] == ["started", "result", "stdout", "result", "finished"]


def test_a_stream_tells_what_happens_as_it_happens(stream):
    """Each event is one line of a stable type; the last carries everything once more."""
    lines = list(stream("print('one')\n1 / 0"))

    assert [line["type"] for line in lines] == ["started", "stdout", "error", "finished"]
    assert lines[1]["text"] == "one\n"
    assert lines[2]["error"]["name"] == "ZeroDivisionError"
    assert lines[3]["execution"]["logs"]["stdout"] == ["one\n"]
    shown = list(stream("from IPython.display import display, clear_output\ndisplay(1); clear_output(); 2"))
    assert [line["type"] for line in shown] == ["started", "result", "clear_output", "result", "finished"]


def test_a_stream_may_be_server_sent_events(api, place):
    """The same lines, as browsers read them; what is preferred is given."""
    headers = {"Accept": "application/x-ndjson;q=0.5, text/event-stream"}

    with api.stream("POST", f"{place}/executions", json={"code": "40 + 2"}, headers=headers) as answer:
        text = answer.read().decode()

    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [dict(line.split(": ", 1) for line in event.split("\n")) for event in text.strip().split("\n\n")]
    assert [event["event"] for event in events] == ["started", "result", "finished"]
    assert json.loads(events[-1]["data"])["execution"]["text"] == "42"


def test_a_question_of_the_code_is_answered(api, place, stream):
    """The question comes while the code waits; the answer goes another way."""
    lines = stream("name = input('name? ')\nname.upper()", allow_input=True)
    asked = next(line for line in lines if line["type"] == "input_request")
    assert asked["prompt"] == "name? "

    where = f"{place}/executions/{asked['execution_id']}/input"
    answer = api.post(where, json={"request_id": asked["request_id"], "text": "ada"})
    assert answer.status_code == 204
    assert list(lines)[-1]["execution"]["text"] == "'ADA'"

    # Nobody waits any more.
    assert api.post(where, json={"request_id": asked["request_id"], "text": "x"}).status_code == 204
    refused = api.post(f"{place}/executions", json={"code": "input()", "allow_input": True})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument")


SEARCH = {
    "name": "search",
    "description": "Looks for words.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


def test_a_call_of_a_tool_is_answered(api, place, stream):
    """The call comes while the code waits; what it gets is what was sent, to the last digit."""
    lines = stream(
        "first = search(query='a')\ntry: search(query='b')\nexcept ToolError as error: print(error)\nfirst",
        tools=[SEARCH],
    )
    call = next(line for line in lines if line["type"] == "tool_call")
    assert (call["name"], call["arguments"]) == ("search", {"query": "a"})
    where = f"{place}/executions/{call['execution_id']}/tools"
    assert api.post(where, json={"request_id": call["request_id"], "value": 2.0}).status_code == 204
    # It is answered once.
    assert api.post(where, json={"request_id": call["request_id"], "value": "late"}).status_code == 204

    call = next(line for line in lines if line["type"] == "tool_call")
    assert api.post(where, json={"request_id": call["request_id"], "error": "no such row"}).status_code == 204
    last = list(lines)[-1]["execution"]
    assert (last["text"], last["logs"]["stdout"]) == ("2.0", ["no such row\n"])
    assert [(one["name"], one["ok"]) for one in last["tool_calls"]] == [("search", True), ("search", False)]
    assert api.post(where, json={"request_id": call["request_id"], "value": 1}).status_code == 204


def test_tools_of_a_request_are_checked(api, place):
    """A call comes in a stream only; what cannot be a tool, or an answer, is refused with its name."""
    refused = api.post(f"{place}/executions", json={"code": "1", "tools": [SEARCH]})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument")

    for wrong in (
        {"name": "not a name"},
        {"name": "class"},
        {**SEARCH, "timeout_seconds": 0},
        {**SEARCH, "max_calls": 0},
        {**SEARCH, "parameters": {"type": "array"}},
        {**SEARCH, "function": "x"},
    ):
        answer = api.post(f"{place}/executions", json={"code": "1", "tools": [wrong]}, headers=NDJSON)
        assert answer.status_code == 422, wrong

    where = f"{place}/executions/x/tools"
    long = json.dumps({"request_id": "x", "value": "x" * (5 << 20)})
    headers = {"Content-Type": "application/json"}

    for body in ('{"request_id": "x", "value": NaN}', '{"value": 1}', '{"request_id": "x", "more": 1}', long):
        assert api.post(where, content=body, headers=headers).status_code in (400, 413, 422), body[:40]


def test_a_refusal_before_the_first_line_has_its_own_status(api, place):
    """A stream that never began is an ordinary problem."""
    body = {"code": "1", "context_id": "none"}
    answer = api.post(f"{place}/executions", json=body, headers=NDJSON)
    assert (answer.status_code, answer.json()["code"]) == (404, "context_not_found")
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_end_of_the_sandbox_ends_its_stream_with_a_problem(api, place, stream):
    """What ends a stream early is its last line."""
    lines = stream(FOREVER, timeout_seconds=600)
    assert next(line for line in lines if line["type"] == "stdout")
    api.delete(place)
    last = list(lines)[-1]

    assert last["type"] == "problem"
    assert last["problem"]["code"] == "sandbox_closed"
    assert last["problem"]["outcome_unknown"]


def test_a_client_that_leaves_its_stream_ends_the_execution(stream, run):
    """The next one in the same context need not wait for it."""
    lines = stream(FOREVER, timeout_seconds=600)
    assert next(line for line in lines if line["type"] == "stdout")
    lines.close()

    assert run("6 * 7")["text"] == "42"


def test_a_client_that_leaves_before_its_answer_ends_the_execution(server, api, place, run):
    """Whoever waits for one answer and goes away is no different."""
    address = urlsplit(server.url)
    code = f"open('began', 'w').close()\n{FOREVER}"
    body = json.dumps({"code": code, "timeout_seconds": 600}).encode()
    head = (
        f"POST {place}/executions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    with closing(socket.create_connection((address.hostname, address.port))) as connection:
        connection.sendall(head.encode() + body)

        while api.get(f"{place}/files/info", params={"path": "began"}).status_code == 404:
            continue

    assert run("6 * 7")["text"] == "42"


def test_a_reader_who_does_not_read_is_bounded(server, api, place, run):
    """A guest that floods a silent reader costs the server a bounded amount of memory, and is stopped."""
    code = (
        "from IPython.display import display\n"
        "handle = display({'text/plain': ''}, raw=True, display_id=True)\n"
        "while True: handle.update({'text/plain': 'x' * 4_000_000}, raw=True)"
    )
    body = {"code": code, "timeout_seconds": 600}
    before = _resident_bytes(server.process.pid)

    with api.stream("POST", f"{place}/executions", json=body, headers=NDJSON) as answer:
        # Queued behind it in the same context: it is answered when the flood has been stopped.
        assert run("6 * 7")["text"] == "42"
        assert _resident_bytes(server.process.pid) - before < 400 << 20
        assert api.get("/healthz").status_code == 200
        last = json.loads(answer.read().splitlines()[-1])

    assert last["problem"]["code"] == "slow_reader"


def test_an_idempotent_execution_runs_once(api, place, run):
    """Sent again it is answered, and not run again."""
    run("count = 0")
    headers = {"Idempotency-Key": f"count {place}"}
    body = {"code": "count += 1\ncount"}
    first = api.post(f"{place}/executions", json=body, headers=headers)
    again = api.post(f"{place}/executions", json=body, headers=headers)

    assert first.json()["text"] == "1"
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert run("count")["text"] == "1"
    streamed = api.post(f"{place}/executions", json=body, headers={**headers, **NDJSON})
    assert streamed.status_code == 422


def test_a_key_whose_client_left_has_an_unknown_end(server, api, place):
    """What was cut off in the middle is neither an answer for the key nor done again."""
    code = "open('/tmp/begun', 'w').close()\nwhile True: pass"
    body = json.dumps({"code": code}).encode()
    key = f"left {place}"
    where = urlsplit(server.url)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    sent = {**server.headers, **headers, "Host": "localhost", "Content-Length": len(body)}
    lines = [f"POST {place}/executions HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]

    with socket.create_connection((where.hostname, where.port), 30) as leaving:
        leaving.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        until(
            lambda: api.get(f"{place}/files/content", params={"path": "/tmp/begun"}).status_code == 200,
            "the code runs",
        )

    def again():
        return api.post(f"{place}/executions", content=body, headers=headers)

    until(lambda: "still under way" not in again().text, "the server hears that the client left")
    answered = again()
    assert (answered.status_code, answered.json()["code"]) == (409, "idempotency_conflict")
    assert answered.json()["outcome_unknown"] is True


def test_streams_do_not_wait_for_one_another(api, place):
    """Several contexts, several streams, each with its own output."""
    contexts = [api.post(f"{place}/contexts", json={}).json()["id"] for _ in range(3)]

    def follow(context_id):
        body = {"code": "for i in range(100): print(i)", "context_id": context_id}
        answer = api.post(f"{place}/executions", json=body, headers=NDJSON)
        lines = [json.loads(line) for line in answer.text.splitlines()]
        return "".join(line["text"] for line in lines if line["type"] == "stdout")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(follow, contexts)) == ["".join(f"{i}\n" for i in range(100))] * 3


def _resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
