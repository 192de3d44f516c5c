"""Replit's code-exec: its unmodified client (with the instructor and the openai of its time), and ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from fumehood.dialects.replit.client import build_code_exec, code_exec, strip_fence

PACKAGES = Path(__file__).parents[2] / "external_clients" / "packages"
# The client under test, in a process of its own: its openai is of another age than that of the other tests.
PROGRAM = """
import json, sys
import replit_code_exec
url, token = sys.argv[1:]
run = replit_code_exec.code_exec
function = replit_code_exec.build_code_exec(url, token, files={"a.txt": "A"})
arguments = json.dumps({"code": "```python\\nprint(open('a.txt').read())\\n```"})
call = {"name": function.openai_schema["name"], "arguments": arguments}
print(json.dumps({
    "plain": run(url, token, "import sys\\nprint(1)\\nprint(2, file=sys.stderr)\\nprint(3)"),
    "files": run(url, token, "print(open('d/x.txt').read(), __file__[-7:])", files={"d/x.txt": "X"}),
    "echo": run(url, token, "x = 3\\nx + 1\\nNone\\nfor i in 'ab': i", interpreter_mode=True),
    "error": run(url, token, "1/0"),
    "strace": run(url, token, "1", strace=True),
    "denied": run(url, "wrong", "1"),
    "called": function.from_response({"choices": [{"message": {"function_call": call}}]}),
}))
"""


@pytest.fixture(scope="module")
def url(server) -> str:
    return f"{server.url}/replit"


def test_the_unmodified_client(server, url):
    """Everything that the package offers."""
    if not (PACKAGES / "replit_code_exec").is_dir():
        pytest.skip("needs replit-code-exec in tests/external_clients: `make test` installs it")

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, server.token],
        env={"PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])

    assert told["plain"] == "1\n2\n3\n"
    assert told["files"] == "X main.py\n"
    assert told["echo"] == "4\n'a'\n'b'\n"
    assert told["error"].endswith("ZeroDivisionError: division by zero\n")
    assert "no program may trace another" in told["strace"]
    assert "not authenticated" in told["denied"]
    assert told["called"] == "A\n"


def test_our_function_is_named_as_its_users_force_it(server, url):
    """The name of the documents, and rules that a model can read to their end."""
    function = build_code_exec(url, server.token)
    assert function.openai_schema["name"] == "code_exec"
    assert "print()" in function.openai_schema["description"]
    assert function.tool == {"type": "function", "function": function.openai_schema}
    assert "data.csv" in build_code_exec(url, "t", files={"data.csv": ""}).openai_schema["description"]
    assert function("print(6 * 7)") == "42\n"


def test_our_function_runs_what_a_model_asked_for(server, url):
    """Calls of both generations, as dicts and as objects."""
    function = build_code_exec(url, server.token)
    asked = {"name": "code_exec", "arguments": json.dumps({"code": "```py\nprint(1)\n```"})}
    legacy = {"choices": [{"message": {"function_call": asked}}]}
    modern = {"choices": [{"message": {"tool_calls": [{"id": "1", "type": "function", "function": asked}]}}]}
    call = SimpleNamespace(function=SimpleNamespace(**asked))
    message = SimpleNamespace(content=None, function_call=None, tool_calls=[call])
    objects = SimpleNamespace(choices=[SimpleNamespace(message=message)])

    for completion in (legacy, modern, objects):
        assert function.from_response(completion) == "1\n"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (None, "calls nothing"),
        ({"name": "other", "arguments": "{}"}, "not code_exec"),
        ({"name": "code_exec", "arguments": "{"}, "no JSON"),
        ({"name": "code_exec", "arguments": '{"code": 1}'}, "must be"),
        ({"name": "code_exec", "arguments": '{"code": "1", "x": 2}'}, "must be"),
    ],
)
def test_other_answers_of_a_model_are_refused(url, call, said):
    """Nothing is run that is not as described."""
    function = build_code_exec(url, "unused")
    with pytest.raises(ValueError, match=said):
        function.from_response({"choices": [{"message": {"content": "", "function_call": call}}]})


def test_one_fence_is_taken_off():
    """One, and only around the whole."""
    assert strip_fence("```python\nx\n```") == "x"
    assert strip_fence("```\n```py\nx\n```\n```") == "```py\nx\n```"
    assert strip_fence("print('```')") == "print('```')"


def test_our_client_says_what_a_server_refuses(server, url):
    """The server's words, not a text that looks like output."""
    with pytest.raises(RuntimeError, match="401"):
        code_exec(url, "wrong", "1")

    with pytest.raises(ValueError, match="http://"):
        code_exec("ftp://x", "t", "1")


def test_code_that_does_not_compile_in_interpreter_mode(server, url):
    """As the prompt says it, with no frame of ours; a `__future__` import holds for what follows."""
    said = code_exec(f"{url}/", server.token, "x = (", interpreter_mode=True)
    assert "SyntaxError" in said
    assert "interpreter.py" not in said
    code = "from __future__ import annotations\ndef f(x: nowhere): pass\nf.__annotations__"
    assert code_exec(url, server.token, code, interpreter_mode=True) == "{'x': 'nowhere'}\n"


def test_only_keys_that_may_run_code(server, url):
    """No token, and a key without the scope."""
    assert requests.post(url, json={"code": "1"}, timeout=60).status_code == 401
    body = {"name": "replit", "scopes": ["sandboxes"]}
    made = requests.post(f"{server.url}/v1/keys", json=body, headers=server.headers, timeout=60).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert requests.post(url, json={"code": "1"}, headers=headers, timeout=60).status_code == 403
    refused = requests.post(url, json={"code": 1}, headers=server.headers, timeout=60)
    assert (refused.status_code, refused.headers["content-type"]) == (422, "text/plain; charset=utf-8")
