"""Forks over HTTP: whose they are, within which quotas, and what a request is refused for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest


@pytest.fixture
def tenant(server: Any, api: httpx2.Client) -> Iterator[Callable[..., httpx2.Client]]:
    """Makes clients with keys of their own."""
    made: list[httpx2.Client] = []

    def make(**policy: Any) -> httpx2.Client:
        key = api.post("/v1/keys", json={"name": "a tenant", "policy": policy}).json()
        headers = {"Authorization": f"Bearer {key['token']}"}
        made.append(httpx2.Client(base_url=server.url, headers=headers, timeout=60))
        return made[-1]

    yield make

    for client in made:
        for item in client.get("/v1/sandboxes").json()["items"]:
            client.delete(f"/v1/sandboxes/{item['id']}")

        client.close()


def living(client: httpx2.Client) -> list[str]:
    return [item["id"] for item in client.get("/v1/sandboxes").json()["items"]]


def children(client: httpx2.Client, parent: str) -> list[dict[str, Any]]:
    items = client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]
    return [item for item in items if item["parent_id"] == parent]


def new(client: httpx2.Client, **given: Any) -> str:
    answer = client.post("/v1/sandboxes", json=given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_forks_count_like_any_sandbox(tenant: Callable[..., httpx2.Client]) -> None:
    """All of a call or none: four are allowed, so a fifth is one too many, and nothing is made then."""
    client = tenant(max_sandboxes=4)
    place = f"/v1/sandboxes/{new(client)}"
    client.post(f"{place}/executions", json={"code": "x = [1]"})
    refused = client.post(f"{place}/forks", json={"count": 4})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota")
    assert refused.json()["fields"]["quota"] == "sandboxes"
    assert len(living(client)) == 1

    made = client.post(f"{place}/forks", json={"count": 3})
    assert made.status_code == 201
    forks = made.json()["items"]
    assert {fork["parent_id"] for fork in forks} == {place.rpartition("/")[2]}
    assert [fork["generation"] for fork in forks] == [1, 1, 1]
    assert client.post("/v1/sandboxes", json={}).status_code == 429

    for number, fork in enumerate(forks):
        answer = client.post(
            f"/v1/sandboxes/{fork['id']}/executions", json={"code": f"x.append({number}); x"}
        )
        assert answer.json()["text"] == f"[1, {number}]"

    client.delete(f"/v1/sandboxes/{forks[0]['id']}")
    assert client.post(f"{place}/forks", json={}).status_code == 201


def test_forks_belong_to_whom_their_parent_does(
    tenant: Callable[..., httpx2.Client], api: httpx2.Client
) -> None:
    """Nobody else finds them, forks them or takes their place; the server's owner makes them for their owner."""
    ours, theirs = tenant(), tenant()
    parent, stranger = new(ours, metadata={"who": "us"}), new(theirs)
    (fork,) = ours.post(f"/v1/sandboxes/{parent}/forks", json={}).json()["items"]
    (by_owner,) = api.post(f"/v1/sandboxes/{parent}/forks", json={}).json()["items"]
    assert fork["owner"] == by_owner["owner"] != ""
    assert fork["metadata"] == {"who": "us"}
    assert by_owner["id"] in living(ours)

    for path, body in (
        (f"/v1/sandboxes/{parent}/forks", {}),
        (f"/v1/sandboxes/{fork['id']}/forks", {}),
        (f"/v1/sandboxes/{parent}/adopt", {"child_id": fork["id"]}),
        (f"/v1/sandboxes/{stranger}/adopt", {"child_id": fork["id"]}),
    ):
        refused = theirs.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (404, "sandbox_not_found"), path

    assert theirs.get(f"/v1/sandboxes/{fork['id']}").status_code == 404
    assert living(theirs) == [stranger]
    # Control: it works for whose they are.
    adopted = ours.post(f"/v1/sandboxes/{parent}/adopt", json={"child_id": fork["id"]})
    assert (adopted.status_code, adopted.json()["id"]) == (200, parent)
    gone = ours.get(f"/v1/sandboxes/{fork['id']}")
    assert (gone.status_code, gone.json()["fields"]["reason"]) == (410, "adopted")
    again = ours.post(f"/v1/sandboxes/{parent}/executions", json={"code": "6 * 7"})
    assert again.json()["text"] == "42"


def test_what_is_refused_names_what_is_wrong(api: httpx2.Client, place: str) -> None:
    """Numbers, names, times; a checkpoint or a fork that there is not."""
    for body in (
        {"count": 0},
        {"count": 65},
        {"count": "2"},
        {"timeout_seconds": "long"},
        {"timeout_seconds": 0},
        {"reseed": 1},
        {"surplus": 1},
        {"checkpoint_id": ""},
    ):
        refused = api.post(f"{place}/forks", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument"), body

    missing = api.post(f"{place}/forks", json={"checkpoint_id": "nowhere"})
    assert (missing.status_code, missing.json()["code"]) == (404, "checkpoint_not_found")
    itself = api.post(f"{place}/adopt", json={"child_id": place.rpartition("/")[2]})
    assert (itself.status_code, itself.json()["code"]) == (422, "invalid_argument")
    assert api.post(f"{place}/adopt", json={}).status_code == 422
    assert api.post("/v1/sandboxes/unknown/forks", json={}).status_code == 404


def test_forks_of_a_client_that_has_gone_are_ended(server: Any, api: httpx2.Client, place: str) -> None:
    """Nobody was told of them, so nobody could end them."""
    name = place.rpartition("/")[2]
    body = b'{"count": 2}'
    head = (
        f"POST {place}/forks HTTP/1.1\r\nHost: {httpx2.URL(server.url).netloc.decode()}\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    address = httpx2.URL(server.url)

    for _ in range(3):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(head.encode() + body)

    # Asked for after them, and so made after them.
    (fork,) = api.post(f"{place}/forks", json={}).json()["items"]

    while {item["id"] for item in children(api, name)} != {fork["id"]}:
        assert fork["id"] in {item["id"] for item in children(api, name)}

    assert api.delete(f"/v1/sandboxes/{fork['id']}").status_code == 204


def test_the_same_request_forks_once(api: httpx2.Client, place: str) -> None:
    """With an idempotency key: the same forks, and no others."""
    headers = {"Idempotency-Key": f"fork {place}"}
    first = api.post(f"{place}/forks", json={"count": 2, "timeout_seconds": 30}, headers=headers)
    again = api.post(f"{place}/forks", json={"count": 2, "timeout_seconds": 30}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"

    for fork in first.json()["items"]:
        assert api.delete(f"/v1/sandboxes/{fork['id']}").status_code == 204
