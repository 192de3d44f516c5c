"""What a key's policy bounds, asked for in every way: limits, times, executions and CPU seconds (row W09)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.waiting import until

from fumehood import LimitForbiddenError, Limits, Sandbox

MIB = 1 << 20
NewKey = Callable[..., httpx2.Client]
BURN = "x = 0\nfor i in range(2_000_000): x += i\nprint(x)"


@pytest.fixture(scope="module")
def owner(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=120) as client:
        yield client


@pytest.fixture
def key(server: Any, owner: httpx2.Client) -> Iterator[NewKey]:
    """Makes a key with a policy and returns a client that holds it."""
    made: list[httpx2.Client] = []

    def make(scopes: tuple[str, ...] = ("execute", "sandboxes"), **policy: Any) -> httpx2.Client:
        answer = owner.post("/v1/keys", json={"name": "bounded", "scopes": scopes, "policy": policy})
        assert answer.status_code == 201, answer.text
        token = answer.json()["token"]
        headers = {"Authorization": f"Bearer {token}", "X-API-Key": token}
        made.append(httpx2.Client(base_url=server.url, headers=headers, timeout=120))
        return made[-1]

    yield make

    for client in made:
        for item in client.get("/v1/sandboxes").json().get("items", ()):
            client.delete(f"/v1/sandboxes/{item['id']}")

        client.close()


def sandbox_of(client: httpx2.Client, **given: Any) -> str:
    answer = client.post("/v1/sandboxes", json=given)
    assert answer.status_code == 201, answer.text
    return f"/v1/sandboxes/{answer.json()['id']}"


def used(client: httpx2.Client) -> dict[str, Any]:
    """What a key has used today."""
    (found,) = client.get("/v1/usage").json()["items"] or [{"executions": 0, "cpu_seconds": 0.0}]
    return dict(found)


# -- limits


def test_w09_what_is_not_asked_for_is_cut_to_what_a_key_may_have(key: NewKey) -> None:
    """The documented key runs code without naming a limit, and each sandbox of it has the key's bound."""
    client = key(max_limits={"memory_bytes": 512 * MIB, "cpu_cores": 0.5, "wall_seconds": 5})
    ran = client.post("/v1/execute", json={"code": "6 * 7"})
    assert (ran.status_code, ran.json()["execution"]["text"]) == (200, "42"), ran.text
    batch = client.post("/v1/execute/batch", json={"requests": [{"code": "1"}, {"code": "2"}]})
    assert '"text":"2"' in batch.text.replace(" ", ""), batch.text
    limits = client.get(sandbox_of(client)).json()["limits"]
    assert (limits["memory_bytes"], limits["cpu_cores"], limits["wall_seconds"]) == (512 * MIB, 0.5, 5)
    asked = {"memory": "256M", "disk": None}
    assert client.get(sandbox_of(client, limits=asked)).json()["limits"]["memory_bytes"] == 256 * MIB
    refused = client.post("/v1/sandboxes", json={"limits": {"memory": "2X"}})
    assert (refused.status_code, "a size such as '512M'" in refused.json()["hint"]) == (422, True)


@pytest.mark.parametrize(
    "asked",
    [{"memory_bytes": 2048 * MIB}, {"memory_bytes": 1024 * MIB}, {"memory": "2G"}, {"cpu_cores": None}],
)
def test_w09_what_is_asked_for_above_it_is_refused(key: NewKey, asked: dict[str, Any]) -> None:
    """In plain words, also when it is the default; and nobody is told to wait for what time does not change."""
    client = key(max_limits={"memory_bytes": 512 * MIB, "cpu_cores": 0.5})

    for path, body in (("/v1/sandboxes", {}), ("/v1/execute", {"code": "1"})):
        refused = client.post(path, json={**body, "limits": asked})
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (403, "limit_forbidden"), problem
        assert ("0.5 cores" if "cpu_cores" in asked else "512 MiB") in problem["detail"]
        assert "e+" not in problem["detail"] + problem["hint"]
        assert "wait" not in problem["hint"]
        # Control: as much as it may have.
        fitting = {"limits": {"memory_bytes": 512 * MIB}}
        assert client.post(path, json={**body, **fitting}).status_code in (200, 201)


DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "e2b": ("/sandboxes", {"templateID": "base"}),
    "openai": ("/v1/containers", {"name": "c"}),
    "jupyter": ("/api/kernels", {}),
    "fusion": ("/run_code", {"code": "print(42)", "language": "python"}),
    "fusion cells": ("/run_jupyter", {"cells": ["42"]}),
    "librechat": ("/librechat/exec", {"code": "print(42)", "lang": "py"}),
    "replit": ("/replit", {"code": "42"}),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_w09_in_every_dialect_a_bounded_key_is_of_use(key: NewKey, name: str) -> None:
    """What a dialect asks for by itself is cut to what the key may have."""
    client = key(max_limits={"memory_bytes": 256 * MIB, "wall_seconds": 8, "cpu_cores": 1})
    path, body = DIALECTS[name]
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 201), answer.text

    for item in client.get("/v1/sandboxes").json()["items"]:
        assert item["limits"]["memory_bytes"] == 256 * MIB
        assert item["limits"]["wall_seconds"] <= 8


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/containers", {"name": "c", "memory_limit": "4g"}),
        ("/v1/containers", {"name": "c", "memory_limit": "1g"}),
        ("/run_code", {"code": "1", "language": "python", "memory_limit_MB": 1024}),
        ("/run_jupyter", {"cells": ["1"], "memory_limit_MB": 1024}),
        ("/run_jupyter", {"cells": ["1"], "cell_timeout": 60}),
        ("/librechat/exec", {"code": "1", "lang": "py", "timeout": 60_000}),
    ],
)
def test_w09_in_every_dialect_what_is_asked_for_above_it_is_refused(
    key: NewKey, path: str, body: dict[str, Any]
) -> None:
    """And said in the answer's own form."""
    client = key(max_limits={"memory_bytes": 256 * MIB, "wall_seconds": 8})
    answer = client.post(path, json=body)
    assert "allows at most" in answer.text, answer.text
    assert answer.status_code not in (429, 500)


def test_w09_the_python_client_gets_what_its_key_allows(key: NewKey, server: Any) -> None:
    """It names no limit that its caller has not chosen."""
    token = key(max_limits={"memory_bytes": 512 * MIB}).headers["x-api-key"]

    with Sandbox(url=server.url, api_key=token) as sandbox:
        assert sandbox.run_code("6 * 7").text == "42"
        assert sandbox.get_info().limits.memory_bytes == 512 * MIB

    with pytest.raises(LimitForbiddenError) as refused:
        Sandbox(url=server.url, api_key=token, limits=Limits(memory_bytes=2048 * MIB))

    assert "512 MiB" in refused.value.message


# -- times


def test_w09_the_time_of_an_execution_is_within_the_keys(key: NewKey) -> None:
    """Neither a sandbox's own time nor one that is asked for with the code passes it."""
    client = key(max_limits={"wall_seconds": 1})
    place = sandbox_of(client)
    asked = {"code": "import time; time.sleep(30)", "timeout_seconds": 3600}

    for path in (f"{place}/executions", "/v1/execute"):
        refused = client.post(path, json=asked)
        assert (refused.status_code, refused.json()["code"]) == (403, "limit_forbidden"), refused.text
        assert "1 seconds" in refused.json()["detail"]

    # What was refused was not begun.
    assert used(client)["executions"] == 0
    # Control: without a time of its own it runs, and ends at the key's.
    ended = client.post(f"{place}/executions", json={"code": asked["code"]}).json()
    assert ended["error"]["kind"] == "time_limit"
    refused = client.post(f"{place}/judge", json={"code": "1", "stdins": [""], "timeout_seconds": 60})
    assert refused.status_code == 403, refused.text
    (run,) = client.post(f"{place}/judge", json={"code": asked["code"], "stdins": [""]}).json()["items"]
    assert run["kind"] == "time_limit"


@pytest.mark.parametrize(
    "asked",
    [{}, {"timeout_seconds": 3600}, {"pty": {"cols": 80, "rows": 24}}, {"timeout_seconds": 0.5}],
    ids=["no time", "more time", "a terminal", "less time"],
)
def test_w09_the_time_of_a_command_is_within_the_keys(key: NewKey, asked: dict[str, Any]) -> None:
    """Whatever it asks for, it is killed."""
    client = key(max_limits={"wall_seconds": 1})
    place = sandbox_of(client)
    begun = client.post(f"{place}/commands", json={"command": "sleep 300", **asked})
    assert begun.is_success, begun.text
    until(lambda: client.get(f"{place}/commands").json()["items"] == [], "it was killed")


def test_w09_a_command_of_an_unbounded_key_is_not_killed(key: NewKey) -> None:
    """The control."""
    client = key()
    place = sandbox_of(client)
    assert client.post(f"{place}/commands", json={"command": "sleep 300"}).is_success
    time.sleep(3)
    assert len(client.get(f"{place}/commands").json()["items"]) == 1


# -- executions and CPU seconds


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("executions", {"code": "1"}),
        ("judge", {"code": "print(1)", "stdins": ["", ""]}),
        ("contexts/default/inspect", {"code": "len"}),
        ("contexts/default/complete", {"code": "le"}),
        ("commands", {"command": "true"}),
        ("save", {}),
    ],
)
def test_w09_what_runs_code_counts_and_ends_with_the_day(
    key: NewKey, path: str, body: dict[str, Any]
) -> None:
    """Executions, judged cases, completions, commands: refused when the executions of the day are used up."""
    client = key(executions_per_day=3)
    place = sandbox_of(client)
    assert client.post(f"{place}/{path}", json=body).status_code in (200, 201)
    count = 2 if path == "judge" else 1
    assert used(client)["executions"] == count

    while used(client)["executions"] < 3:
        assert client.post(f"{place}/executions", json={"code": "1"}).status_code == 200

    refused = client.post(f"{place}/{path}", json=body)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota"), refused.text
    # What is not code goes on: files are not lost.
    assert client.get(f"{place}/files").status_code == 200


def test_w09_judged_cases_are_as_many_as_are_left(key: NewKey) -> None:
    """Each of them is a program of its own: more than are left are not begun."""
    client = key(executions_per_day=5)
    place = sandbox_of(client)
    refused = client.post(f"{place}/judge", json={"code": "1", "stdins": [""] * 6})
    assert (refused.status_code, used(client)["executions"]) == (429, 0), refused.text
    assert client.post(f"{place}/judge", json={"code": "1", "stdins": [""] * 5}).status_code == 200


def test_w09_the_cpu_time_of_judged_programs_counts(key: NewKey) -> None:
    """As much as the sandbox has used, and the next is held against it."""
    client = key(cpu_seconds_per_day=0.3)
    place = sandbox_of(client)
    assert client.post(f"{place}/judge", json={"code": BURN, "stdins": [""] * 4}).status_code == 200
    total = client.get(f"{place}/metrics").json()["cpu_seconds"]
    assert used(client)["cpu_seconds"] > 0.3
    assert used(client)["cpu_seconds"] == pytest.approx(total, rel=0.25, abs=0.1)
    refused = client.post(f"{place}/judge", json={"code": BURN, "stdins": [""]})
    assert (refused.status_code, refused.json()["fields"]["quota"]) == (429, "CPU seconds per day")


@pytest.mark.parametrize("how", ["command", "left behind"])
def test_w09_the_cpu_time_of_what_is_no_execution_counts(key: NewKey, how: str) -> None:
    """Commands, and processes that an execution has left behind; also when the sandbox is killed at once."""
    client = key()
    place = sandbox_of(client)
    loop = f"python3 -c {BURN!r}".replace("\\n", "\n")

    if how == "command":
        started = client.post(f"{place}/commands", json={"command": loop})
    else:
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}]); None"
        started = client.post(f"{place}/executions", json={"code": code})

    assert started.status_code in (200, 201), started.text
    until(lambda: client.get(f"{place}/metrics").json()["cpu_seconds"] > 0.3, "it has computed")
    client.delete(place)
    assert used(client)["cpu_seconds"] > 0.25


# -- the scope `keys`


def make_key(client: httpx2.Client, **given: Any) -> httpx2.Response:
    return client.post("/v1/keys", json={"name": "made", **given})


def test_w09_a_key_gives_no_more_than_it_has(key: NewKey) -> None:
    """No scope, quota, limit, network or end beyond its own; what it does not name is as its own."""
    own: dict[str, Any] = {
        "executions_per_day": 10,
        "max_sandboxes": 2,
        "max_limits": {"memory_bytes": 256 * MIB},
        "max_network": "none",
        "expires_at": "2099-01-01T00:00:00Z",
    }
    maker = key(("keys", "execute"), **own)
    refused = make_key(maker, scopes=["execute", "sandboxes"])
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), refused.text

    for more in (
        {"executions_per_day": 11},
        {"executions_per_day": None},
        {"max_sandboxes": 3},
        {"max_limits": {"memory_bytes": 257 * MIB}},
        {"max_network": "listed"},
        {"expires_at": "2100-01-01T00:00:00Z"},
        {"expires_at": None},
    ):
        refused = make_key(maker, scopes=["execute"], policy=more)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument"), (
            more,
            refused.text,
        )

    # Control: the same or less, and what is left out.
    made = make_key(maker, scopes=["execute"], policy={"executions_per_day": 5}).json()["key"]
    assert made["scopes"] == ["execute"]
    policy = {name: value for name, value in made["policy"].items() if value is not None}
    assert policy == {**own, "executions_per_day": 5}


def test_w09_a_key_deals_with_those_that_come_of_it_alone(key: NewKey, owner: httpx2.Client) -> None:
    """It neither takes over another tenant by a new token, nor ends or sees it; its own it may."""
    other, maker = key(), key(("keys", "execute"))
    other_id = used_id(other)
    names = {item["id"] for item in maker.get("/v1/keys").json()["items"]}
    assert names == {used_id(maker)}

    for method, path, body in (
        ("GET", f"/v1/keys/{other_id}", None),
        ("POST", f"/v1/keys/{other_id}/rotate", {}),
        ("PATCH", f"/v1/keys/{other_id}", {"name": "mine"}),
        ("DELETE", f"/v1/keys/{other_id}", None),
    ):
        refused = maker.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (404, "key_not_found"), refused.text

    assert other.post("/v1/execute", json={"code": "1"}).status_code == 200
    assert maker.get("/v1/usage", params={"key_id": other_id}).json()["items"] == []

    # Control: what it made, and what that made.
    child = make_key(maker, scopes=["keys", "execute"]).json()
    assert child["key"]["made_by"] == used_id(maker)
    headers = {"X-API-Key": child["token"], "Authorization": f"Bearer {child['token']}"}
    grandchild = maker.post("/v1/keys", json={"name": "g", "scopes": ["execute"]}, headers=headers).json()
    names = {item["id"] for item in maker.get("/v1/keys").json()["items"]}
    assert names == {used_id(maker), child["key"]["id"], grandchild["key"]["id"]}
    assert maker.post(f"/v1/keys/{grandchild['key']['id']}/rotate", json={}).status_code == 200
    assert maker.delete(f"/v1/keys/{child['key']['id']}").status_code == 204
    # The owner deals with all.
    assert owner.post(f"/v1/keys/{other_id}/rotate", json={}).status_code == 200


def used_id(client: httpx2.Client) -> str:
    """The id of the key that a client holds: it is a part of its token."""
    return str(client.headers["x-api-key"]).split("_")[1]
