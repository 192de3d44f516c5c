"""Contexts over HTTP: made, restarted, interrupted, removed, and asked about code."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

NDJSON = {"Accept": "application/x-ndjson"}


@pytest.fixture
def contexts(place):
    return f"{place}/contexts"


def test_contexts_have_names_of_their_own(api, contexts, run):
    """What one defines the other does not know."""
    answer = api.post(contexts, json={"cwd": "/tmp"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["language"], made["cwd"]) == ("python", "/tmp")

    run("name = 'default'")
    assert run("name", context_id=made["id"])["error"]["name"] == "NameError"
    assert run("import os; os.getcwd()", context_id=made["id"])["text"] == "'/tmp'"
    assert [item["id"] for item in api.get(contexts).json()["items"]] == ["default", made["id"]]

    assert api.delete(f"{contexts}/{made['id']}").status_code == 204
    gone = api.delete(f"{contexts}/{made['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "context_not_found")


def test_a_restarted_context_is_fresh(api, contexts, run):
    """Same name, nothing in it."""
    run("name = 1")
    assert api.post(f"{contexts}/default/restart").json()["id"] == "default"
    assert run("name")["error"]["name"] == "NameError"


def test_what_runs_is_interrupted(api, place, contexts, run):
    """The execution ends as interrupted; its context keeps what it holds."""
    run("kept = 1")
    assert api.post(f"{contexts}/default/interrupt").json() == {"interrupted": False}
    body = {"code": "print('began', flush=True)\nwhile True: pass", "timeout_seconds": 600}

    with api.stream("POST", f"{place}/executions", json=body, headers=NDJSON) as answer:
        lines = map(json.loads, answer.iter_lines())
        next(line for line in lines if line["type"] == "stdout")
        assert api.post(f"{contexts}/default/interrupt").json() == {"interrupted": True}
        last = list(lines)[-1]

    assert last["execution"]["error"]["kind"] == "interrupted"
    assert run("kept")["text"] == "1"


def test_code_is_completed_inspected_and_judged(api, contexts, run):
    """What editors ask."""
    run("alphabet = 'abc'")
    completion = api.post(f"{contexts}/default/complete", json={"code": "alpha", "cursor": 5}).json()
    assert "alphabet" in completion["matches"]
    assert (completion["start"], completion["end"]) == (0, 5)
    # No cursor, or one past the end, is the end.
    assert api.post(f"{contexts}/default/complete", json={"code": "alpha"}).json() == completion
    assert api.post(f"{contexts}/default/complete", json={"code": "alpha", "cursor": 99}).json() == completion

    inspection = api.post(f"{contexts}/default/inspect", json={"code": "len", "cursor": 2}).json()
    assert "number of items" in inspection["data"]["text/plain"]

    for code, status in (("x = 1", "complete"), ("if x:", "incomplete"), ("x = = 1", "invalid")):
        answer = api.post(f"{contexts}/default/is_complete", json={"code": code})
        assert answer.json()["status"] == status

    unknown = api.post(f"{contexts}/none/complete", json={"code": "x"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "context_not_found")


def test_a_comm_is_answered_like_an_execution(api, contexts, run):
    """What the handlers print and send comes back, as one answer or as a stream."""
    run(
        "from comm import get_comm_manager\n"
        "def opened(comm, message):\n"
        "    print('opened', message['content']['data'])\n"
        "    comm.on_msg(lambda m: comm.send({'echo': m['content']['data']}, buffers=[b'\\xff']))\n"
        "get_comm_manager().register_target('echo', opened)"
    )
    opening = {"kind": "comm_open", "comm_id": "c1", "target_name": "echo", "data": {"a": 1}}
    execution = api.post(f"{contexts}/default/comm", json=opening).json()
    assert execution["logs"]["stdout"] == ["opened {'a': 1}\n"]

    message = {"kind": "comm_msg", "comm_id": "c1", "data": {"b": 2}, "buffers": ["AAA="]}
    lines = api.post(f"{contexts}/default/comm", json=message, headers=NDJSON).text.splitlines()
    said = next(line for line in map(json.loads, lines) if line["type"] == "comm")
    assert said["data"] == {"echo": {"b": 2}}
    assert said["buffers"] == ["/w=="]


def test_many_ask_at_once(api, contexts):
    """Questions of several clients are all answered."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: api.post(f"{contexts}/default/is_complete", json={"code": "1"}), range(8))
        )

    assert [answer.json()["status"] for answer in answers] == ["complete"] * 8
