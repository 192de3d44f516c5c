"""Executions that go on without their request: followed again, by several, and never by a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fumehood.server import detached


def begin(api: httpx2.Client, place: str, code: str, **given: Any) -> dict[str, Any]:
    answer = api.post(f"{place}/executions", json={"code": code, "detached": True, **given})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def lines_of(api: httpx2.Client, place: str, name: str, after: int = 0) -> Iterator[dict[str, Any]]:
    with api.stream("GET", f"{place}/executions/{name}/events", params={"after": after}) as answer:
        assert answer.status_code == 200, answer.read()

        for text in answer.iter_lines():
            if (line := json.loads(text))["type"] != "keepalive":
                yield line


def test_it_goes_on_when_its_client_goes_and_is_followed_again(api: httpx2.Client, place: str) -> None:
    """One follower leaves in the middle, another comes later and has all, a third goes on where the first was."""
    code = "import time\nfor n in range(5):\n    print(n, flush=True)\n    time.sleep(0.1)\n'done'"
    run = begin(api, place, code)
    assert run["state"] == "running"
    first = lines_of(api, place, run["id"])
    left = [next(first) for _ in range(3)]
    first.close()
    whole = list(lines_of(api, place, run["id"]))
    assert whole[0]["type"] == "started"
    assert "".join(line["text"] for line in whole if line["type"] == "stdout").split() == list("01234")
    assert [line["seq"] for line in whole] == list(range(1, len(whole) + 1))
    assert (whole[-1]["type"], whole[-1]["execution"]["text"]) == ("finished", "'done'")
    rest = list(lines_of(api, place, run["execution_id"], after=left[-1]["seq"]))
    assert rest == whole[3:]
    cell = api.get(f"{place}/executions/{run['id']}").json()
    assert (cell["id"], cell["state"], cell["via"]) == (run["execution_id"], "ended", "api")


def test_one_that_waits_is_named_answered_and_ended(api: httpx2.Client, place: str) -> None:
    """A question goes to the run's name; a second one waits behind it, and is taken out of the queue."""
    asking = begin(api, place, "input('who? ').upper()", allow_input=True)
    question = next(line for line in lines_of(api, place, asking["id"]) if line["type"] == "input_request")
    cell = api.get(f"{place}/executions/{asking['id']}").json()
    assert cell["input_request"] == {
        "request_id": question["request_id"],
        "prompt": "who? ",
        "is_password": False,
    }
    waiting = begin(api, place, "1/0")
    assert (waiting["state"], waiting["execution_id"]) == ("waiting", None)
    seen = api.get(f"{place}/executions/{waiting['id']}").json()
    assert (seen["state"], seen["position"], seen["code"]) == ("waiting", -1, "1/0")
    assert api.delete(f"{place}/executions/{waiting['id']}").status_code == 204
    body = {"request_id": question["request_id"], "text": "ada"}
    assert api.post(f"{place}/executions/{asking['id']}/input", json=body).status_code == 204
    assert list(lines_of(api, place, asking["id"]))[-1]["execution"]["text"] == "'ADA'"
    codes = [cell["code"] for cell in api.get(f"{place}/contexts/default/executions").json()["items"]]
    assert codes == ["input('who? ').upper()"]


def test_ending_one_interrupts_it_and_keeps_the_state(api: httpx2.Client, place: str, run: Any) -> None:
    running = begin(api, place, "x = 7\nwhile True: pass")
    assert api.delete(f"{place}/executions/{running['id']}").status_code == 204
    assert api.get(f"{place}/executions/{running['id']}").json()["outcome"] == "interrupted"
    assert run("x")["text"] == "7"
    # A second time is no error.
    assert api.delete(f"{place}/executions/{running['id']}").status_code == 204


def test_strangers_find_none(api: httpx2.Client, other: httpx2.Client, place: str) -> None:
    """Neither to follow, nor to end; its owner does both."""
    name = begin(api, place, "1")["id"]
    own = f"/v1/sandboxes/{other.post('/v1/sandboxes', json={}).json()['id']}"

    for base in (place, own):
        assert other.get(f"{base}/executions/{name}/events").status_code == 404
        assert other.delete(f"{base}/executions/{name}").status_code == 404
        assert (
            other.post(f"{base}/executions/{name}/input", json={"request_id": "r", "text": ""}).status_code
            == 404
        )

    assert list(lines_of(api, place, name))[-1]["type"] == "finished"
    assert api.get(f"{place}/executions/nothing/events").status_code == 404
    other.delete(own)


def test_what_is_refused_is_refused_at_once(api: httpx2.Client, place: str) -> None:
    """A context that is not there, code without a record, a sandbox that has ended."""
    base = {"code": "1", "detached": True}
    assert api.post(f"{place}/executions", json={**base, "context_id": "nothing"}).status_code == 404
    assert api.post(f"{place}/executions", json={**base, "silent": True}).status_code == 422
    assert api.post("/v1/sandboxes/nothing/executions", json=base).status_code == 404


def test_lines_that_are_not_kept_are_a_gap(api: httpx2.Client, place: str) -> None:
    """Eight megabytes of results: what is kept is bounded, and the whole is in the record all the same."""
    code = "for n in range(8): display('x' * (1 << 20))"
    run = begin(api, place, code)
    whole = list(lines_of(api, place, run["id"]))
    again = list(lines_of(api, place, run["id"]))
    assert whole[-1] == again[-1]
    assert (again[0]["type"], again[0]["from"]) == ("gap", 1)
    assert again[1]["seq"] == again[0]["to"] + 1
    kept = sum(len(json.dumps(line)) for line in again[1:-1])
    assert kept <= detached._MAX_KEPT_BYTES + (1 << 20)
    assert len(again[-1]["execution"]["results"]) == 8


def test_a_sandbox_that_ends_ends_it(api: httpx2.Client) -> None:
    """Its followers get the reason."""
    place = f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}"
    run = begin(api, place, "while True: pass")
    lines = lines_of(api, place, run["id"])
    assert next(lines)["type"] == "started"
    api.delete(place)
    last = list(lines)[-1]
    assert (last["type"], last["problem"]["code"]) == ("problem", "sandbox_closed")


@pytest.mark.parametrize("after", [-1, "x"])
def test_a_number_without_sense_is_refused(after: Any, api: httpx2.Client, place: str) -> None:
    assert api.get(f"{place}/executions/run_x/events", params={"after": after}).status_code == 422
