"""`/exec/programmatic`: code that calls tools, which somebody else runs between its requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.dialects.librechat.conftest import CodeApi

TOOLS = [
    {"name": "get-weather", "description": "Weather", "parameters": {"type": "object"}},
    {"name": "import", "description": "", "parameters": {}},
]


def answer(
    api: Any, told: dict[str, Any], results: dict[str, Any] | None = None, **given: Any
) -> dict[str, Any]:
    """Posts a result for each call: its own input unless another is given."""
    posted = [
        {
            "call_id": call["id"],
            "result": (results or {}).get(call["id"], call["input"]),
            "is_error": False,
            **given,
        }
        for call in told["tool_calls"]
    ]
    return api.post("/exec/programmatic", continuation_token=told["continuation_token"], tool_results=posted)


def start(api: Any, code: str, **body: Any) -> dict[str, Any]:
    return api.post("/exec/programmatic", code=code, tools=TOOLS, timeout=20_000, **body)


def test_calls_at_once_are_one_answer(api):
    """`asyncio.gather`, then one call, then the end; state of the code stays meanwhile."""
    code = (
        "a, b = await asyncio.gather(get_weather(city='SF'), get_weather(city='NY'))\n"
        "c = await import_tool(of=[a['city'], b['city']])\n"
        "print(a, b, c)\nopen('/mnt/data/o.json', 'w').write(json.dumps(c))"
    )
    first = start(api, code)
    assert first["status"] == "tool_call_required"
    assert [call["name"] for call in first["tool_calls"]] == ["get-weather", "get-weather"]
    assert [call["input"] for call in first["tool_calls"]] == [{"city": "SF"}, {"city": "NY"}]

    second = answer(api, first)
    assert [call["name"] for call in second["tool_calls"]] == ["import"]
    assert second["continuation_token"] != first["continuation_token"]

    last = answer(api, second, {second["tool_calls"][0]["id"]: ["x"]})
    assert (last["status"], last["stderr"]) == ("completed", "")
    assert last["stdout"] == "{'city': 'SF'} {'city': 'NY'} ['x']\n"
    assert [file["name"] for file in last["files"]] == ["o.json"]
    assert last["session_id"] == first["session_id"]


def test_code_that_awaits_nothing_gets_results_directly(api):
    """Without an event loop a tool is an ordinary function."""
    first = start(api, "def report(city):\n    return get_weather(city=city)\nprint(report('SF'))")
    assert answer(api, first)["stdout"] == "{'city': 'SF'}\n"


def test_tools_that_fail_raise(api):
    """An error is an exception in the code, with the message; so is a result that was not sent."""
    code = (
        "for n in 1, 2:\n  try:\n    await get_weather(n=n)\n  except Exception as error:\n    print(error)"
    )
    second = answer(api, start(api, code), is_error=True, error_message="no such city")
    body = {"continuation_token": second["continuation_token"], "tool_results": []}
    last = api.post("/exec/programmatic", **body)
    assert last["stdout"] == "no such city\nno result was sent for this call\n"


def test_bash_calls_tools(api):
    """Functions that take JSON and print compact JSON; a nested shell has them too."""
    code = ':& wait $!\nset -u\ndata=$(get_weather \'{"city": "SF"}\')\necho "got $data"\nbash -c \'get_weather\''
    first = start(api, code, lang="bash")
    assert first["tool_calls"][0]["input"] == {"city": "SF"}
    second = answer(api, first)
    assert second["tool_calls"][0]["input"] == {}
    last = answer(api, second, {second["tool_calls"][0]["id"]: "text"})
    assert last["stdout"] == 'got {"city":"SF"}\n"text"\n'


def test_files_go_in(api):
    """As with `/exec`."""
    session, file = api.upload("in.txt", b"input")
    told = start(
        api, "print(open('in.txt').read())", files=[{"id": file, "name": "in.txt", "session_id": session}]
    )
    assert (told["status"], told["stdout"]) == ("completed", "input\n")


def test_a_failure_and_a_timeout(api):
    """Said in the words that the client passes on; nothing is registered."""
    failed = start(api, "open('x', 'w').write('x')\n1/0")
    assert (failed["status"], failed["error"], failed["files"]) == ("error", "Sandbox exited with code 1", [])
    assert failed["stderr"].startswith('Traceback (most recent call last):\n  File "main.py", line 2')

    slow = api.post("/exec/programmatic", code="while True: pass", tools=TOOLS, timeout=1000)
    assert (slow["status"], slow["error"]) == ("error", "Time limit exceeded")


def test_a_token_holds_once_and_for_its_key(api, new_key):
    """Somebody else's is unknown and stays good; a used one is gone."""
    first = start(api, "print(await get_weather(city='SF'))")
    body = {"continuation_token": first["continuation_token"], "tool_results": []}

    stranger = new_key().ask("POST", "/exec/programmatic", json=body)
    assert (stranger.status_code, stranger.json()["error"]) == (404, "not_found")
    assert answer(api, first)["status"] == "completed"
    assert api.ask("POST", "/exec/programmatic", json=body).status_code == 404
    assert first["continuation_token"] not in stranger.text


def test_how_many_may_wait_is_bounded(new_key):
    """One key's runs that wait: 32, then a 429 in the client's form; they end with their answers."""
    api = new_key()
    waiting = [start(api, "await get_weather()") for _ in range(32)]
    body = {"code": "await get_weather()", "tools": TOOLS}
    refused = api.ask("POST", "/exec/programmatic", json=body)
    assert (refused.status_code, refused.json()["error"]) == (429, "rate_limited")
    assert refused.json()["retry_after_seconds"] > 0

    for told in waiting:
        assert answer(api, told)["status"] == "completed"


def test_a_run_ends_with_its_sandbox(start_server):
    """A server that lets sandboxes live for a moment only ends what waits; its token leads to a clear answer."""
    server = start_server(max_sandbox_seconds=3, pool_size=1, drain_seconds=1)
    api = CodeApi(server.url, {"X-API-Key": server.token})
    first = start(api, "print(await get_weather())")

    while api.session.get(f"{server.url}/v1/sandboxes").json()["items"]:
        pass

    body = {"continuation_token": first["continuation_token"], "tool_results": []}
    assert api.ask("POST", "/exec/programmatic", json=body).status_code in (404, 410)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": []},
        {"code": "1", "tools": [{"name": 3}]},
        {"code": "1", "tools": [{"name": "a-b"}, {"name": "a_b"}]},
        {"code": "1", "tools": [], "lang": "ruby"},
        {"continuation_token": "x", "tool_results": [{"result": 1}]},
    ],
)
def test_malformed_calls_are_refused(api, body):
    assert api.ask("POST", "/exec/programmatic", json=body).status_code == 422


def test_a_request_can_be_cancelled(server, api):
    """By the id that the client gave it, from another connection; an unknown id is no error."""
    other = CodeApi(server.url, {"X-API-Key": server.token})
    body = {"code": "while True: pass", "tools": TOOLS, "timeout": 60_000}
    headers = {"X-LibreChat-Code-Request-ID": "request-1"}

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other.ask, "POST", "/exec/programmatic", json=body, headers=headers)

        while not api.post("/exec/programmatic/cancel", request_id="request-1")["cancelled"]:
            pass

        assert running.result().json()["status"] == "error"

    assert api.post("/exec/programmatic/cancel", request_id="nobody") == {"cancelled": False}
