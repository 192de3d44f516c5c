"""Shares: what a reader with the address sees, and everything else, which no share opens; with controls."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from socket import IPPROTO_TCP, TCP_INFO
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer
from tests.waiting import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from .walking import OPEN, REFUSED, SITE, FromManyAddresses, dialect_of, filled, methods_of, status_of_upgrade

ALL = ["record", "variables", "files", "audit", "network"]
# Where the token of a share is taken, or none is needed; what a reader has is asked for below.
_OF_SHARES = "/v1/shares/{share_id}"
# Of `TCP_INFO` in Linux.
_TCP_CLOSE = 7
# The description, and what looks at no token.
_PUBLIC = {"/openapi.json", "/v1/login"}


@pytest.fixture(scope="module")
def owner(dialect_server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=dialect_server.url, headers=dialect_server.headers, timeout=60) as client:
        yield client


class Shared:
    """A sandbox of a key, and how its key shares it."""

    def __init__(self, server: RunningServer, owner: httpx2.Client) -> None:
        made = owner.post("/v1/keys", json={"name": "ada"}).json()
        self.url, self.key_id = server.url, made["key"]["id"]
        self.key = httpx2.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {made['token']}"}, timeout=60
        )
        self.clients = [self.key]
        self.id = self.key.post("/v1/sandboxes", json={}).json()["id"]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def run(self, code: str, **given: Any) -> dict[str, Any]:
        answer = self.key.post(f"/v1/sandboxes/{self.id}/executions", json={"code": code, **given})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def share(self, *shows: str, **given: Any) -> dict[str, Any]:
        wanted = {"sandbox_id": self.id, "shows": list(shows) or ["record"], **given}
        answer = self.key.post("/v1/shares", json=wanted)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def reader(self, made: dict[str, Any]) -> httpx2.Client:
        """Opens a share as somebody who has its address."""
        place = f"/v1/shares/{made['share']['id']}"
        with httpx2.Client(base_url=self.url, timeout=60) as stranger:
            opened = stranger.post(f"{place}/open", json={"secret": made["secret"]})
        assert opened.status_code == 200, opened.text
        headers = {"Authorization": f"Bearer {opened.json()['token']}"}
        base = self.url + place
        reader = httpx2.Client(base_url=base, headers=headers, timeout=60, follow_redirects=True)
        self.clients.append(reader)
        return reader


@pytest.fixture(scope="module")
def shared(dialect_server: RunningServer, owner: httpx2.Client) -> Iterator[Shared]:
    made = Shared(dialect_server, owner)
    yield made
    owner.delete(f"/v1/sandboxes/{made.id}")
    made.close()


@contextmanager
def follow(reader: httpx2.Client) -> Iterator[ClientConnection]:
    """A page that reads a share, live: its token goes as a subprotocol, as browsers send it."""
    token = reader.headers["authorization"].removeprefix("Bearer ")
    address = str(reader.base_url).replace("http", "ws", 1).rstrip("/") + "/watch"
    protocols: Any = ["fumehood.watch", f"fumehood.token.{token}"]
    with connect(address, subprotocols=protocols) as socket:
        assert socket.subprotocol == "fumehood.watch"
        socket.send(json.dumps({"op": "follow", "id": 7, "what": "sandbox", "sandbox_id": "another"}))
        assert json.loads(socket.recv(timeout=30))["type"] == "here"
        yield socket


def hear(socket: ClientConnection, until: str) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != until:
        heard.append(json.loads(socket.recv(timeout=30)))
    return heard


def test_a_reader_sees_what_runs_and_nobodys_key(shared: Shared) -> None:
    """Live, with output and results; without the key, the calls of tools, and the id of the sandbox."""
    made = shared.share("record")
    assert made["url"] == f"{shared.url}/share/{made['share']['id']}#{made['secret']}"
    reader = shared.reader(made)
    about = reader.get("").json()
    assert (about["shows"], about["state"], about["readers"]) == (["record"], "running", 0)
    assert shared.id not in json.dumps(about)

    with follow(reader) as socket:
        assert reader.get("").json()["readers"] == 1
        assert shared.key.get("/v1/shares").json()["items"][0]["readers"] == 1
        execution = shared.run("print(6 * 7)\n6 * 7", tell_changes=True)
        shared.key.post(f"/v1/sandboxes/{shared.id}/checkpoints", json={})
        heard = hear(socket, "execution_finished")
        kinds = [one["type"] for one in heard]
        assert kinds == ["execution_started", "output", "result", "execution_finished"]
        assert all(one["id"] == 7 and "by" not in one for one in heard)
        assert heard[1]["text"] == "42\n"

    cell = reader.get(f"/executions/{execution['id']}").json()
    assert (cell["code"], cell["by"], cell["changes"]) == ("print(6 * 7)\n6 * 7", "", None)
    assert cell["execution"]["text"] == "42"
    assert (cell["execution"]["changes"], cell["execution"]["audit_head"]) == (None, None)
    page = reader.get("/executions", params={"limit": 1}).json()
    assert [one["id"] for one in page["items"]] == [execution["id"]]
    # Control: its key sees both.
    own = shared.key.get(f"/v1/sandboxes/{shared.id}/executions/{execution['id']}").json()
    assert (own["by"], own["execution"]["changes"] is not None) == (shared.key_id, True)

    with reader.stream("GET", "/events") as lines:
        assert json.loads(next(lines.iter_lines()))["type"] == "here"


def test_only_what_was_chosen_is_shown(shared: Shared) -> None:
    """Each part has its route and its events, and is refused where it was not chosen."""
    shared.run("balance = 30\nopen('note.txt', 'w').write('hello')")
    asked = {
        "record": "/executions",
        "variables": "/variables",
        "files": "/files",
        "audit": "/audit",
        "network": "/network/log",
    }
    whole = shared.reader(shared.share(*ALL))
    for part, path in asked.items():
        alone = shared.reader(shared.share(part))
        statuses = {name: alone.get(other).status_code for name, other in asked.items()}
        assert statuses == {name: 200 if name == part else 403 for name in asked}, part
        assert whole.get(path).status_code == 200

    assert "balance" in [one["name"] for one in whole.get("/variables").json()["items"]]
    assert whole.get("/variables/balance").json()["items"][0]["summary"] == "30"
    assert [one["name"] for one in whole.get("/files").json()["items"]].count("note.txt") == 1
    note = whole.get("/files/content", params={"path": "note.txt"})
    assert (note.content, note.headers["content-disposition"]) == (b"hello", "attachment")
    for path in ("/etc/passwd", "../../etc/passwd", "/proc/self/environ", "/home/user/../root"):
        assert whole.get("/files/content", params={"path": path}).status_code == 422, path
        assert whole.get("/files", params={"path": path}).status_code == 422, path

    # Nothing is told of what runs to a reader of variables.
    with follow(shared.reader(shared.share("variables"))) as socket, follow(whole) as control:
        shared.run("1")
        shared.key.post(f"/v1/sandboxes/{shared.id}/timeout", json={"timeout_seconds": 250})
        assert hear(control, "changed")[0]["type"] == "execution_started"
        heard = hear(socket, "changed")
        assert heard == [{"id": 7, "type": "changed", "seq": heard[0]["seq"]}]


def test_records_and_events_name_nothing_besides(shared: Shared, owner: httpx2.Client) -> None:
    """No keys, other sandboxes, environment, commands, paths, input or other contexts; control: their key sees all."""
    made = {"envs": {"SECRET_NAME": "1"}}
    sandbox = shared.key.post("/v1/sandboxes", json=made).json()["id"]
    place = f"/v1/sandboxes/{sandbox}"
    context = shared.key.post(f"{place}/contexts", json={}).json()["id"]

    def run(code: str, **given: Any) -> str:
        answer = shared.key.post(f"{place}/executions", json={"code": code, **given})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def reader_of(**given: Any) -> httpx2.Client:
        wanted = {"sandbox_id": sandbox, **given}
        return shared.reader(shared.key.post("/v1/shares", json=wanted).json())

    reader, other = reader_of(shows=ALL), reader_of(shows=["audit", "record"], context_id=context)

    with follow(reader) as socket:
        aside = run("'aside'", context_id=context)
        shared.key.post(f"{place}/commands", json={"command": "echo word-of-command"})
        shared.key.put(f"{place}/files/content", params={"path": "/tmp/outside.txt"}, content=b"x")
        fork = shared.key.post(f"{place}/forks", json={}).json()["items"][0]["id"]
        inside = run("print(input())", stdin="typed\n")
        shared.key.post(f"{place}/timeout", json={"timeout_seconds": 250})
        heard = hear(socket, "changed")

    shown = [reader.get(path) for path in ("/audit", "/network/log", "/executions", f"/executions/{inside}")]
    assert [one.status_code for one in shown] == [200] * 4
    text = json.dumps(heard) + "".join(one.text for one in shown)
    hidden = [shared.key_id, sandbox, fork, context, aside, "SECRET_NAME", "word-of-command", "outside.txt"]
    log = shared.key.get(f"{place}/audit")
    for one in hidden:
        assert one not in text, one
        assert one in log.text, one

    assert [one["stdin"] for one in (shown[3].json(), shown[2].json()["items"][-1])] == [None, None]
    kinds = {one["kind"] for one in shown[0].json()["items"]}
    assert (
        {"created", "executed"} <= kinds <= {"created", "executed", "context", "limit", "paused", "resumed"}
    )
    assert shown[0].json()["is_verifiable"] is False
    assert {"hash", "previous"}.isdisjoint(shown[0].json()["items"][0])
    assert {one["type"] for one in heard}.isdisjoint({"security_event", "forked"})

    # Of the other context there is its execution, and of the whole sandbox no connection.
    executed = [
        one["fields"]["execution"] for one in other.get("/audit").json()["items"] if one["kind"] == "executed"
    ]
    assert executed == [aside]
    body = {"sandbox_id": sandbox, "shows": ["network"], "context_id": context}
    refused = shared.key.post("/v1/shares", json=body)
    assert (refused.status_code, "of the whole sandbox" in refused.text) == (422, True)
    for one in (sandbox, fork):
        owner.delete(f"/v1/sandboxes/{one}")


def test_only_the_chosen_time_and_context_are_shown(shared: Shared) -> None:
    """What began before, what ended after, and what ran in another context are not there, under no name."""
    before = shared.run("'before'")
    start = datetime.now(UTC)
    within = shared.run("'within'")
    # Its end by its record, which is no later than now but for what clocks differ.
    took = timedelta(seconds=within["usage"]["wall_seconds"])
    end = max(datetime.now(UTC), datetime.fromisoformat(within["started_at"]) + took)
    after = shared.run("'after'")
    context = shared.key.post(f"/v1/sandboxes/{shared.id}/contexts", json={}).json()["id"]
    aside = shared.run("'aside'", context_id=context)
    cases = [
        ({"from_at": start.isoformat(), "until_at": end.isoformat()}, [within]),
        ({"from_at": start.isoformat()}, [within, after]),
        ({"context_id": context}, [aside]),
    ]
    for given, expected in cases:
        reader = shared.reader(shared.share("record", "audit", **given))
        page = reader.get("/executions", params={"limit": 100}).json()
        names = [one["id"] for one in page["items"]]
        assert names == [one["id"] for one in expected], given
        assert page["first_position"] == page["items"][0]["position"]
        for one in (before, within, after, aside):
            status = reader.get(f"/executions/{one['id']}").status_code
            assert status == (200 if one in expected else 404), given

    upto = shared.reader(shared.share("record", "audit", until_at=end.isoformat()))
    page = upto.get("/executions", params={"limit": 100}).json()
    assert page["items"][-1]["id"] == within["id"]
    assert page["end_position"] == page["items"][-1]["position"] + 1
    entries = upto.get("/audit").json()["items"]
    assert entries
    assert max(datetime.fromisoformat(one["at"]) for one in entries) <= end

    # A reader who comes later is told of nothing either that runs in another context, or after the end.
    later = shared.reader(shared.share("record", from_at=datetime.now(UTC).isoformat()))
    with follow(upto) as ended, follow(later) as live:
        shared.run("'aside'", context_id=context)
        shared.run("'now'")
        shared.key.post(f"/v1/sandboxes/{shared.id}/timeout", json={"timeout_seconds": 260})
        assert [one["type"] for one in hear(ended, "changed")] == ["changed"]
        assert [one["code"] for one in hear(live, "changed") if "code" in one] == ["'now'"]

    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for wrong in (
        {"until_at": tomorrow},
        {"from_at": tomorrow},
        {"shows": ["files"], "until_at": end.isoformat()},
        {"shows": ["variables"], "until_at": end.isoformat()},
        {"shows": []},
        {"shows": ["terminal"]},
        {"seconds": 31 * 86_400},
        {"from_at": "2026-01-01T00:00:00"},
    ):
        body = {"sandbox_id": shared.id, **wrong}
        assert shared.key.post("/v1/shares", json=body).status_code == 422, wrong


def test_the_token_of_a_share_opens_no_route_besides(
    shared: Shared, routes: list[BaseRoute], owner: httpx2.Client, dialect_server: RunningServer
) -> None:
    """Of all routes of all dialects, by each method, in each place of a token; controls: a key's token opens them."""
    reader = shared.reader(shared.share(*ALL))
    token = reader.headers["authorization"].removeprefix("Bearer ")
    ways = (
        {"Authorization": f"Bearer {token}"},
        {"X-API-Key": token},
        {"X-Access-Token": token},
        {"Authorization": f"Token {token}"},
    )
    asked = opened = 0

    for route in routes:
        path = getattr(route, "path", "")

        if path in OPEN | SITE | _PUBLIC or path.startswith(_OF_SHARES):
            continue

        # The shared sandbox itself, in each place where a sandbox is named.
        place = filled(path.replace("{sandbox_id}", shared.id).replace("{session_id}", shared.id))

        with httpx2.Client(base_url=shared.url, timeout=60, transport=FromManyAddresses()) as stranger:
            for method in methods_of(route):
                for headers in ways if dialect_of(route) != "native" else ways[:2]:
                    # A token that was right just now: it is looked at, however many wrong ones came before.
                    assert reader.get("").status_code == 200

                    if method == "WEBSOCKET":
                        status = status_of_upgrade(stranger, place, headers)
                    else:
                        with stranger.stream(method, place, headers=headers) as answer:
                            status = answer.status_code
                    assert status in REFUSED | {404, 405}, (method, path, headers, status)
                    asked += 1

        if "GET" in methods_of(route) and path != "/v1/events":
            with owner.stream("GET", place) as answer:
                opened += answer.status_code == 200

    with httpx2.Client(base_url=shared.url, timeout=60, transport=FromManyAddresses()) as stranger:
        for query in (f"/v1/sandboxes/{shared.id}?token={token}", f"/api/kernels?token={token}"):
            assert stranger.get(query).status_code in REFUSED

    assert asked > 600
    assert opened > 15
    assert shared.run("1")["error"] is None


def test_the_routes_of_a_share_take_its_token_alone(shared: Shared, owner: httpx2.Client) -> None:
    """Not that of another share, of a key or of the owner, and no cookie; nothing can be done by any of its routes."""
    one, two = shared.share(*ALL), shared.share(*ALL)
    reader, other = shared.reader(one), shared.reader(two)
    places = ["", "/executions", "/variables", "/files", "/audit", "/network/log", "/events"]
    own = reader.headers["authorization"]
    wrong = [
        other.headers["authorization"],
        shared.key.headers["authorization"],
        owner.headers["authorization"],
        f"Bearer {one['secret']}",
        own[:-1] + ("0" if own[-1] != "0" else "1"),
        own.upper(),
        "Bearer",
        "",
    ]
    with httpx2.Client(base_url=str(reader.base_url), timeout=60, follow_redirects=True) as stranger:
        for place in places:
            with stranger.stream("GET", place, headers={"Authorization": own}) as answer:
                assert answer.status_code == 200, place
            for token in wrong:
                with stranger.stream("GET", place, headers={"Authorization": token}) as answer:
                    assert answer.status_code == 401, (place, token)
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                status = stranger.request(method, place, headers={"Authorization": own}).status_code
                # Revoking is a route of the key.
                assert status in ({401} if (method, place) == ("DELETE", "") else {404, 405}), (method, place)

        for secret in (two["secret"], "", "x", one["secret"][:-1], 7, None):
            assert stranger.post("/open", json={"secret": secret}).status_code == 401
        assert stranger.post("/open", content=b"[" * 2000).status_code == 401

    address = str(reader.base_url).replace("http", "ws", 1).rstrip("/") + "/watch"
    for token in (other.headers["authorization"][7:], shared.key.headers["authorization"][7:], ""):
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(
                address,
                subprotocols=["fumehood.watch", f"fumehood.token.{token}"],  # type: ignore[list-item]
            ),
        ):
            pass
        assert refused.value.response.status_code == 401

    # Only the key that made it, and the owner, list and revoke it.
    stranger_key = owner.post("/v1/keys", json={"name": "eve"}).json()["token"]
    with httpx2.Client(base_url=shared.url, headers={"X-API-Key": stranger_key}) as eve:
        assert eve.get("/v1/shares").json()["items"] == []
        assert eve.delete(f"/v1/shares/{one['share']['id']}").status_code == 204
        assert eve.post("/v1/shares", json={"sandbox_id": shared.id}).status_code == 404
    assert reader.get("").status_code == 200
    listed = {
        share["id"] for share in owner.get("/v1/shares", params={"sandbox_id": shared.id}).json()["items"]
    }
    assert {one["share"]["id"], two["share"]["id"]} <= listed
    only = owner.post("/v1/keys", json={"name": "runs", "scopes": ["execute"]}).json()["token"]
    with httpx2.Client(base_url=shared.url, headers={"X-API-Key": only}) as runs:
        assert runs.post("/v1/shares", json={"sandbox_id": shared.id}).status_code == 403
        assert runs.get("/v1/shares").status_code == 403


def _ends_within(sockets: list[ClientConnection], seconds: float) -> bool:
    """Whether all are closed by the server in this time."""
    until = time.monotonic() + seconds
    for socket in sockets:
        with suppress(ConnectionClosed):
            while True:
                socket.recv(timeout=max(0.01, until - time.monotonic()))
        assert socket.close_code == 1008
    return True


def test_a_share_ends_within_two_seconds_of_its_revocation(
    shared: Shared, owner: httpx2.Client, dialect_server: RunningServer
) -> None:
    """By its key, by the owner, and with its key: what is open is closed, and nothing opens it again."""
    made = shared.share(*ALL)
    reader = shared.reader(made)
    kept = shared.reader(shared.share("record"))
    with follow(reader) as socket, follow(kept) as control:
        shared.key.delete(f"/v1/shares/{made['share']['id']}").raise_for_status()
        assert _ends_within([socket], 2)
        assert reader.get("/executions").status_code == 401
        again = httpx2.post(f"{reader.base_url}open", json={"secret": made["secret"]})
        assert again.status_code == 401
        # Control: another share of the same sandbox goes on.
        shared.run("'still'")
        assert hear(control, "execution_finished")

    other = Shared(dialect_server, owner)
    share = other.share("record")
    reader = other.reader(share)
    with follow(reader) as socket:
        owner.delete(f"/v1/keys/{other.key_id}", params={"sandboxes": "keep"})
        assert _ends_within([socket], 2)
    assert reader.get("").status_code == 401
    assert httpx2.post(f"{reader.base_url}open", json={"secret": share["secret"]}).status_code == 401
    owner.delete(f"/v1/sandboxes/{other.id}")
    other.close()


def test_a_new_token_without_grace_ends_the_shares_of_its_key(
    owner: httpx2.Client, dialect_server: RunningServer
) -> None:
    """Who had the old token may have made them; with a grace period they stay, as the old token does."""
    mine = Shared(dialect_server, owner)
    reader = mine.reader(mine.share("record"))

    owner.post(f"/v1/keys/{mine.key_id}/rotate", json={"grace_seconds": 60}).raise_for_status()
    assert reader.get("").status_code == 200

    owner.post(f"/v1/keys/{mine.key_id}/rotate", json={}).raise_for_status()
    assert reader.get("").status_code == 401
    owner.delete(f"/v1/sandboxes/{mine.id}")
    mine.close()


def test_readers_who_do_not_read_hold_little_and_not_for_long(shared: Shared) -> None:
    """Few files are read at once, in pieces; the transfers of a share end with it, however slow their readers are."""
    size = 10 << 20
    shared.run(f"open('big.bin', 'wb').write(bytes({size} + 1)); open('note.txt', 'w').write('hello')")
    made = shared.share("files")
    reader, other = shared.reader(made), shared.reader(shared.share("files"))
    big, small = {"path": "big.bin"}, {"path": "note.txt"}

    for _ in range(6):
        assert reader.get("/files/content", params=small).content == b"hello"
        assert reader.get("/files/content", params={"path": "missing"}).status_code == 404

    with ExitStack() as open_streams:
        held = [
            open_streams.enter_context(reader.stream("GET", "/files/content", params=big)) for _ in range(4)
        ]
        assert [answer.status_code for answer in held] == [200] * 4
        refused = reader.get("/files/content", params=small)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        # Control: another share has places of its own, and who reads is given all that is shown.
        assert len(other.get("/files/content", params=big).content) == size

        shared.key.delete(f"/v1/shares/{made['share']['id']}").raise_for_status()

        for answer in held:
            with pytest.raises(httpx2.TransportError):
                answer.read()


def is_reset(answer: httpx2.Response) -> bool:
    """Say whether the connection of an answer was reset, without reading from it."""
    sock = answer.extensions["network_stream"].get_extra_info("socket")
    state: int = sock.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0]
    return state == _TCP_CLOSE


def test_large_answers_of_a_share_have_few_places_of_their_own(shared: Shared) -> None:
    """Readers can hold no more of them than of files, and not those either; and lose them when the share ends."""
    shared.run("open('short.txt', 'w').write('hello')")
    shared.run("for _ in range(15): display({'text/plain': 'x' * (1000 << 10)}, raw=True)")
    made = shared.share("record", "files")
    reader = shared.reader(made)
    place = f"/executions/{reader.get('/executions').json()['items'][-1]['id']}"
    assert len(reader.get(place).content) > 14 << 20

    with ExitStack() as open_streams:
        held = [open_streams.enter_context(reader.stream("GET", place)) for _ in range(4)]
        assert [answer.status_code for answer in held] == [200] * 4
        refused = reader.get(place)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        # Control: small ones need no place, and files have their own.
        assert reader.get("/executions?limit=1").status_code == 200
        assert reader.get("/files/content", params={"path": "short.txt"}).content == b"hello"
        shared.key.delete(f"/v1/shares/{made['share']['id']}").raise_for_status()

        for answer in held:
            # A client that reads before the server has noticed may still be given the whole, which is in its memory.
            until(lambda answer=answer: is_reset(answer), "its connection is reset")
            with pytest.raises(httpx2.TransportError):
                answer.read()


def test_reads_of_a_share_stay_in_the_home_and_fill_no_audit_record(shared: Shared) -> None:
    """Links that lead out are refused; few reads are noted, as those of the share, and the rest is counted."""
    shared.run(
        "import os\nopen('/tmp/out.txt', 'w').write('out')\nopen('in.txt', 'w').write('in')\n"
        "os.symlink('/tmp', 'folder'); os.symlink('/tmp/out.txt', 'file'); os.symlink('in.txt', 'within')"
    )
    made = shared.share("files")
    reader = shared.reader(made)
    mine = f"/v1/sandboxes/{shared.id}/files"

    def asked_by(client: httpx2.Client, place: str) -> list[int]:
        paths = [("/content", "folder/out.txt"), ("/content", "file"), ("", "folder"), ("/content", "within")]
        return [client.get(place + suffix, params={"path": path}).status_code for suffix, path in paths]

    assert asked_by(reader, "/files") == [403, 403, 403, 200]

    def listed_by(client: httpx2.Client, place: str) -> dict[str, tuple[str, str]]:
        items = client.get(place).json()["items"]
        return {
            item["name"]: (item["type"], item["resolved_target"]) for item in items if item["symlink_target"]
        }

    # Of what links lead to outside, a listing tells nothing either: neither its kind nor where it is.
    within = ("file", "/home/user/in.txt")
    aside = {"folder": ("symlink", "/tmp"), "file": ("symlink", "/tmp/out.txt"), "within": within}
    shared.run("os.symlink('/proc/self', 'me')")
    assert listed_by(reader, "/files") == {**aside, "me": ("symlink", "/proc/self")}
    seen_by_key = listed_by(shared.key, mine)
    assert (seen_by_key["folder"][0], seen_by_key["file"][0], seen_by_key["within"]) == (
        "dir",
        "file",
        within,
    )
    assert seen_by_key["me"][1] != "/proc/self"
    # Control: the key follows them.
    assert asked_by(shared.key, mine) == [200] * 4

    def noted() -> list[dict[str, Any]]:
        return list(shared.key.get(f"/v1/sandboxes/{shared.id}/audit").json()["entries"])

    before = noted()

    for _ in range(20):
        assert reader.get("/files/content", params={"path": "missing"}).status_code == 404
        assert reader.get("/files/content", params={"path": "in.txt"}).status_code == 200

    after = noted()[len(before) :]
    assert {one["kind"] for one in after} <= {"share_read", "left_out"}
    assert len(after) <= 10
    reads = [one["fields"] for one in noted() if one["kind"] == "share_read"]
    assert 1 <= len(reads) <= 11
    assert all(one["share"] for one in reads)


def test_looking_by_a_share_changes_nothing(shared: Shared, owner: httpx2.Client) -> None:
    """It resumes no paused sandbox, lengthens no life, and adds no cell; of an ended one it says that it has ended."""
    made = owner.post("/v1/sandboxes", json={"auto_resume": True, "timeout_seconds": 200}).json()
    place = f"/v1/sandboxes/{made['id']}"
    owner.post(f"{place}/executions", json={"code": "x = 1"})
    share = owner.post("/v1/shares", json={"sandbox_id": made["id"], "shows": ALL}).json()
    reader = shared.reader(share)
    ends_at = owner.get(place).json()["ends_at"]
    for path in ("", "/executions", "/variables", "/files", "/audit", "/network/log"):
        assert reader.get(path).status_code == 200, path
    assert owner.get(place).json()["ends_at"] == ends_at
    owner.post(f"{place}/pause", json={}).raise_for_status()
    for path in ("", "/executions", "/variables", "/audit", "/network/log"):
        assert reader.get(path).status_code == 200, path
    assert reader.get("/files").status_code == 409
    assert reader.get("/files/content", params={"path": "x"}).status_code == 409
    assert (reader.get("").json()["state"], owner.get(place).json()["state"]) == ("paused", "paused")
    assert len(reader.get("/executions").json()["items"]) == 1
    # Control: a call of the owner's resumes it.
    assert owner.get(f"{place}/files").status_code == 200
    owner.delete(place, params={"wait": "true"})
    ended = reader.get("").json()
    assert (ended["state"], ended["reason"]) == ("ended", "killed")
    assert reader.get("/executions").status_code in (404, 410)

    idle = owner.post("/v1/sandboxes", json={"idle_timeout_seconds": 60}).json()["id"]
    refused = owner.post("/v1/shares", json={"sandbox_id": idle, "shows": ["files"]})
    assert refused.status_code == 422
    assert owner.post("/v1/shares", json={"sandbox_id": idle}).status_code == 201
    owner.delete(f"/v1/sandboxes/{idle}")


def test_shares_outlive_the_server_and_end_with_the_setting(
    start_server: Callable[..., RunningServer],
) -> None:
    """The database keeps them; `--shares false` closes the living ones too; the command line makes and ends them."""
    server = start_server(pool_size=0, dialects="")

    def fumehood(*words: str, at: RunningServer) -> str:
        environ = {"PATH": "/usr/bin:/bin", "FUMEHOOD_URL": at.url, "FUMEHOOD_API_KEY": at.token}
        command = [sys.executable, "-m", "fumehood", "share", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as owner:
        sandbox = owner.post("/v1/sandboxes", json={}).json()["id"]
        url = fumehood(sandbox, "--show", "record,audit", "--hours", "1", at=server).strip()
        place, _, secret = url.partition("#")
        share_id = place.rpartition("/")[2]
        opened = owner.post(f"/v1/shares/{share_id}/open", json={"secret": secret}).json()
        token = {"Authorization": f"Bearer {opened['token']}"}
        assert owner.get(f"/v1/shares/{share_id}", headers=token).json() == opened["share"]

    server.stop()
    other = start_server(server.state, pool_size=0, dialects="", token="another-token-of-the-owner")
    place = f"{other.url}/v1/shares/{share_id}"
    assert httpx2.get(place, headers=token).status_code == 401
    assert httpx2.post(f"{place}/open", json={"secret": secret}).status_code == 401
    other.stop()
    off = start_server(server.state, pool_size=0, dialects="", shares=False)
    # Kept by the database, and refused all the same.
    assert share_id in fumehood(at=off)
    place = f"{off.url}/v1/shares/{share_id}"
    assert httpx2.get(place, headers=token).status_code == 403
    assert httpx2.post(f"{place}/open", json={"secret": secret}).status_code == 403
    fumehood("--revoke", share_id, at=off)
    assert httpx2.get(f"{off.url}/v1/shares", headers=off.headers).json()["items"] == []
