"""The server attacked by a network client without a token, and by one tenant against another.

Names begin with the row of the scorecard. Every row that says "refused" has a control beside it: the same request with
the right token passes, or the test would prove nothing.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute, Match

from fumehood.server.app import create_app
from fumehood.server.assembly import open_services
from fumehood.server.settings import DIALECTS, ServerSettings
from fumehood.service_errors import UnauthenticatedError

# What says nothing but that something is there: health of the server, and of dialects whose clients ask for it first.
OPEN = {"/healthz", "/readyz", "/api", "/login", "/v1/ping", "/librechat/health", "/librechat/v1/health"}
REFUSED = {401, 403}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def leaves(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, those of included routers and mounts as well."""
    for route in routes:
        inner = getattr(getattr(route, "original_router", route), "routes", None)

        if inner:
            yield from leaves(inner)
        else:
            yield route


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[BaseRoute]:
    """The routes of a server that speaks every dialect."""
    folder = tmp_path_factory.mktemp("routes") / "state"
    settings = ServerSettings(state_folder=str(folder), pool_size=0, token="t" * 20)

    async def collect() -> list[BaseRoute]:
        async with open_services(settings) as services:
            return list(leaves(create_app(services).routes))

    return asyncio.run(collect())


@pytest.fixture
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


def filled(path: str) -> str:
    """A path with something in the place of each parameter."""
    return re.sub(r"\{[^}]*\}", "x", path.replace("{port}", "80"))


def status_of_upgrade(client: httpx2.Client, path: str, headers: dict[str, str]) -> int:
    """What a WebSocket handshake is answered with."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }

    with client.stream("GET", path, headers={**upgrade, **headers}) as answer:
        return answer.status_code


# -- W01: every route of every dialect


def test_w01_no_route_answers_without_a_token(client: httpx2.Client, routes: list[BaseRoute]) -> None:
    """Walks the app itself, not its description: dialects, WebSockets and proxies are in no OpenAPI."""
    asked = 0

    for route in routes:
        path = str(getattr(route, "path", ""))

        if not path.startswith("/") or path in OPEN:
            continue

        asked += 1

        if (methods := getattr(route, "methods", None)) is None:
            assert status_of_upgrade(client, filled(path), {}) in REFUSED, path
            continue

        for method in methods:
            answer = client.request(method, filled(path), json={} if method == "POST" else None)
            assert answer.status_code in REFUSED, (method, path, answer.status_code, answer.text)

    assert asked > 80


def test_w01_what_is_open_says_the_same_to_everybody(client: httpx2.Client, server: Any) -> None:
    """The few open routes: constants, the same with and without a token."""
    for path in OPEN:
        stranger, owner = client.get(path), client.get(path, headers=server.headers)
        assert (stranger.status_code, stranger.text) == (owner.status_code, owner.text), path
        assert len(stranger.content) < 1000, path


def test_w01_the_description_asks_for_a_token(client: httpx2.Client, server: Any) -> None:
    assert client.get("/openapi.json").status_code == 401
    answer = client.get("/openapi.json", headers=server.headers)
    assert (answer.status_code, "/v1/keys" in answer.json()["paths"]) == (200, True)
    assert "/openapi.json" not in answer.json()["paths"]


@pytest.mark.parametrize("port", ["49983", "49999", "8000", "0", "x", "99999999999999999999"])
def test_w01_what_names_a_sandbox_by_headers_asks_too(
    client: httpx2.Client, api: httpx2.Client, place: str, port: str
) -> None:
    """The routes of E2B that match no path: each port, each service, plain, Connect and WebSocket."""
    named = {"E2b-Sandbox-Id": place.rpartition("/")[2], "E2b-Sandbox-Port": port}
    odd: dict[str, Any] = {"X-Access-Token": "wrong", "E2b-Traffic-Access-Token": b"\xc3\xa9\xff"}
    is_port = port.isdigit() and 0 < int(port) < 65536

    for path in ("/health", "/files", "/files?path=x&signature=v1_x", "/execute", "/envs", "/metrics", "/"):
        for headers in (named, {**named, **odd}):
            for method in ("GET", "POST"):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code in (REFUSED if is_port else {400, 401, 403}), (method, path)

    call = {**named, "Content-Type": "application/json"}
    answer = client.post("/process.Process/List", headers=call, content=b"{}")
    assert answer.status_code in (REFUSED if is_port else {400}) or port not in ("49983", "49999")
    assert status_of_upgrade(client, "/", named) not in (101, 200)
    # Control: the sandbox is there, and its owner reaches it.
    assert api.get(place).status_code == 200


def test_w01_a_signature_of_nobody_finds_no_sandbox(client: httpx2.Client, place: str) -> None:
    for method in ("GET", "POST"):
        answer = client.request(method, "/files", params={"path": "/etc/passwd", "signature": "v1_x"})
        assert answer.status_code == 401
        assert place.rpartition("/")[2] not in answer.text


# -- routes of one dialect never answer for those of another


def test_no_two_dialects_answer_the_same_path(routes: list[BaseRoute]) -> None:
    """A request meant for one would be answered by another, with other rights."""
    owners: dict[tuple[str, str], set[str]] = {}

    for path in {filled(str(getattr(route, "path", ""))) for route in routes}:
        for method in _METHODS:
            scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}

            for route in routes:
                if route.matches(dict(scope))[0] is Match.FULL:
                    endpoint = getattr(route, "endpoint", route)
                    module = getattr(endpoint, "__module__", type(endpoint).__module__)
                    dialect = next((name for name in DIALECTS if f".compat.{name}." in f"{module}."), "")
                    owners.setdefault((method, path), set()).add(dialect or "native")

    assert len(owners) > 100
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}


# -- X10: a reader who does not read


def test_x10_a_stateless_stream_waits_for_nobody(client: httpx2.Client, server: Any) -> None:
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
            if method in _METHODS[1:4]
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


# -- W02: the comparison of tokens tells nothing


def test_w02_the_first_byte_of_a_token_tells_nothing(tmp_path: Any) -> None:
    """2,000 samples each of a token that begins right and one that begins wrong, in turns, for both kinds of tokens.

    What is compared is how well one sample foretells which of the two it was: half of the pairs either way round is
    chance. A comparison that ended at the first byte would be told apart here as well, by nothing but its time; the
    control shows that this measure sees a difference where there is one.
    """

    async def measure() -> tuple[float, float, float]:
        settings = ServerSettings(state_folder=str(tmp_path / "state"), pool_size=0, token="t" * 40)

        async with open_services(settings) as services:
            key = (await services.keys.create("measured")).token
            authenticate = services.authenticator.authenticate

            async def of(token: str) -> Callable[[], Awaitable[object]]:
                async def ask() -> object:
                    with suppress(UnauthenticatedError):
                        return await authenticate(token)

                    return None

                await ask()
                return ask

            owners = await separability(await of("t" + "x" * 39), await of("y" + "x" * 39))
            head, secret = key[:16], key[16:]
            first = "A" if secret[0] != "A" else "B"
            right, wrong = head + secret[0] + "-" * (len(secret) - 1), head + first + "-" * (len(secret) - 1)
            keys = await separability(await of(right), await of(wrong))
            work = b"x" * 4096

            async def slower() -> object:
                return hashlib.sha256(work).digest()

            async def quicker() -> object:
                return hashlib.sha256(work[:64]).digest()

            return owners, keys, await separability(slower, quicker)

    owners, keys, control = asyncio.run(measure())
    assert abs(control - 0.5) > 0.3
    assert abs(owners - 0.5) < 0.2
    assert abs(keys - 0.5) < 0.2


async def separability(one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]]) -> float:
    """How probable it is that a call of the first takes longer than one of the second."""
    times: tuple[list[int], list[int]] = ([], [])

    for _ in range(2000):
        for ask, taken in zip((one, other), times, strict=True):
            begun = time.perf_counter_ns()
            await ask()
            taken.append(time.perf_counter_ns() - begun)

    second = sorted(times[1])
    longer = sum(bisect.bisect_left(second, taken) + bisect.bisect_right(second, taken) for taken in times[0])
    return longer / 2 / 2000**2


# -- tokens and signatures in what the server says of itself


def test_w10_no_token_is_ever_logged(start_server: Callable[..., Any]) -> None:
    """Not at debug, and not in an address, a header that odd clients use, or a WebSocket."""
    server = start_server(pool_size=0, log_level="debug", domain="boxes.test")

    with httpx2.Client(base_url=server.url, timeout=30) as client:
        made = client.post("/v1/keys", json={"name": "one"}, headers=server.headers).json()
        token = made["token"]
        own = {"Authorization": f"Bearer {token}"}
        sandbox_id = client.post("/v1/sandboxes", json={}, headers=own).json()["id"]
        place = f"/v1/sandboxes/{sandbox_id}"
        file = client.post(f"{place}/files/sign", json={"path": "a", "method": "PUT"}, headers=own).json()[
            "url"
        ]
        port = client.post(f"{place}/ports/80/sign", json={"expires_in_seconds": 60}, headers=own).json()[
            "url"
        ]
        assert client.put(file, content=b"x").status_code == 200
        assert client.get(port).status_code == 502
        e2b = client.post("/sandboxes", json={"templateID": "base"}, headers={"X-API-Key": token}).json()
        named = {"E2b-Sandbox-Id": e2b["sandboxID"], "X-Access-Token": e2b["envdAccessToken"]}
        assert client.get("/health", headers=named).status_code == 204
        asked = [
            client.get(f"/api/kernels?token={token}"),
            client.get(f"/v1/keys?token={token}"),
            client.get(f"/nothing?access_token={token}"),
            client.post(f"/run_code?token={token}", json={"code": "1"}),
            client.post(f"/run_code?token={token}", content=b"["),
            client.get("/v1/info", headers={**own, "Referer": f"{server.url}/?token={token}"}),
            client.post("/login", content=f"password={token}&_xsrf=1".encode()),
            client.get(f"/p/{token}/{sandbox_id}/80/"),
        ]
        assert all(answer.status_code < 500 for answer in asked)

        for path in (
            f"/api/kernels/x/channels?token={token}",
            f"{place}/pty?token={token}",
            f"{place}/ports/80/",
        ):
            assert status_of_upgrade(client, path, own) != 101

        secrets = [token, server.token, e2b["envdAccessToken"]]
        secrets += re.findall(r"signature=([0-9a-f]{64})", file) + re.findall(r"-([0-9a-f]{64})/", port)
        assert len(secrets) == 5
        # Neither in what it counts.
        counted = client.get("/metrics", headers=server.headers).text
        assert not [secret for secret in [*secrets, sandbox_id, str(server.state)] if secret in counted]

    server.stop()
    said = "".join(server.said)
    # Control: it has said a lot.
    assert "GET /v1/info" in said
    assert [secret for secret in secrets if secret in said] == []


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
