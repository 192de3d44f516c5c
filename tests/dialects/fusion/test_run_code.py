"""The answers of `/run_code` and `/run_jupyter`, field by field, and who may ask."""

from __future__ import annotations

import base64
import shutil

import pytest
import requests
from tests.waiting import at_some_pace


def test_the_fields_of_an_answer(call):
    """Everything the protocol names is there, and no string of a finished step is null."""
    told = call(code="print('a')", language="python")
    seconds = told["run_result"].pop("execution_time")

    assert seconds > 0
    assert told == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "a\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }


def test_the_language_may_be_left_out(call):
    """verl's tutorial sends the code alone."""
    assert call(code="import sys; print(sys.argv[0][-3:])")["run_result"]["stdout"] == ".py\n"


def test_a_program_that_is_too_slow_keeps_what_it_wrote(call):
    """TimeLimitExceeded has no return code, and the output so far."""

    def scene(seconds):
        told = call(code="print('so far', flush=True)\nwhile True: pass", run_timeout=seconds)

        assert told["status"] == "Failed"
        assert told["run_result"]["status"] == "TimeLimitExceeded"
        assert told["run_result"]["return_code"] is None
        assert told["run_result"]["stdout"] == "so far\n"

    at_some_pace(scene, 1, 10)


def test_exit_codes_and_streams(call):
    """A program is a program: both streams, its code, its standard input up to the end."""
    told = call(code="cat; echo oops >&2; exit 7", language="bash", stdin="one\ntwo")

    assert told["status"] == "Failed"
    run = told["run_result"]
    assert (run["stdout"], run["stderr"], run["return_code"]) == ("one\ntwo", "oops\n", 7)


def test_files_are_relative_to_a_fresh_folder_which_is_the_cwd(call):
    """Files in, files out, both as base64; what is not there is left out."""
    code = "import os\nprint(os.listdir('in'), open('in/a.bin','rb').read())\nopen('out.txt','w').write('x')"
    given = {"in/a.bin": base64.b64encode(b"\0\xff").decode(), "nothing": None}
    told = call(code=code, files=given, fetch_files=["out.txt", "gone.txt"])

    assert told["run_result"]["stdout"] == "['a.bin'] b'\\x00\\xff'\n"
    assert told["files"] == {"out.txt": base64.b64encode(b"x").decode()}
    assert call(code="import os; print(os.path.exists('out.txt'))")["run_result"]["stdout"] == "False\n"


def test_memory_is_limited(call):
    """`memory_limit_MB` is the sandbox's memory."""
    told = call(code="x = bytearray(400 << 20)\nprint('fits')", memory_limit_MB=128)
    assert told["status"] == "Failed"
    assert told["run_result"]["stdout"] == ""


def test_a_language_that_is_not_here_is_said_with_those_that_are(call):
    """A name nobody knows, and one that no program is there for."""
    told = call(code="x", language="brainfuck")
    assert told["status"] == "SandboxError"
    assert "'brainfuck' does not run here; these do: python" in told["message"]
    assert "bash" in told["message"]


@pytest.mark.parametrize(
    ("language", "program", "code", "stdout"),
    [
        ("cpp", "g++", '#include <cstdio>\nint main(){int a;scanf("%d",&a);printf("%d\\n",a+1);}', "42\n"),
        ("nodejs", "node", "console.log(Number(require('fs').readFileSync(0)) + 1)", "42\n"),
        ("perl", "perl", 'print <STDIN> + 1, "\\n"', "42\n"),
    ],
)
def test_other_languages_run_where_their_programs_are(call, language, program, code, stdout):
    """Compiled or interpreted, with standard input."""
    if shutil.which(program) is None:
        told = call(code=code, language=language)
        assert told["status"] == "SandboxError"
        return

    told = call(code=code, language=language, stdin="41")
    assert told["status"] == "Success", told
    assert told["run_result"]["stdout"] == stdout
    assert (told["compile_result"] is not None) == (language == "cpp")


def test_cells_share_one_context(call):
    """Files, displays and later cells after one that raised."""
    told = call(
        "/run_jupyter",
        cells=["x = open('a.txt').read()", "1/0", "x", "open('b.txt', 'w').write(x * 2);"],
        files={"a.txt": base64.b64encode(b"ab").decode()},
        fetch_files=["b.txt"],
    )

    assert told["status"] == "Success"
    assert told["driver"]["status"] == "Finished"
    assert told["cells"][1]["error"][0]["ename"] == "ZeroDivisionError"
    assert told["cells"][2]["display"] == [{"text/plain": "'ab'"}]
    assert told["files"] == {"b.txt": base64.b64encode(b"abab").decode()}


def test_times_of_cells(call):
    """A cell that is too slow is interrupted and the next one runs; the time of all ends all."""
    slow = "import time\ntime.sleep(60)"

    def scene(seconds):
        told = call("/run_jupyter", cells=["x = 1", slow, "x"], cell_timeout=seconds)
        assert told["status"] == "Success"
        assert told["cells"][1]["error"][0]["ename"] == "TimeLimitExceeded"
        assert told["cells"][2]["display"] == [{"text/plain": "1"}]

    at_some_pace(scene, 1, 10)
    told = call("/run_jupyter", cells=[slow, "1"], total_timeout=1)
    assert told["status"] == "Failed"
    assert told["driver"]["status"] == "TimeLimitExceeded"


def test_ping(server):
    """A probe that needs no token."""
    answer = requests.get(f"{server.url}/v1/ping", timeout=10)
    assert (answer.status_code, answer.json()) == (200, "pong")


@pytest.mark.parametrize("path", ["/run_code", "/run_jupyter"])
def test_nobody_runs_code_without_a_token(server, path):
    """Four places for a token; without one, or with a wrong one, a 401 that names them."""
    body = {"code": "print(1)", "cells": ["1"]}
    url, token = f"{server.url}{path}", server.token

    refused = requests.post(url, json=body, timeout=60)
    assert refused.status_code == 401
    assert "?token=TOKEN" in refused.json()["detail"]
    assert requests.post(f"{url}?token=wrong-{token}", json=body, timeout=60).status_code == 401

    ways = [
        {"headers": {"Authorization": f"Bearer {token}"}},
        {"headers": {"X-API-Key": token}},
        {"auth": ("anybody", token)},
        {"params": {"token": token}},
    ]

    for way in ways:
        assert requests.post(url, json=body, timeout=60, **way).status_code == 200


def test_a_key_needs_the_scope(server):
    """A key that may only hold sandboxes runs no code here."""
    made = requests.post(
        f"{server.url}/v1/keys",
        json={"name": "fusion", "scopes": ["sandboxes"]},
        headers=server.headers,
        timeout=60,
    ).json()
    headers = {"X-API-Key": made["token"]}
    answer = requests.post(f"{server.url}/run_code", json={"code": "1"}, headers=headers, timeout=60)
    assert answer.status_code == 403


def test_what_a_call_uses_is_counted_and_bounded(server):
    """A call is an execution of its key: its quota of the day counts it."""
    policy = {"name": "one a day", "policy": {"executions_per_day": 1}}
    made = requests.post(f"{server.url}/v1/keys", json=policy, headers=server.headers, timeout=60)
    assert made.status_code == 201, made.text
    headers = {"X-API-Key": made.json()["token"]}
    url = f"{server.url}/run_code"

    assert requests.post(url, json={"code": "1"}, headers=headers, timeout=60).status_code == 200
    assert requests.post(url, json={"code": "1"}, headers=headers, timeout=60).status_code == 429


def test_a_token_is_in_no_log(start_server):
    """At the level that shows addresses, the token's place in the query is empty."""
    server = start_server(log_level="debug", pool_size=1, drain_seconds=1)
    url = f"{server.url}/run_code?token={server.token}"
    assert requests.post(url, json={"code": "1"}, timeout=60).status_code == 200
    server.stop()
    said = "".join(server.said)
    assert "/run_code" in said
    assert server.token not in said


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[]",
        b'{"code": 1}',
        b'{"code": "", "run_timeout": "x"}',
        b'{"code": "", "files": {"a": "?"}}',
    ],
)
def test_malformed_calls_are_refused(server, body):
    """A 422 with the field's name, as FastAPI's servers answer."""
    answer = requests.post(f"{server.url}/run_code", data=body, headers=server.headers, timeout=60)
    assert answer.status_code == 422
    assert answer.json()["detail"]
