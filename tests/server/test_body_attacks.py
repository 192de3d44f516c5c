"""Bodies, readers and names that are not meant well, sent by somebody who has a key: rows W07, W08 and X10."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute

from .walking import METHODS, filled

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


# -- X10: a reader who does not read


def test_x10_a_stateless_stream_waits_for_no_caller(client: httpx2.Client, server: Any) -> None:
    """What a run without a sandbox of its own writes is bounded like any other while its reader sleeps."""
    code = (
        "from IPython.display import display\n"
        "handle = display({'text/plain': ''}, raw=True, display_id=True)\n"
        "while True: handle.update({'text/plain': 'x' * 4_000_000}, raw=True)"
    )
    body = {"code": code, "timeout_seconds": 60}
    headers = {**server.headers, "Accept": "application/x-ndjson"}

    with client.stream("POST", "/v1/execute", json=body, headers=headers) as answer:
        # It gives its place back when it has been stopped, though nobody has read a byte.
        while "fumehood_queue_running 0.0" not in client.get("/metrics", headers=server.headers).text:
            continue

        last = json.loads(answer.read().splitlines()[-1])

    assert last["problem"]["code"] == "slow_reader"


# -- W08: bodies that are JSON, and are not meant well


ODD_BODIES = {
    "deep": b"[" * 100_000,
    "deeper": b'{"code":' * 50_000,
    "half": b'{"code": "x',
    "digits": b'{"code": "1", "timeout_seconds": ' + b"9" * 5000 + b"}",
    "exponent": b'{"code": "1", "timeout_seconds": 1e999}',
    "NaN": b'{"code": "1", "timeout_seconds": NaN}',
    "surrogate": b'{"code": "\\ud800"}',
    "surrogate key": b'{"\\ud800": "\\udfff", "code": "1", "envs": {"\\ud800": "\\ud800"}}',
    "surrogate file": b'{"code": "1", "files": {"\\ud800": {"text": "\\ud800"}}, "outputs": ["\\ud800"]}',
    "surrogate path": b'{"path": "\\ud800", "source": "\\ud800", "destination": "\\ud800", "method": "GET"}',
    "surrogate argv": b'{"argv": ["\\ud800"], "cwd": "\\ud800", "envs": {"a": "\\ud800"}}',
    "surrogate label": b'{"metadata": {"\\ud800": "\\ud800"}, "template": "\\ud800", "name": "\\ud800"}',
    "surrogate e2b": b'{"templateID": "\\ud800", "metadata": {"a": "\\ud800"}, "envVars": {"\\ud800": "1"}}',
    "nul": b'{"code": "1", "template": "a\\u0000b", "name": "\\u0000", "path": "\\u0000"}',
    "bytes": b"\xff\xfe\x00",
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "empty": b"",
    "twice": b'{"code": "1", "code": 2, "name": "a", "name": 3}',
    "types": b'{"code": 1, "name": [], "path": {}, "argv": "x", "limits": 5, "files": [], "kernel": 1}',
}


def json_routes(routes: list[BaseRoute], place: str) -> list[tuple[str, str]]:
    """Method and path of all routes that may read a body, but those that end what they are asked about."""
    found = []

    for route in routes:
        path = str(getattr(route, "path", ""))

        if not path.startswith("/") or path.endswith(("/pause", "/cancel")) or "{path:path}" in path:
            continue

        path = path.replace("/v1/sandboxes/{sandbox_id}", place).replace("{context_id}", "default")
        found += [
            (method, filled(path))
            for method in (getattr(route, "methods", None) or ())
            if method in METHODS[1:4]
        ]

    return found


@pytest.mark.parametrize("name", ODD_BODIES)
def test_w08_no_body_is_a_fault(
    client: httpx2.Client, server: Any, routes: list[BaseRoute], place: str, name: str
) -> None:
    """On any route of any dialect: refused or done, with an answer of bounded size, and never a 500."""
    headers = {**server.headers, "Content-Type": "application/json"}
    asked = json_routes(routes, place)
    assert len(asked) > 60

    for method, path in asked:
        answer = client.request(method, path, content=ODD_BODIES[name], headers=headers)
        assert answer.status_code != 500, (method, path, answer.text)
        assert len(answer.content) < 100_000, (method, path)


def test_w08_a_refusal_repeats_little(client: httpx2.Client, server: Any, place: str) -> None:
    """Names that a caller makes up come back in the answer, though not as many and not as long as it likes."""
    long, many = "n" * 1_000_000, {f"name{number}": 1 for number in range(10_000)}

    for body in ({long: 1}, many, {"envs": {long: 1}}, {"files": {long: {"base64": "?"}}, "code": ""}):
        for path in ("/v1/execute", "/v1/sandboxes", "/v1/keys", "/run_code", "/run_jupyter"):
            answer = client.post(path, json=body, headers=server.headers)
            assert answer.status_code in (400, 422), path
            assert len(answer.content) < 20_000, path


BOMBED = (
    "/v1/execute",
    "/v1/sandboxes",
    "/v1/keys",
    "/run_code",
    "/run_jupyter",
    "/sandboxes",
    "/librechat/exec",
    "/replit",
)


@pytest.mark.parametrize("path", BOMBED)
def test_w08_a_small_body_does_not_become_a_large_one(client: httpx2.Client, server: Any, path: str) -> None:
    """Empty lists cost thirty times in memory what they cost on the wire."""
    headers = {**server.headers, "Content-Type": "application/json"}

    for filling in (b"[],", b'"",', b"{},"):
        body = b'{"code": "1", "x": [' + filling * 700_000 + b"0]}"
        answer = client.post(path, content=body, headers=headers)
        assert answer.status_code in (400, 422), answer.text
        assert "values" in answer.text


def test_w08_text_may_be_as_long_as_it_likes(client: httpx2.Client, server: Any) -> None:
    """Control: a table of two million cells, in a file and in quotes, is one value."""
    table = '1,"[{",' * 1_000_000
    body = {"code": "print(len(open('t').read()))", "files": {"t": {"text": table}}}
    answer = client.post("/v1/execute", json=body, headers=server.headers)
    assert answer.json()["execution"]["logs"]["stdout"] == [f"{len(table)}\n"]


# -- W07: what a guest has named and written, downloaded


NAMES = ('a"b.html', "a\r\nSet-Cookie: x=1.svg", "\u00e4\u202e.xml", "x;y=z.pdf", "%0d%0a.html")


def test_w07_downloads_are_shown_by_no_browser(
    client: httpx2.Client, server: Any, api: httpx2.Client
) -> None:
    """Native, by a signed address, and by E2B's routes: whatever a guest has called it, also no name at all."""
    made = client.post("/sandboxes", json={"templateID": "base"}, headers={"X-API-Key": server.token}).json()
    place = f"/v1/sandboxes/{made['sandboxID']}"
    named = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
    code = f"for name in {NAMES!r}: open('/home/user/' + name, 'w').write('<script>alert(1)</script>')\n"
    code += "open(b'/home/user/\\xff\\xfe.html', 'w').write('x')"
    assert api.post(f"{place}/executions", json={"code": code}).json()["error"] is None
    listed = [item["path"] for item in api.get(f"{place}/files").json()["items"]]
    seen = 0

    for path in {*listed, *(f"/home/user/{name}" for name in NAMES)}:
        signed = api.post(f"{place}/files/sign", json={"path": path, "method": "GET"})
        answers = [
            api.get(f"{place}/files/content", params={"path": path}),
            client.get("/files", params={"path": path}, headers=named),
            *([httpx2.get(signed.json()["url"])] if signed.status_code == 200 else []),
        ]

        for answer in answers:
            assert answer.status_code in (200, 400, 404, 409, 422), (path, answer.text)

            if answer.status_code == 200:
                seen += 1
                assert answer.headers["content-disposition"].startswith("attachment;")
                assert answer.headers["content-type"] == "application/octet-stream"
                assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
                assert "set-cookie" not in answer.headers

    assert seen >= 3 * len(NAMES)
    api.delete(place)
