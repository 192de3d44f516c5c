"""`/exec`: code of several languages, files that go in and come out, and what a failed run leaves."""

from __future__ import annotations

import shutil

import pytest


def test_the_streams_and_the_session(api):
    """What the live client reads is at the top level; the run is there as the published form has it."""
    told = api.run("import sys\nprint('out')\nprint('err', file=sys.stderr)", args=["x"])

    assert (told["stdout"], told["stderr"], told["code"], told["files"]) == ("out\n", "err\n", 0, [])
    assert told["session_id"]
    assert told["run"]["output"] == "out\nerr\n"


@pytest.mark.parametrize(
    ("lang", "program", "code"),
    [
        ("bash", "bash", 'echo "$1"'),
        ("python", "python3", "import sys; print(sys.argv[1])"),
        ("js", "node", "console.log(process.argv[2])"),
        ("c", "gcc", "#include <stdio.h>\nint main(int n, char **a) { puts(a[1]); }"),
        ("cpp", "g++", "#include <iostream>\nint main(int n, char **a) { std::cout << a[1] << '\\n'; }"),
    ],
)
def test_languages_and_arguments(api, lang, program, code):
    """Each language whose programs are there; another one is refused with those that are."""
    if shutil.which(program) is None:
        assert api.ask("POST", "/exec", json={"lang": lang, "code": code}).status_code == 422
        return

    assert api.run(code, lang, args=["hi there"])["stdout"] == "hi there\n"


def test_a_file_lives_on_with_its_ancestors(api):
    """Made by one run, read by the next, changed by a third, removed by a fourth."""
    (made,) = api.run("open('/mnt/data/t.csv', 'w').write('a,b')")["files"]
    assert (made["name"], made["path"]) == ("t.csv", "/mnt/data/t.csv")
    assert made["session_id"] == made["storage_session_id"]

    old = {"id": made["id"], "name": "t.csv", "session_id": made["session_id"]}
    new = {
        "id": made["id"],
        "name": "t.csv",
        "storage_session_id": made["storage_session_id"],
        "kind": "user",
        "resource_id": "user-1",
    }

    told = api.run("print(open('t.csv').read())", files=[old])
    assert told["stdout"] == "a,b\n"
    (same,) = told["files"]
    assert (same["id"], same["inherited"]) == (made["id"], True)

    (changed,) = api.run("open('t.csv', 'a').write(',c')", files=[new])["files"]
    source = {key: made[key] for key in ("id", "session_id", "storage_session_id")}
    assert changed["modified_from"] == source
    assert changed["id"] != made["id"]
    assert "inherited" not in changed

    got = api.ask("GET", f"/download/{changed['session_id']}/{changed['id']}")
    assert got.content == b"a,b,c"

    told = api.run("import os; os.remove('t.csv')", files=[new])
    assert (told["files"], told["deleted_files"]) == ([], ["t.csv"])


def test_a_session_is_continued_by_its_id(api):
    """Older clients name the session alone, and find its files."""
    told = api.run("open('helper.py', 'w').write('x = 5'); open('d.txt', 'w').write('d')")
    again = api.run("import helper; print(helper.x, open('d.txt').read())", session_id=told["session_id"])
    assert again["stdout"] == "5 d\n"


def test_a_failed_run_registers_nothing(api):
    """Files of a run that failed, was too slow or too large are not there later."""
    write = "open('a.txt', 'w').write('a')\n"
    failed = api.run(f"{write}1/0")
    assert (failed["files"], failed["code"]) == ([], 1)
    assert "ZeroDivisionError" in failed["stderr"]

    slow = api.run(f"{write}while True: pass", timeout=1000)
    assert slow["files"] == []
    assert "Time limit exceeded" in slow["stderr"]

    large = api.run(f"{write}x = bytearray(2 << 30)")
    assert large["files"] == []
    assert api.ask("GET", f"/files/{failed['session_id']}").json() == []


def test_names_of_a_guest_are_checked(api):
    """What cannot be a file's name in an answer is not delivered, and is counted; links lead nowhere."""
    code = (
        "import os\nopen('bad\\nname', 'w').write('x')\nopen('good', 'w').write('y')\n"
        "os.symlink('/etc/passwd', 'link')\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('z')"
    )
    told = api.run(code)
    assert sorted(file["name"] for file in told["files"]) == ["d/e/f", "good"]
    assert told["artifact_delivery"] == {
        "code": "artifact_delivery_failed",
        "status": "partial",
        "attempted": 3,
        "delivered": 2,
        "failed": 1,
    }


@pytest.mark.parametrize(
    "body",
    [
        {"lang": "py"},
        {"lang": "abap", "code": "x"},
        {"lang": "py", "code": "1", "files": [{"id": "../../etc", "name": "a"}]},
        {"lang": "py", "code": "1", "files": [{"id": "a", "name": "../a"}]},
        {"lang": "py", "code": "1", "timeout": -1},
    ],
)
def test_malformed_calls_are_refused(api, body):
    """A 422, which the client shows as a request that was rejected."""
    answer = api.ask("POST", "/exec", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"] == "invalid_request"


def test_a_file_that_is_not_there(api):
    """Unknown ids are a 404, before anything runs."""
    body = {"lang": "py", "code": "1", "files": [{"id": "f" * 32, "name": "a", "session_id": "e" * 32}]}
    assert api.ask("POST", "/exec", json=body).status_code == 404


def test_a_warm_machine_is_not_promised(api):
    """A client that expects one is told that it is a mismatch, in the word it knows."""
    headers = {"X-CodeAPI-Expected-Profile": "stateful"}
    answer = api.ask("POST", "/exec", json={"lang": "py", "code": "1"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (409, "execution_profile_mismatch")
    headers = {"X-CodeAPI-Expected-Profile": "default"}
    assert api.ask("POST", "/exec", json={"lang": "py", "code": "1"}, headers=headers).status_code == 200
