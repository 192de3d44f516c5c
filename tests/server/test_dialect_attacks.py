"""Every dialect attacked as the native API is: without a token, from a browser, and with the key of somebody else.

The routes of each dialect are taken from the app, so that a new one is attacked without anybody remembering it; one
that hands out ids of a kind that `dialects.py` does not make fails here. Names begin with the row of the scorecard.
Whatever is refused passes for its owner, in the same test or in the one beside it. Every answer is looked at: see
`dialects.harmless`, which is rows W06 and W10 for all that is asked here.
"""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer

import fumehood.dialects
from fumehood.server.settings import DIALECTS

from .dialect_scenes import WITHOUT_PATH, NewCaller, Scene, asked_of, body_of, new_key, path_of, status_of
from .dialects import ALL, CANARY, Call, Dialect, Mcp, message_of, tools_of_one
from .walking import REFUSED, dialect_of, status_of_upgrade

KNOWN_COMPARISONS = {
    (
        "auth.py",
        "login.token == token",
    ): "of a caller who has shown this token already, to count its sessions",
    ("snapshots.py", "one.id == token"): "where a page of a list begins",
}
HOST_OF_ANOTHER = (
    "evil.test",
    "localhost.evil.test",
    "192.168.1.1",
    "localhost:80@evil.test",
    "boxes.test.evil.test",
)
OTHER_ORIGINS = ("https://evil.test", "null", "http://localhost.evil.test", "http://127.0.0.1:1")
BAD_TOKENS: dict[str, dict[str, Any]] = {
    "none": {},
    "wrong": {"Authorization": "Bearer wrong", "X-API-Key": "wrong"},
    "empty": {"Authorization": "Bearer", "X-API-Key": ""},
    "shaped": {"Authorization": "token fh_" + "x" * 56, "X-API-Key": "e2b_" + "ab" * 20},
    "huge": {"Authorization": "Bearer " + "x" * 9000, "X-API-Key": "x" * 9000},
    "bytes": {"Authorization": b"Bearer \xff\xfe\xc3\xa9", "X-API-Key": b"\xff\xfe"},
    "others": {
        "Authorization": "Basic b3duZXI6b3duZXI=",
        "X-Access-Token": "0" * 64,
        "E2b-Traffic-Access-Token": "0" * 64,
        "Cookie": "fumehood-jupyter=x; _xsrf=x",
        "X-XSRFToken": "x",
    },
}


@pytest.fixture(scope="module")
def server(dialect_server: RunningServer) -> RunningServer:
    return dialect_server


# -- the walk itself


def test_every_route_is_of_a_dialect_that_is_attacked(routes: list[BaseRoute]) -> None:
    """None is missed, because the app has a dialect more, or a route without a path more."""
    assert {dialect.name for dialect in ALL} == set(DIALECTS)
    assert {dialect_of(route) for route in routes} == {*DIALECTS, "native"}
    assert {path_of(route) for route in routes if not path_of(route).startswith("/")} == WITHOUT_PATH


# -- W01: authentication


def test_w01_no_route_opens_to_a_wrong_token(scene: Scene, of_dialect: list[BaseRoute]) -> None:
    """None, wrong, empty, huge, in bytes that are no text, and in the places of other dialects."""
    asked = asked_of(of_dialect, scene.ids)
    assert asked

    for name, headers in BAD_TOKENS.items():
        for one in asked:
            # A handshake with a line of 9,000 characters is none.
            refused = {400, *REFUSED} if (name, one[0]) == ("huge", "WEBSOCKET") else REFUSED
            assert status_of(scene.stranger, one, **headers) in refused, (name, one)

    for method, path in asked:
        query = {"token": "wrong", "access_token": "wrong", "api_key": "wrong"}

        if method != "WEBSOCKET":
            call = Call(method=method, path=path, given={"params": query})
            assert scene.stranger(call).status_code in REFUSED, path


def test_w01_what_names_things_in_other_ways_asks_too(scene: Scene, dialect: Dialect) -> None:
    """Bodies, headers and signatures: without a token nobody is told whether there is such a thing."""
    for call in dialect.by_other_means(scene.ids, {**scene.own, "access": "", "traffic": ""}):
        for headers in BAD_TOKENS.values():
            answer = scene.stranger(call, **headers)
            assert answer.status_code in REFUSED, (call, answer.text)


def test_w01_the_right_token_opens_wherever_it_is_brought(
    scene: Scene, server: Any, caller: NewCaller, dialect: Dialect
) -> None:
    """Control: the same request, with the token in each place where clients of the dialect put it."""
    token, probe = new_key(server), dialect.probe
    ids = dialect.set_up(caller(dialect, token))
    stranger = caller(dialect, "")
    ways = [{"headers": dialect.credentials(token)}, *dialect.other_ways(token)]

    for way in ways:
        call = probe(ids)
        given = {**call.given, **{name: value for name, value in way.items() if name != "headers"}}
        call = Call(method=call.method, path=call.path, headers=call.headers, given=given)
        answer = stranger(call, **way.get("headers", {}))
        assert answer.is_success, (way, answer.text)

    dialect.unmake(caller(dialect, token), ids)


def test_w01_a_revoked_key_opens_nothing(
    scene: Scene, server: Any, caller: NewCaller, dialect: Dialect
) -> None:
    """At once, on every dialect."""
    made = httpx2.post(f"{server.url}/v1/keys", json={"name": "k"}, headers=server.headers, timeout=30).json()
    holder = caller(dialect, made["token"])
    ids = dialect.set_up(holder)
    probe = dialect.probe(ids)
    assert holder(probe).is_success

    if "continuation_token" in ids:
        # Nobody else could end what waits.
        dialect.unmake(holder, ids)

    gone = httpx2.delete(f"{server.url}/v1/keys/{made['key']['id']}", headers=server.headers, timeout=30)
    assert gone.status_code == 204
    assert holder(probe).status_code in REFUSED

    if "continuation_token" not in ids:
        # The server's owner has the sandboxes of all keys.
        dialect.unmake(caller(dialect, server.token), ids)


# -- W02: comparisons


def test_w02_no_dialect_compares_secrets_by_itself() -> None:
    """Tokens, signatures and the like are compared by hash or `hmac.compare_digest`, never by `==`."""
    secret = re.compile(r"token|secret|signature|password|xsrf|cookie", re.I)
    folder = Path(fumehood.dialects.__file__).parent
    seen, found = 0, []

    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                seen += 1
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]

                if any(secret.search(side) and not side.startswith(("'", "_")) for side in sides):
                    found.append((path.name, ast.unparse(node)))

    assert seen > 50
    assert set(found) <= set(KNOWN_COMPARISONS)


# -- W03 to W05: what a browser could be made to send


def test_w03_no_route_answers_to_another_name(scene: Scene, of_dialect: list[BaseRoute]) -> None:
    """With the right token: a page whose name leads to this machine brings nobody's."""
    for one in asked_of(of_dialect, scene.ids):
        # A handshake is refused before it is known to be one.
        assert status_of(scene.owner, one, Host="evil.test") in (421, 403), one


def test_w03_only_our_own_names(scene: Scene, server: Any, dialect: Dialect) -> None:
    probe = dialect.probe(scene.ids)
    port = server.url.rpartition(":")[2]

    for host in HOST_OF_ANOTHER:
        assert scene.owner(probe, Host=host).status_code == 421, host

    for host in ("localhost", f"127.0.0.1:{port}", "[::1]:1", "LOCALHOST"):
        assert scene.owner(probe, Host=host).is_success, host

    token = next(iter(dialect.credentials("x").items()))
    head = f"{probe.method} {probe.path} HTTP/1.1\r\n{token[0]}: {token[1]}\r\nContent-Length: 0\r\n"

    for hosts in ("", "Host: localhost\r\nHost: evil.test\r\n"):
        with socket.create_connection(("127.0.0.1", int(port)), 10) as raw:
            raw.sendall(f"{head}{hosts}Connection: close\r\n\r\n".encode())
            assert raw.recv(4096).split()[1] in (b"400", b"421"), hosts


def test_w04_no_browser_of_another_origin_changes_anything(
    scene: Scene, server: Any, dialect: Dialect, of_dialect: list[BaseRoute]
) -> None:
    """With the right token, on each route that changes something and each WebSocket."""
    unsafe = [one for one in asked_of(of_dialect, scene.ids) if one[0] not in ("GET", "HEAD")]
    assert unsafe

    for one in unsafe:
        for origin in OTHER_ORIGINS:
            assert status_of(scene.owner, one, Origin=origin) == 403, (one, origin)

    # What is safe may be asked; the page is not shown the answer, and no preflight is granted (see `harmless`).
    for method, path in asked_of(of_dialect, scene.ids):
        asked = {"Origin": OTHER_ORIGINS[0], "Access-Control-Request-Method": method}
        scene.stranger(Call(method="OPTIONS", path=path), **asked)

    # Control: a page of the server's own origin, where there will be one, does.
    assert scene.owner(dialect.probe(scene.ids), Origin=server.url).is_success


def test_w04_a_session_of_a_browser_is_no_token(
    scene: Scene, server: Any, caller: NewCaller, dialect: Dialect
) -> None:
    """The one cookie there is: alone it opens nothing, and beside its second half nothing to another origin."""
    if dialect.name != "jupyter":
        login = scene.owner.client.post("/login", content=b"password=x")
        assert login.status_code == 403
        # No dialect but Jupyter's knows what a cookie is.
        probe = dialect.probe(scene.ids)
        assert scene.stranger(probe, Cookie="fumehood-jupyter=x; session=x").status_code in REFUSED
        return

    token = new_key(server)
    owner = caller(dialect, token)
    ids = dialect.set_up(owner)
    xsrf = owner.client.get("/login").cookies["_xsrf"]
    form = {"password": token, "_xsrf": xsrf}
    begun = owner.client.post("/login", data=form, headers={"Cookie": f"_xsrf={xsrf}"})
    cookie = f"_xsrf={xsrf}; fumehood-jupyter={begun.cookies['fumehood-jupyter']}"
    both = begun.headers.get_list("set-cookie")
    assert all("httponly" in one.lower() and "samesite=strict" in one.lower() for one in both)
    probe, channels = dialect.probe(ids), f"/api/kernels/{ids['kernel_id']}/channels"
    stranger = caller(dialect, "")

    assert stranger(probe, Cookie=cookie).status_code in REFUSED
    assert status_of_upgrade(stranger.client, channels, {"Cookie": cookie}) == 403

    for origin in OTHER_ORIGINS:
        headers = {"Cookie": cookie, "X-XSRFToken": xsrf, "Origin": origin}
        assert stranger(probe, **headers).status_code == 403
        assert status_of_upgrade(stranger.client, channels, headers) == 403

    # Control.
    assert stranger(probe, **{"Cookie": cookie, "X-XSRFToken": xsrf}).is_success
    good = {"Cookie": cookie, "X-XSRFToken": xsrf}
    assert status_of_upgrade(stranger.client, channels, good) == 101
    dialect.unmake(owner, ids)


def test_w05_no_safe_method_changes_anything(scene: Scene, of_dialect: list[BaseRoute]) -> None:
    """A GET that names another method is a GET: refused where there is none, and otherwise without effect."""
    asked = asked_of(of_dialect, scene.ids)
    got = {path for method, path in asked if method in ("GET", "WEBSOCKET")}

    for method, path in asked:
        if method in ("POST", "PUT", "PATCH", "DELETE") and path not in got:
            named = {"X-HTTP-Method-Override": method, "X-Method-Override": method}
            call = Call(method="GET", path=path, given={"params": {"_method": method}})
            # 501: there is a route for what E2B has there, which does nothing.
            assert scene.owner(call, **named).status_code in (404, 405, 501), path


def test_w05_what_a_form_can_send_needs_a_token_all_the_same(scene: Scene, dialect: Dialect) -> None:
    """Types that a page may send without asking first: as a browser sends them, from elsewhere."""
    probe = dialect.probe(scene.ids)

    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        call = Call(method="POST", path=probe.path, given={"content": b'{"code": "1"}'})
        assert scene.stranger(call, **{"Content-Type": kind}).status_code in REFUSED
        assert scene.owner(call, **{"Content-Type": kind, "Origin": "https://evil.test"}).status_code == 403


# -- W09: one key against another


def test_w09_what_is_another_keys_answers_like_what_never_was(
    scene: Scene, dialect: Dialect, of_dialect: list[BaseRoute]
) -> None:
    """On each route that has an id in its path; what it is answered with does not differ but for the id itself."""
    seen = 0

    for route in of_dialect:
        if "{" not in path_of(route) or path_of(route).endswith("{rest:path}"):
            continue

        theirs, never = (asked_of([route], ids) for ids in (scene.ids, scene.never))

        for one, none in zip(theirs, never, strict=True):
            if one == none:
                # A name that is everybody's.
                continue

            seen += 1

            if one[0] == "WEBSOCKET":
                found = (status_of(scene.other, one), status_of(scene.other, none))
                assert found == (404, 404), one
                continue

            answers = [scene.other(body_of(*asked)) for asked in (one, none)]
            assert_same(scene, answers, one)

    assert seen or dialect.name in ("fusion", "replit", "mcp")


def test_w09_what_is_named_in_other_ways_does_too(scene: Scene, dialect: Dialect) -> None:
    theirs, never = (dialect.by_other_means(ids, scene.own) for ids in (scene.ids, scene.never))
    assert theirs or not scene.ids or dialect.name == "openai"

    for one, none in zip(theirs, never, strict=True):
        assert_same(scene, [scene.other(one), scene.other(none)], one)


def assert_same(scene: Scene, answers: list[httpx2.Response], what: object) -> None:
    first, second = answers
    assert first.status_code == second.status_code, (what, first.text, second.text)
    assert first.status_code < 500 or first.status_code in (501, 502), (what, first.text)
    assert CANARY not in first.text, what
    assert plain(scene, first.text) == plain(scene, second.text), what


def plain(scene: Scene, text: str) -> str:
    """An answer without the ids in it, and without what differs from one answer to the next."""
    for ids in (scene.ids, scene.never):
        # The longest first: one may be the end of another.
        for value in sorted((value for value in ids.values() if len(value) > 15), key=len, reverse=True):
            for written in (value, value.replace("-", ""), value.removeprefix("cntr_"), value[:4] + "..."):
                text = text.replace(written, "ID")

    text = re.sub(r"ID(-?[a-z0-9]+)*", "ID", text)
    return re.sub(r'[0-9a-f]{32}|"(wall_time|request_id|x-request-id)": ?[^,}]*', "", text)


def _is_of_none(path: str) -> bool:
    """Tells whether a path is one of a named template or a volume of E2B's: there are none."""
    return path.removeprefix("/v2").startswith(("/templates/", "/volumes/", "/volumecontent/"))


def test_w09_its_owner_reaches_all_of_it(scene: Scene, dialect: Dialect, of_dialect: list[BaseRoute]) -> None:
    """Control of the two above, and what they have not harmed."""
    reached = 0

    for method, path in asked_of(of_dialect, scene.ids):
        if method == "WEBSOCKET":
            assert status_of(scene.owner, (method, path)) == 101
            reached += 1
        elif method == "GET":
            answer = scene.owner(body_of(method, path))
            reached += answer.is_success
            # Builds of templates are the server's owner's alone.
            refusals = (403, 404) if _is_of_none(path) else (501,)
            assert answer.is_success or answer.status_code in refusals, path

    held = [
        scene.owner(call) for call in dialect.by_other_means(scene.ids, scene.ids) if call.method == "GET"
    ]
    assert scene.owner(dialect.probe(scene.ids)).is_success
    assert reached or not scene.ids or dialect.name == "mcp"

    if dialect.name == "e2b":
        assert next(answer.text for answer in held if answer.is_success) == CANARY


def test_w09_ids_cannot_be_guessed(scene: Scene, dialect: Dialect) -> None:
    """What only its holder can know has 103 bits at least, drawn anew for each."""
    shared = {"name", "resource", "rest", "checkpoint_id", "alias", "template_id", "volume_id"}
    # What a key never gets, as it builds no template.
    shared |= {"template", "build_id", "hash"}

    for name, value in scene.ids.items():
        if name in shared or (dialect.name, name) == ("openai", "file_id"):
            continue

        mine, theirs = value.replace("-", ""), scene.own[name].replace("-", "")
        tail = 20 if len(mine) <= 37 and not re.fullmatch("[0-9a-f]+", mine) else 30
        assert mine[-tail:] != theirs[-tail:], name
        assert len(set(mine[-tail:])) > 5, (name, value)


def test_w09_every_tool_is_asked(scene: Scene, server: Any, dialect: Dialect) -> None:
    """Each tool of MCP that names a sandbox is among those that were tried above, and works for its owner."""
    if not isinstance(dialect, Mcp):
        assert "tool" not in scene.ids
        return

    listed = message_of(scene.owner(dialect.rpc("tools/list", {})))["result"]["tools"]
    of_one = {tool["name"] for tool in listed if "sandbox_id" in tool["inputSchema"]["properties"]}
    assert of_one == set(tools_of_one(scene.ids))
    assert len(of_one) > 8
    file = scene.owner(
        dialect.tool("read_file", {"sandbox_id": scene.ids["sandbox_id"], "path": "secret.html"})
    )
    assert CANARY in file.text
    assert not message_of(scene.owner(dialect.tool("rollback", scene.ids)))["result"].get("isError")
