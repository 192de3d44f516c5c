"""The socket of a page: what it follows, how it is refused, and that a slow one changes nothing."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from fumehood.server.routes import watch as watching


class Page:
    """A page that follows, over a real socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._heard: deque[dict[str, Any]] = deque()

    def say(self, **message: Any) -> None:
        self._socket.send(json.dumps(message))

    def hear(self, seconds: float = 30) -> dict[str, Any]:
        """The next message, or the next event of one that has several."""
        if not self._heard:
            message = json.loads(self._socket.recv(timeout=seconds))
            self._heard.extend(message | one for one in message.pop("events", [{}]))

        return self._heard.popleft()

    def until(self, kind: str, name: int | None = None) -> list[dict[str, Any]]:
        """All messages up to the first of a kind; figures, which come with time, are left out."""
        heard: list[dict[str, Any]] = []

        while True:
            message = self.hear()

            if message["type"] in ("counters", "metrics") and kind not in ("counters", "metrics"):
                continue

            heard.append(message)

            if message["type"] == kind and name in (None, message.get("id")):
                return heard


@contextmanager
def page_of(server: Any, **options: Any) -> Iterator[Page]:
    options.setdefault("additional_headers", server.headers)
    address = f"{server.url.replace('http', 'ws', 1)}/v1/watch"

    with connect(address, subprotocols=["fumehood.watch"], **options) as socket:  # type: ignore[list-item]
        yield Page(socket)


def test_a_page_follows_sandboxes_and_the_server(server: Any, api: httpx2.Client) -> None:
    """One socket for all; what starts, what changes, what runs there, what ends; figures come by themselves."""
    with page_of(server) as page:
        page.say(op="follow", id=1, what="server")
        assert page.until("here", 1)[-1]["version"]
        assert page.until("counters")[-1]["counters"]["max_sandboxes"] > 0
        sandbox = api.post("/v1/sandboxes", json={"metadata": {"team": "blue"}}).json()["id"]
        started = next(one for one in page.until("sandbox_started") if one["type"] == "sandbox_started")
        assert (started["sandbox"]["id"], started["sandbox"]["metadata"]) == (sandbox, {"team": "blue"})
        page.say(op="follow", id=2, what="sandbox", sandbox_id=sandbox, metrics=True)
        page.until("here", 2)
        assert page.until("metrics")[-1]["metrics"]["watchers"] == 1
        begun = time.monotonic()
        api.post(f"/v1/sandboxes/{sandbox}/executions", json={"code": "print(6 * 7)"})
        heard = [one for one in page.until("execution_finished") if one["id"] == 2]
        assert [one["type"] for one in heard] == ["execution_started", "output", "execution_finished"]
        assert (heard[0]["by"], heard[0]["via"], heard[1]["text"]) == ("owner", "api", "42\n")
        assert time.monotonic() - begun < 10
        api.post(f"/v1/sandboxes/{sandbox}/timeout", json={"timeout_seconds": 900})
        assert page.until("changed", 2)[-1]["sandbox"]["ends_at"]
        api.delete(f"/v1/sandboxes/{sandbox}")
        kinds = [(one["id"], one["type"]) for one in page.until("ended", 2)]
        assert (2, "ended") in kinds
        assert (1, "sandbox_ended") in kinds or page.until("sandbox_ended", 1)
        page.say(op="leave", id=1)
        page.say(op="follow", id=3, what="sandbox", sandbox_id=sandbox)
        gone = page.until("problem", 3)[-1]["problem"]
        assert (gone["status"], gone["code"]) == (410, "sandbox_closed")


def test_a_key_follows_its_own_alone(
    server: Any, api: httpx2.Client, other: httpx2.Client, place: str
) -> None:
    """A sandbox of another key is not there, and its start and end are not heard of; figures are for the owner."""
    with page_of(server, additional_headers={"Authorization": other.headers["Authorization"]}) as page:
        page.say(op="follow", id=1, what="sandbox", sandbox_id=place.rpartition("/")[2])
        assert page.until("problem", 1)[-1]["problem"]["status"] == 404
        page.say(op="follow", id=2, what="server")
        page.until("here", 2)
        api.delete(f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}")
        own = other.post("/v1/sandboxes", json={}).json()["id"]
        heard = page.until("sandbox_started")
        assert [(one["type"], one["sandbox"]["id"]) for one in heard] == [("sandbox_started", own)]
        other.delete(f"/v1/sandboxes/{own}")


def test_a_key_has_so_many_sockets(server: Any, api: httpx2.Client, other: httpx2.Client) -> None:
    """One more is refused, until one is closed; the owner has its own."""
    token = {"Authorization": other.headers["Authorization"]}

    with ExitStack() as held:
        pages = [page_of(server, additional_headers=token) for _ in range(watching._MAX_SOCKETS_OF_KEY)]

        with pages.pop():
            for page in pages:
                held.enter_context(page)

            with pytest.raises(InvalidStatus) as refused, page_of(server, additional_headers=token):
                pytest.fail("it was opened")

            assert refused.value.response.status_code == 503
            held.enter_context(page_of(server))

        held.enter_context(page_of(server, additional_headers=token))


def test_messages_without_sense_are_problems_and_end_nothing(server: Any, place: str) -> None:
    with page_of(server) as page:
        for message in ({"op": "fly", "id": 1}, {"op": "follow", "id": 1}, {"op": "leave", "id": "x"}, {}):
            page.say(**message)
            assert page.until("problem")[-1]["problem"]["status"] == 422

        page.say(op="follow", id=1, what="server", sandbox_id="x")
        assert page.until("problem", 1)[-1]["problem"]["code"] == "invalid_argument"
        page.say(op="leave", id=7)

        for name in range(watching._MAX_FOLLOWED + 1):
            page.say(op="follow", id=name, what="sandbox", sandbox_id=place.rpartition("/")[2])

        assert page.until("problem", watching._MAX_FOLLOWED)[-1]["problem"]["code"] == "invalid_argument"
        # Control: the socket still works.
        page.say(op="leave", id=0)
        page.say(op="follow", id=99, what="sandbox", sandbox_id=place.rpartition("/")[2])
        page.until("here", 99)


def test_a_page_that_does_not_read_slows_nothing_and_gets_a_gap(server: Any, api: httpx2.Client) -> None:
    """24 MB are written while it reads nothing: the code runs to its end, and the page learns what it lacks."""
    sandbox = api.post("/v1/sandboxes", json={"limits": {"stdout_bytes": 32 << 20}}).json()["id"]

    with page_of(server, max_queue=1, compression=None) as page:
        page.say(op="follow", id=1, what="sandbox", sandbox_id=sandbox)
        page.until("here", 1)
        code = "for n in range(200): print('x' * 120_000)"
        answer = api.post(f"/v1/sandboxes/{sandbox}/executions", json={"code": code}).json()
        assert (answer["error"], answer["truncated"]["stdout_bytes"]) == (None, 0)
        heard = page.until("execution_finished", 1)
        gaps = [one for one in heard if one["type"] == "gap"]
        assert gaps
        assert all(gap["to"] >= gap["from"] and gap["to"] == gap["seq"] for gap in gaps)

        # Nothing is missing, or twice, but for what a gap names.
        for before, one in pairwise(heard):
            assert one.get("from", one["seq"]) == before["seq"] + 1

    api.delete(f"/v1/sandboxes/{sandbox}")


def test_a_page_whose_key_or_login_ends_is_closed_soon(server: Any, api: httpx2.Client) -> None:
    """Within two seconds and a little; a login opens the socket only from our own origin."""
    key = api.post("/v1/keys", json={"name": "short"}).json()
    code = api.post("/v1/login/codes").json()["code"]

    with httpx2.Client(base_url=server.url) as browser:
        browser.post("/v1/login", json={"code": code}, headers={"X-Fumehood-Console": "1"})
        cookie = {"Cookie": f"fumehood-console={browser.cookies['fumehood-console']}"}

    for origin in (None, "https://evil.example"):
        with pytest.raises(InvalidStatus), page_of(server, additional_headers=cookie, origin=origin):
            pytest.fail("it was opened")

    held = {"X-API-Key": key["token"]}

    with (
        page_of(server, additional_headers=held) as by_key,
        page_of(server, additional_headers=cookie, origin=server.url) as by_login,
    ):
        for page in (by_key, by_login):
            page.say(op="follow", id=1, what="server")
            page.until("here", 1)

        api.delete(f"/v1/keys/{key['key']['id']}")
        api.delete("/v1/logins")

        for page in (by_key, by_login):
            assert page.until("problem")[-1]["problem"]["code"] == "unauthenticated"

            with pytest.raises(ConnectionClosed):
                page.hear()


def test_all_that_a_key_follows_ends_with_its_right(server: Any, api: httpx2.Client) -> None:
    """Streams of lines, followers of runs, a terminal and a page, of a key that loses the scope; and one rotated."""
    key, rotated = (
        api.post("/v1/keys", json={"name": name, "scopes": ["sandboxes"]}).json() for name in ("less", "new")
    )
    base, token = server.url.replace("http", "ws", 1), {"X-API-Key": key["token"]}

    with ExitStack() as held:
        client = held.enter_context(httpx2.Client(base_url=server.url, headers=token, timeout=30))
        place = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        run = client.post(
            f"{place}/executions", json={"code": "input()", "allow_input": True, "detached": True}
        )
        command = client.post(f"{place}/commands", json={"argv": ["sleep", "1000"]}).json()["pid"]
        paths = [
            "/v1/events",
            f"{place}/events",
            f"{place}/executions/{run.json()['id']}/events",
            f"{place}/files/watch",
            f"{place}/commands/{command}/output",
        ]
        streams = [held.enter_context(client.stream("GET", path)) for path in paths]
        terminal = held.enter_context(connect(f"{base}{place}/pty", additional_headers=token))
        assert json.loads(terminal.recv(timeout=30))["type"] == "started"
        narrow = held.enter_context(page_of(server, additional_headers=token))
        new = held.enter_context(page_of(server, additional_headers={"X-API-Key": rotated["token"]}))
        assert {stream.status_code for stream in streams} == {200}
        api.patch(f"/v1/keys/{key['key']['id']}", json={"scopes": ["execute"]}).raise_for_status()
        api.post(f"/v1/keys/{rotated['key']['id']}/rotate", json={}).raise_for_status()

        for path, stream in zip(paths, streams, strict=True):
            last = json.loads([*stream.iter_lines()][-1])
            assert (last["type"], last["problem"]["code"]) == ("problem", "forbidden"), path

        said = []

        with suppress(ConnectionClosed):
            while True:
                said.append(terminal.recv(timeout=30))

        assert json.loads(said[-1])["problem"]["code"] == "forbidden"
        assert terminal.protocol.close_code == 1008

        for page, code in ((narrow, "forbidden"), (new, "unauthenticated")):
            assert page.until("problem")[-1]["problem"]["code"] == code

            with pytest.raises(ConnectionClosed):
                page.hear()

    api.delete(place)


def test_programs_follow_by_lines(api: httpx2.Client, place: str, run: Any) -> None:
    """NDJSON and server-sent events, for one sandbox and for all."""
    with api.stream("GET", f"{place}/events") as answer:
        lines = answer.iter_lines()
        here = json.loads(next(lines))
        run("print(1)")
        kinds = []

        while "execution_finished" not in kinds:
            kinds.append(json.loads(next(lines))["type"])

    assert (here["type"], kinds) == ("here", ["execution_started", "output", "execution_finished"])

    with api.stream(
        "GET", f"{place}/events?after={here['seq']}", headers={"Accept": "text/event-stream"}
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: here"
        assert any("execution_started" in next(lines) for _ in range(3))

    with api.stream("GET", "/v1/events") as answer:
        assert json.loads(next(answer.iter_lines()))["type"] == "here"


def test_events_and_their_origin_cross_a_host_daemon(
    start_host: Callable[..., Any], start_server: Callable[..., Any]
) -> None:
    """A server in front of a host: the page follows what runs there, with the key and the interface; and lists it."""
    server = start_server(host_socket=start_host().socket, dialects="")

    with (
        httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client,
        page_of(server) as page,
    ):
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        page.say(op="follow", id=1, what="sandbox", sandbox_id=sandbox)
        page.until("here", 1)
        client.post(f"/v1/sandboxes/{sandbox}/executions", json={"code": "print(1); 2"})
        heard = page.until("execution_finished", 1)
        assert (heard[0]["by"], heard[0]["via"]) == ("owner", "api")
        cells = client.get(f"/v1/sandboxes/{sandbox}/contexts/default/executions").json()["items"]
        assert [(cell["by"], cell["via"], cell["outcome"]) for cell in cells] == [("owner", "api", "ok")]
        result = client.get(f"/v1/sandboxes/{sandbox}/executions/{cells[0]['id']}/results/0/text/plain")
        assert result.content == b"2"
        (listed,) = client.get("/v1/sandboxes", params={"with": "use", "q": sandbox}).json()["items"]
        assert (listed["use"]["cells"], listed["use"]["watchers"]) == (1, 1)
        page.say(op="follow", id=2, what="server")
        page.until("here", 2)
        client.delete(f"/v1/sandboxes/{sandbox}")
        assert page.until("sandbox_ended", 2)[-1]["reason"] == "killed"
