"""Sandboxes over HTTP: made, listed, given time, paused, ended; and never anybody else's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import httpx2
import pytest

from fumehood.server.schemas.sandboxes import NewLimits, NewSandbox
from fumehood.values.limits import Limits
from fumehood.values.requests import SandboxSpec

JSON = "application/json"
PROBLEM = "application/problem+json"


@pytest.fixture
def make(api):
    made = []

    def make_sandbox(client=api, **body):
        answer = client.post("/v1/sandboxes", json=body)
        assert answer.status_code == 201, answer.text
        made.append(answer.json()["id"])
        return answer.json()

    yield make_sandbox

    for sandbox_id in made:
        api.delete(f"/v1/sandboxes/{sandbox_id}")


def test_a_body_without_fields_asks_for_what_the_library_gives_by_default():
    """The defaults of the API are those of the port, and no limit is missing."""
    assert NewSandbox().spec() == SandboxSpec()
    # The two sizes are other words for two of them.
    assert set(NewLimits.model_fields) - {"memory", "disk"} == {item.name for item in fields(Limits)}


def test_a_sandbox_is_what_was_asked_for(api, make):
    """Limits, labels, environment and time are those of the request."""
    asked = {
        "limits": {"memory_bytes": 256 << 20, "wall_seconds": 5},
        "metadata": {"team": "blue"},
        "envs": {"COLOUR": "blue"},
        "timeout_seconds": 100,
        "idle_timeout_seconds": 50,
        "on_timeout": "pause",
        "auto_resume": True,
    }
    made = make(**asked)
    place = f"/v1/sandboxes/{made['id']}"

    assert made == api.get(place).json()
    assert made["state"] == "running"
    assert made["limits"]["memory_bytes"] == 256 << 20
    assert made["limits"]["processes"] == Limits().processes
    assert made["metadata"] == {"team": "blue"}
    assert (made["on_timeout"], made["auto_resume"], made["idle_timeout_seconds"]) == ("pause", True, 50)
    assert made["isolation"]["layers"]
    run = api.post(f"{place}/executions", json={"code": "import os; os.environ['COLOUR']"})
    assert run.json()["text"] == "'blue'"


def test_an_ended_sandbox_is_gone_and_says_why(api, make):
    """DELETE answers when nothing is left; what comes later is told that it has ended."""
    place = f"/v1/sandboxes/{make()['id']}"

    assert api.delete(place).status_code == 204

    for answer in (api.get(place), api.delete(place), api.post(f"{place}/executions", json={"code": "1"})):
        assert answer.status_code == 410
        assert answer.headers["content-type"] == PROBLEM
        assert answer.json()["code"] == "sandbox_closed"
        assert answer.json()["fields"]["reason"] == "killed"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limits": {"memory_bytes": 1}}, "limits.memory_bytes"),
        ({"limits": {"memory": 1 << 30}}, "limits.memory"),
        ({"timeout_seconds": "soon"}, "timeout_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"auto_resume": 1}, "auto_resume"),
        ({"on_timeout": "explode"}, "on_timeout"),
        ({"isolation": "vm"}, "isolation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_wrong_body_is_refused_by_name(api, body, field):
    """What is wrong is named, and nothing is made."""
    answer = api.post("/v1/sandboxes", json=body)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json()["fields"]["faults"][0]["field"] == field


def test_an_unknown_template_is_refused(api):
    """There is no sandbox of a template that is not there."""
    answer = api.post("/v1/sandboxes", json={"template": "no such template"})
    assert (answer.status_code, answer.json()["code"]) == (422, "template")


def test_a_list_is_filtered_and_paged(api, make):
    """Filters hold together; pages follow one another without gap or repetition, whatever comes and goes."""
    made = [make(metadata={"test": "paging", "number": str(number)})["id"] for number in range(5)]
    filters = {"metadata.test": "paging", "state": "running", "template": "default", "limit": "2"}
    first = api.get("/v1/sandboxes", params=filters).json()
    assert [item["id"] for item in first["items"]] == made[:2]

    # One that was given and one that was not are taken away, and a new one comes.
    api.delete(f"/v1/sandboxes/{made[1]}")
    api.delete(f"/v1/sandboxes/{made[3]}")
    made.append(make(metadata={"test": "paging"})["id"])

    second = api.get("/v1/sandboxes", params={**filters, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in second["items"]] == [made[2], made[4]]
    third = api.get("/v1/sandboxes", params={**filters, "cursor": second["next_cursor"]}).json()
    assert [item["id"] for item in third["items"]] == [made[5]]
    assert third["next_cursor"] is None

    one = api.get("/v1/sandboxes", params={"metadata.test": "paging", "metadata.number": "4"}).json()
    assert [item["id"] for item in one["items"]] == [made[4]]


@pytest.mark.parametrize(
    "query",
    ["stat=running", "metadata.=1", "state=running&state=paused", "cursor=x", "cursor=eA==", "limit=0"],
)
def test_a_filter_that_does_not_exist_is_refused(api, query):
    """A filter that is not understood would find too much."""
    assert api.get(f"/v1/sandboxes?{query}").status_code == 422


def test_time_can_be_given(api, place):
    """From now on it lives so long, but never longer than the server allows."""
    before = api.get(place).json()
    after = api.post(f"{place}/timeout", json={"timeout_seconds": 3600}).json()

    assert after["ends_at"] > before["ends_at"]
    assert api.post(f"{place}/timeout", json={"timeout_seconds": 10**7}).status_code == 200
    assert api.post(f"{place}/timeout", json={"timeout_seconds": "soon"}).status_code == 422


def test_a_paused_sandbox_answers_nothing_until_it_is_resumed(api, place, run):
    """It keeps what it holds; calls into it are refused and say so."""
    run("kept = 42")

    assert api.post(f"{place}/pause").json() == {"changed": True}
    assert api.post(f"{place}/pause").json() == {"changed": False}
    assert api.get(place).json()["state"] == "paused"
    assert api.get(f"{place}/metrics").status_code == 200
    refused = api.post(f"{place}/executions", json={"code": "kept"})
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_paused")

    assert api.post(f"{place}/resume").json() == {"changed": True}
    assert api.post(f"{place}/resume").json() == {"changed": False}
    assert run("kept")["text"] == "42"


def test_metrics_are_numbers_of_this_sandbox(api, place, run):
    """What it uses now."""
    run("block = b'x' * 50_000_000")
    metrics = api.get(f"{place}/metrics").json()

    assert metrics["memory_bytes"] > 10_000_000
    assert metrics["processes"] >= 1


ROUTES = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/timeout"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/metrics"),
    ("POST", "/executions"),
    ("POST", "/executions/x/input"),
    ("GET", "/contexts"),
    ("POST", "/contexts"),
    ("DELETE", "/contexts/default"),
    ("POST", "/contexts/default/restart"),
    ("POST", "/contexts/default/interrupt"),
    ("POST", "/contexts/default/complete"),
    ("POST", "/contexts/default/inspect"),
    ("POST", "/contexts/default/is_complete"),
    ("POST", "/contexts/default/comm"),
    ("GET", "/files?path=."),
    ("POST", "/files"),
    ("DELETE", "/files?path=x"),
    ("GET", "/files/content?path=x"),
    ("HEAD", "/files/content?path=x"),
    ("PUT", "/files/content?path=x"),
    ("GET", "/files/info?path=x"),
    ("POST", "/files/directories"),
    ("POST", "/files/rename"),
    ("GET", "/files/watch"),
    ("POST", "/files/sign"),
    ("GET", "/commands"),
    ("POST", "/commands"),
    ("GET", "/commands/7/output"),
    ("POST", "/commands/7/stdin"),
    ("POST", "/commands/7/stdin/close"),
    ("POST", "/commands/7/signal"),
    ("POST", "/commands/7/resize"),
]
BODIES = {
    "/timeout": {"timeout_seconds": 5},
    "/executions": {"code": "1"},
    "/input": {"request_id": "x", "text": "x"},
    "/contexts": {},
    "/complete": {"code": "x"},
    "/inspect": {"code": "x"},
    "/is_complete": {"code": "x"},
    "/comm": {"kind": "comm_msg", "comm_id": "x"},
    "/directories": {"path": "x"},
    "/rename": {"source": "x", "destination": "y"},
    "/sign": {"path": "x"},
    "/commands": {"command": "true"},
    "/signal": {"signal": 9},
    "/resize": {"cols": 1, "rows": 1},
}


def call(client: httpx2.Client, method: str, path: str) -> httpx2.Response:
    body = next((body for end, body in BODIES.items() if method == "POST" and path.endswith(end)), None)

    if path.endswith("/files") and method == "POST":
        return client.request(method, path, files={"file": ("x", b"x")})

    return client.request(method, path) if body is None else client.request(method, path, json=body)


def test_what_is_somebody_elses_answers_like_what_never_was(other, place):
    """No verb tells a stranger whether a sandbox is there; the bodies differ in the id alone."""
    own = place.rpartition("/")[2]
    unknown = own[:12] + "x" * 20

    for method, path in ROUTES:
        theirs = call(other, method, place + path)
        nobodys = call(other, method, f"/v1/sandboxes/{unknown}{path}")

        assert (theirs.status_code, nobodys.status_code) == (404, 404), (method, path)
        assert theirs.headers["content-type"] == PROBLEM
        said = [answer.text.replace(answer.headers["x-request-id"], "") for answer in (theirs, nobodys)]
        assert said[0] == said[1].replace(unknown, own), (method, path)

    assert other.get("/v1/sandboxes").json()["items"] == []


def test_a_stranger_is_sent_away_before_the_body_is_read(server, place):
    """Every route asks who is there first, whatever else is wrong with the request."""
    with httpx2.Client(base_url=server.url, timeout=60) as nobody:
        for method, path in ROUTES:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "é" * 9}):
                answer = nobody.request(method, place + path, headers=_bytes(headers), content=b"{not json")
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"


def _bytes(headers):
    return {name: value.encode("latin-1") for name, value in headers.items()}


def test_a_key_without_the_scope_is_forbidden(server, api):
    """A key for stateless runs alone has no sandboxes."""
    token = api.post("/v1/keys", json={"name": "runs only", "scopes": ["execute"]}).json()["token"]
    answer = httpx2.get(f"{server.url}/v1/sandboxes", headers={"X-API-Key": token}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_an_idempotent_request_is_done_once(api, make):
    """The same key and body give the same sandbox; another body is refused."""
    headers = {"Idempotency-Key": "make one"}
    first = api.post("/v1/sandboxes", json={"metadata": {"once": "1"}}, headers=headers)
    again = api.post("/v1/sandboxes", json={"metadata": {"once": "1"}}, headers=headers)
    different = api.post("/v1/sandboxes", json={}, headers=headers)

    assert first.status_code == again.status_code == 201
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert (different.status_code, different.json()["code"]) == (409, "idempotency_conflict")
    assert len(api.get("/v1/sandboxes", params={"metadata.once": "1"}).json()["items"]) == 1
    api.delete(f"/v1/sandboxes/{first.json()['id']}")


def test_of_many_at_once_with_one_idempotency_key_one_is_done(api):
    """Whoever is first does it; the others hear its answer, or that it is under way."""

    def create(_):
        headers = {"Idempotency-Key": "race"}
        return api.post("/v1/sandboxes", json={"metadata": {"race": "1"}}, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))

    assert {answer.status_code for answer in answers} <= {201, 409}
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(made) == 1
    assert len(api.get("/v1/sandboxes", params={"metadata.race": "1"}).json()["items"]) == 1
    api.delete(f"/v1/sandboxes/{made.pop()}")


def test_a_refused_request_may_be_sent_again_with_its_key(api):
    """Nothing was done, so the key stands for nothing yet."""
    headers = {"Idempotency-Key": "refused first"}
    body = {"template": "no such template"}

    for _ in range(2):
        answer = api.post("/v1/sandboxes", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "template")
        assert "idempotent-replayed" not in answer.headers


def test_a_server_keeps_the_memory_that_it_shall(start_server: Callable[..., Any]) -> None:
    """With a reserve that no machine has, no sandbox is made, and the answer says why."""
    server = start_server(pool_size=0, dialects="", memory_reserve_bytes=1 << 40)
    answer = httpx2.post(f"{server.url}/v1/sandboxes", json={}, headers=server.headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (503, "capacity"), answer.text
