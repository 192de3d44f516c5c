"""Executions that go on without their request: followed again, by several, and never by a stranger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import httpx2
import pytest

from fumehood.port.backend import Backend
from fumehood.server import detached
from fumehood.server.principal import Principal
from fumehood.values.events import Event, ExecutionStarted, StdoutEvent
from fumehood.values.requests import ExecuteRequest


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
    # In a cell before: on a busy machine the interrupt may come before the first line has run.
    assert run("x = 7")["error"] is None
    running = begin(api, place, "while True: pass")
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


def test_a_line_that_is_too_long_is_a_gap_between_others(api: httpx2.Client, place: str) -> None:
    """Five megabytes in one line: it alone is missing, and the record has it."""
    code = "print('before', flush=True)\ndisplay('x' * (5 << 20))\nprint('after', flush=True)"
    run = begin(api, place, code)
    list(lines_of(api, place, run["id"]))
    again = list(lines_of(api, place, run["id"]))
    assert [line["type"] for line in again] == ["started", "stdout", "gap", "stdout", "finished"]
    assert (again[2]["from"], again[2]["to"]) == (3, 3)
    assert [line["seq"] for line in again] == [1, 2, 3, 4, 5]
    assert len(again[-1]["execution"]["results"]) == 1


def test_a_key_keeps_so_many_and_takes_the_place_of_no_other(
    other: httpx2.Client, place: str, api: Any
) -> None:
    """One more than its bound forgets its oldest that has ended; the run of another key stays, as do those that run."""
    kept = begin(api, place, "pass")["id"]
    own = f"/v1/sandboxes/{other.post('/v1/sandboxes', json={}).json()['id']}"
    context = other.post(f"{own}/contexts", json={}).json()["id"]
    running = begin(other, own, "while True: pass", context_id=context)["id"]
    names = [begin(other, own, "pass")["id"] for _ in range(detached._MAX_RUNS_OF_KEY)]

    def status(name: str) -> int:
        with other.stream("GET", f"{own}/executions/{name}/events") as answer:
            return answer.status_code

    assert [status(name) for name in (names[0], names[1], names[-1], running)] == [404, 200, 200, 200]
    assert list(lines_of(api, place, kept))[-1]["type"] == "finished"
    other.delete(own)


class Printing:
    """A sandbox whose code prints lines of a megabyte, as many as the code says, and then waits."""

    async def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        yield ExecutionStarted(execution_id=sandbox_id, context_id="default")

        for _ in range(int(request.code)):
            yield StdoutEvent(text="x" * (1 << 20), at_seconds=0.0)

        await asyncio.Event().wait()


def test_all_keys_together_keep_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that keeps most loses its own lines; another one keeps what it has."""
    monkeypatch.setattr(detached, "_MAX_KEPT_BYTES_OF_ALL", 8 << 20)
    asyncio.run(_keep_much())


async def _keep_much() -> None:
    runs, backend = detached.DetachedRuns(), cast("Backend", Printing())
    begun = []

    for key, count in (("modest", "2"), ("greedy", "3"), ("greedy", "3"), ("greedy", "3")):
        principal = Principal(key_id=key)
        begun.append(await runs.begin(principal, backend, "s", ExecuteRequest(code=count)))

        while begun[-1]._last < 1 + int(count):
            await asyncio.sleep(0)

    held = [run.kept_bytes >> 20 for run in begun]
    assert held[0] == 2
    assert sum(run.kept_bytes for run in begun) == runs._kept_bytes <= 8 << 20
    assert [run.waiting_bytes for run in begun] == [0] * 4
    assert (await anext(begun[1].follow(0)))["type"] in ("gap", "started")
    await runs.close()
    assert (runs._kept_bytes, runs._forgetting) == (0, {})


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
