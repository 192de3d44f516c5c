"""Commands over HTTP: started, followed by several, fed, signalled; no byte of their output is lost."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

NDJSON = {"Accept": "application/x-ndjson"}


@pytest.fixture
def commands(place):
    return f"{place}/commands"


@pytest.fixture
def start(api, commands):
    def start_command(**body):
        answer = api.post(commands, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["pid"]

    return start_command


@pytest.fixture
def follow(api, commands):
    def lines_of(pid):
        with api.stream("GET", f"{commands}/{pid}/output") as answer:
            assert answer.status_code == 200, answer.read()

            for line in answer.iter_lines():
                yield json.loads(line)

    return lines_of


def output(lines, stream="stdout"):
    pieces = [line for line in lines if line["type"] == stream]
    return b"".join(
        line["text"].encode() if "text" in line else base64.b64decode(line["data"]) for line in pieces
    )


def test_a_command_is_followed_to_its_end(start, follow):
    """Both streams, and how it ended."""
    lines = list(follow(start(command="echo out; echo err >&2; exit 3", envs={"A": "b"}, cwd="/tmp")))

    assert output(lines) == b"out\n"
    assert output(lines, "stderr") == b"err\n"
    assert lines[-1] == {
        "type": "exited",
        "exit_code": 3,
        "timed_out": False,
        "truncated": {"stdout_bytes": 0, "stderr_bytes": 0, "results": 0},
    }


def test_argv_is_read_by_no_shell(start, follow):
    """What looks like a shell's is an argument."""
    assert output(follow(start(argv=["echo", "$HOME; ls", "*"]))) == b"$HOME; ls *\n"


def test_no_byte_is_lost(start, follow):
    """Text comes as text in whole characters, and what is none comes as it is."""
    code = (
        "import os, sys, time\n"
        "for piece in ('größe 📈'.encode() * 50_000, bytes(range(256)), 'ende 📈'.encode()[:-1]):\n"
        "    while piece: piece = piece[os.write(1, piece[:65537]):]"
    )
    lines = list(follow(start(argv=["python3", "-c", code])))

    assert output(lines) == "größe 📈".encode() * 50_000 + bytes(range(256)) + "ende 📈".encode()[:-1]
    assert any("text" in line for line in lines)
    assert all(("text" in line) != ("data" in line) for line in lines if line["type"] == "stdout")


def test_a_command_is_fed(api, commands, start, follow):
    """Standard input in pieces, and its end."""
    pid = start(command="while read line; do echo got $line; done", stdin=True)

    for line in (b"one\n", b"two\n", b""):
        assert api.post(f"{commands}/{pid}/stdin", content=line).status_code == 204

    assert api.post(f"{commands}/{pid}/stdin/close").status_code == 204
    assert output(follow(pid)) == b"got one\ngot two\n"
    gone = api.post(f"{commands}/{pid}/stdin", content=b"x")
    assert (gone.status_code, gone.json()["code"]) == (404, "process_not_found")


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), (9, 137)])
def test_a_command_is_signalled(api, commands, start, follow, signal, code):
    """By name or by number."""
    pid = start(argv=["sleep", "1000"])
    assert [item["pid"] for item in api.get(commands).json()["items"]] == [pid]
    assert api.post(f"{commands}/{pid}/signal", json={"signal": signal}).status_code == 204
    assert list(follow(pid))[-1]["exit_code"] == code
    assert api.get(commands).json()["items"] == []


def test_a_command_out_of_time_is_killed(start, follow):
    """And its end says so."""
    last = list(follow(start(argv=["sleep", "1000"], timeout_seconds=0.05)))[-1]
    assert (last["type"], last["timed_out"]) == ("exited", True)


def test_a_terminal_is_resized(api, commands, start, follow):
    """A command on a terminal sees its size."""
    pid = start(command="read line; stty size", pty={"cols": 40, "rows": 10})
    assert api.post(f"{commands}/{pid}/resize", json={"cols": 100, "rows": 30}).status_code == 204
    assert api.post(f"{commands}/{pid}/stdin", content=b"\n").status_code == 204
    assert b"30 100" in output(follow(pid), "pty")


def test_several_follow_one_command(start, follow):
    """Each from the beginning; one who leaves takes nothing with him."""
    pid = start(command="for i in $(seq 1000); do echo $i; done; sleep 0.01; echo end")
    first = follow(pid)
    next(first)
    first.close()
    expected = "".join(f"{number}\n" for number in range(1, 1001)).encode() + b"end\n"

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: output(follow(pid)), range(3))) == [expected] * 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"argv": ["no such program"]}, 422, "command_start"),
        ({"argv": ["true"], "cwd": "/nowhere"}, 422, "command_start"),
        ({}, 422, "invalid_argument"),
        ({"argv": []}, 422, "invalid_argument"),
        ({"argv": [""]}, 422, "invalid_argument"),
        ({"argv": ["true"], "command": "true"}, 422, "invalid_argument"),
        ({"command": "true", "envs": {"A=B": "c"}}, 422, "invalid_argument"),
        ({"command": "true", "pty": {"cols": 0}}, 422, "invalid_argument"),
    ],
)
def test_a_command_that_cannot_be_started_says_why(api, commands, body, status, code):
    """Nothing runs."""
    answer = api.post(commands, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("verb", ["output", "stdin", "stdin/close", "signal", "resize"])
def test_a_command_that_is_not_there(api, commands, verb):
    """404 for every verb."""
    body = {"signal": {"signal": 9}, "resize": {}}.get(verb)
    method = "GET" if verb == "output" else "POST"
    answer = api.request(method, f"{commands}/4000/{verb}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "process_not_found")
