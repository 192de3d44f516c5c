"""What comes out of each dialect that a guest has made, or that a fault has: rows W06, W07 and W10."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.routing import BaseRoute
from tests.conftest import RunningServer
from websockets.sync.client import connect

from fumehood.server.app import create_app
from fumehood.server.assembly import open_services
from fumehood.server.run import _listen
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings

from .dialect_scenes import Scene, asked_of, body_of, routes_of
from .dialects import E2B, Call, Caller, Dialect, Jupyter, Mcp, message_of

pytestmark = pytest.mark.usefixtures("nothing_left_of_dialects")


@pytest.fixture(scope="module")
def server(dialect_server: RunningServer) -> RunningServer:
    return dialect_server


# -- W06 and W07: what a guest has named and written

NAMES = (
    'a"b.html',
    "a\r\nSet-Cookie: x=1.svg",
    "\u00e4\u202e.xml",
    "x;y=z.pdf",
    "%0d%0a.html",
    "a.js",
    "<b>.htm",
)
PAGE = b"<script>alert(1)</script>"


def test_w07_downloads_are_shown_by_no_browser(scene: Scene, dialect: Dialect) -> None:
    """Under names with quotes, line ends, marks of direction and types that a browser would run."""
    saved = 0

    for call in downloads(scene, dialect):
        answer = scene.owner(call)

        if answer.is_success and answer.content == PAGE:
            saved += 1
            assert answer.headers["content-disposition"].startswith("attachment;"), answer.headers
            assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
            assert "set-cookie" not in answer.headers

    assert saved >= (4 if dialect.name in ("e2b", "librechat", "openai") else 0)


def downloads(scene: Scene, dialect: Dialect) -> Iterator[Call]:
    """Every way in which a dialect gives a file out, for files that a guest has made."""
    code = f"import os\nfor n in {NAMES!r}: open(os.path.join(FOLDER, n), 'wb').write({PAGE!r})\n"
    code += "open(os.path.join(os.fsencode(FOLDER), b'\\xff.html'), 'w').write('x')"

    if isinstance(dialect, E2B):
        body = {"json": {"code": f"FOLDER = '/home/user'\n{code}"}}
        assert '"error"' not in scene.owner(dialect.inside(scene.ids, "POST", "/execute", body, 49999)).text
        listing = {"json": {"path": "/home/user"}}
        scene.owner(dialect.inside(scene.ids, "POST", "/filesystem.Filesystem/ListDir", listing))

        for name in NAMES:
            yield dialect.inside(scene.ids, "GET", "/files", {"params": {"path": f"/home/user/{name}"}})
    elif dialect.name == "librechat":
        body = {"lang": "py", "code": f"FOLDER = '/mnt/data'\n{code}"}
        answer = scene.owner(Call(method="POST", path="/librechat/exec", given={"json": body}))
        assert answer.json()["stderr"] == ""

        for file in answer.json()["files"]:
            yield Call(method="GET", path=f"/librechat/download/{file['session_id']}/{file['id']}")
            yield Call(method="GET", path=f"/librechat/sessions/{file['session_id']}/objects/{file['id']}")
    elif dialect.name == "openai":
        place = f"/v1/containers/{scene.ids['container_id']}/files"

        for name in NAMES:
            scene.owner(Call(method="POST", path=place, given={"files": {"file": (name, PAGE)}}))

        for file in scene.owner(Call(method="GET", path=place)).json()["data"]:
            yield Call(method="GET", path=f"{place}/{file['id']}/content")
    elif isinstance(dialect, Mcp):
        given = {"sandbox_id": scene.ids["sandbox_id"], "code": f"FOLDER = '/home/user'\n{code}"}
        scene.owner(dialect.tool("run_code", given))

        for name in ("a.js", "<b>.htm"):
            yield dialect.rpc(
                "resources/read", {"uri": f"sandbox://{scene.ids['sandbox_id']}/home/user/{name}"}
            )
    elif dialect.name == "fusion":
        names = {"fetch_files": list(NAMES), "code": f"FOLDER = '.'\n{code}", "language": "python"}
        yield Call(method="POST", path="/run_code", given={"json": names})
    elif dialect.name == "replit":
        yield Call(method="POST", path="/replit", given={"json": {"code": f"print({PAGE!r})"}})
    else:
        yield Call(method="GET", path="/kernelspecs/python3/logo-svg.svg")


# -- W10: what a guest says

# Halves of characters, numbers that are none, and names of files that are no text.
GUEST = r"""
import os, sys, json
print("\ud800\x00\x1b[2J")
print("\udcff", file=sys.stderr)
open(b"\xff\xfe.txt", "w").write("x")
open("half.txt", "wb").write(b"\xed\xa0\x80\xff")
try:
    from IPython.display import display
    display({"text/plain": "\ud800", "application/json": {"\ud800": float("nan")}, "\ud800/x": "1"}, raw=True)
except ImportError:
    pass
raise type("E\udcff", (ValueError,), {})("\ud800")
"""


def test_w10_what_a_guest_says_is_no_fault(scene: Scene, dialect: Dialect, server: Any) -> None:
    """Text that has no encoding, in outputs, results, errors, names and files, comes through every dialect as data."""
    heard = list(heard_of_guest(scene, dialect, server))
    assert heard

    for answer in heard:
        # 400: files are reached by names that are text alone.
        assert answer.status_code in (200, 400), answer.text
        # Whatever it is, it is text.
        answer.content.decode()


def heard_of_guest(scene: Scene, dialect: Dialect, server: Any) -> Iterator[httpx2.Response]:
    def ask(call: Call) -> httpx2.Response:
        brought = {} if call.is_bare else scene.owner.headers
        return scene.owner.client.request(
            call.method, call.path, headers={**brought, **call.headers}, **call.given
        )

    if isinstance(dialect, E2B):
        yield ask(dialect.inside(scene.ids, "POST", "/execute", {"json": {"code": GUEST}}, 49999))
        listing = {"json": {"path": "/home/user"}}
        listed = ask(dialect.inside(scene.ids, "POST", "/filesystem.Filesystem/ListDir", listing))
        yield listed
        odd = next(
            entry["path"] for entry in listed.json()["entries"] if entry["name"].endswith("\udcfe.txt")
        )
        # By the name that it was given a client reaches the file.
        stat = {"content": json.dumps({"path": odd})}
        call = dialect.inside(scene.ids, "POST", "/filesystem.Filesystem/Stat", stat)
        yield ask(replace(call, headers={**call.headers, "Content-Type": "application/json"}))
    elif isinstance(dialect, Jupyter):
        url = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{scene.ids['kernel_id']}/channels"
        header = {
            "msg_id": "1",
            "msg_type": "execute_request",
            "session": "s",
            "username": "",
            "version": "5.3",
        }
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": GUEST}}

        with connect(url, additional_headers=scene.owner.headers) as socket:
            socket.send(json.dumps({**request, "channel": "shell"}))

            while True:
                message = json.loads(socket.recv(timeout=30))

                if message["header"]["msg_type"] == "execute_reply":
                    break

        assert message["content"]["status"] == "error"
        yield ask(Call(method="GET", path=f"/api/kernels/{scene.ids['kernel_id']}"))
    elif dialect.name == "fusion":
        yield ask(
            Call(
                method="POST", path="/run_code", given={"json": {"code": GUEST, "fetch_files": ["half.txt"]}}
            )
        )
        yield ask(Call(method="POST", path="/run_jupyter", given={"json": {"cells": [GUEST]}}))
    elif dialect.name == "librechat":
        yield ask(Call(method="POST", path="/librechat/exec", given={"json": {"lang": "py", "code": GUEST}}))

        for line in BROKER_LINES:
            code = (
                f"import os\nopen(f'/proc/{{os.getppid()}}/fd/1', 'w').write({line!r} + chr(10))\nawait ask()"
            )
            # What is heard ends the wait; for the others it is the time that ends it.
            timeout_ms = 3000 if "forged" in line else 300
            body = {"code": code, "tools": [{"name": "ask"}], "timeout": timeout_ms}

            while body:
                answer = ask(Call(method="POST", path="/librechat/exec/programmatic", given={"json": body}))
                yield answer
                # Control: what it says is heard.
                assert "forged" in answer.text or "forged" not in line or "continuation_token" in body
                token = answer.json().get("continuation_token")
                body = {"continuation_token": token, "tool_results": []} if token else {}
    elif dialect.name == "replit":
        yield ask(Call(method="POST", path="/replit", given={"json": {"code": GUEST}}))
    elif dialect.name == "openai":
        place = f"/v1/containers/{scene.ids['container_id']}"
        sandbox_id = scene.ids["container_id"].removeprefix("cntr_")
        code = {"code": f"import os\nos.chdir('/mnt/data')\n{GUEST}"}
        run = Call(method="POST", path=f"/v1/sandboxes/{sandbox_id}/executions", given={"json": code})
        assert ask(run).json()["error"] is not None
        listed = ask(Call(method="GET", path=f"{place}/files"))
        yield listed

        for file in listed.json()["data"]:
            yield ask(Call(method="GET", path=f"{place}/files/{file['id']}"))
    elif isinstance(dialect, Mcp):
        of_one = {"sandbox_id": scene.ids["sandbox_id"]}

        for tool, given in (
            ("run_code", {"code": GUEST}),
            ("run_command", {"command": "printf '\\355\\240\\200\\377'; ls"}),
            ("list_files", {}),
            ("read_file", {"path": "half.txt"}),
            ("to_notebook", {}),
        ):
            answer = ask(dialect.tool(tool, {**of_one, **given}))
            assert "error" not in message_of(answer), answer.text
            yield answer


# What code may write where the broker of its own sandbox does.
BROKER_LINES = (
    '{"calls": [{"id": "forged", "name": "ask", "input": 1}]}',
    '{"calls": [{"id": "a", "name": [], "input": 1}]}',
    '{"calls": [{"id": "a", "name": "ask", "input": NaN}]}',
    '{"calls": [{"id": "\\ud800", "name": "ask", "input": "\\udfff"}]}',
    '{"calls": [{"id": "a", "name": "ask", "input": ' + "[" * 900 + "]" * 900 + "}]}",
    '{"exit": 0, "stdout": "\\ud800", "stderr": [NaN]}',
    '{"exit": 1e999, "stdout": 1}',
    '{"exit": ' + "9" * 4000 + "}",
    '{"exit": "\\ud800"}',
    '{"calls": {"a": 1}, "exit": null}',
    "[" * 100_000,
)


# -- W10: faults of the server

SECRET = "/etc/secret-place"


class Faulty:
    """A part of the server in which everything fails, as nobody has foreseen."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} failed at {SECRET}")


@pytest.fixture(scope="module")
def faulty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that knows its tokens, and nothing else works."""
    state = tmp_path_factory.mktemp("faulty") / "state"
    settings = ServerSettings(state_folder=str(state), port=0, pool_size=0, token="t" * 20)
    ready, said = threading.Event(), {}

    async def serve() -> None:
        async with open_services(settings) as services:
            app = create_app(_broken(services))
            server = uvicorn.Server(
                uvicorn.Config(app, lifespan="off", log_config=None, ws="websockets-sansio")
            )
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            said["server"] = server

            with closing(_listen(settings)) as listener:
                said["url"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
                ready.set()
                await server.serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield SimpleNamespace(url=said["url"], token=settings.token, state=state, headers={})
    said["server"].should_exit = True
    thread.join(30)


def _broken(services: Services) -> Services:
    return replace(services, backend=Faulty(), stored_files=Faulty(), blobs=Faulty(), idempotency=Faulty())  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_w10_a_fault_tells_nothing_of_the_inside(
    faulty_server: Any, scene: Scene, dialect: Dialect, routes: list[BaseRoute]
) -> None:
    """Each route of each dialect, asked for something while what is behind it fails."""
    caller = Faulted(faulty_server, dialect)
    faults = 0

    for method, path in asked_of(routes_of(routes, dialect.name), {**scene.never}):
        if method != "WEBSOCKET":
            faults += caller(body_of(method, path)).status_code == 500

    for call in [dialect.probe(scene.never), *dialect.by_other_means(scene.ids, scene.never)]:
        caller(call)

    caller.client.close()
    assert faults or dialect.name in ("fusion", "replit", "mcp")


class Faulted(Caller):
    """Looks at answers of a server whose faults are meant."""

    def __init__(self, server: Any, dialect: Dialect) -> None:
        super().__init__(server, dialect, server.token)

    def __call__(self, call: Call, **headers: Any) -> httpx2.Response:
        brought = {} if call.is_bare else self.headers
        answer = self.client.request(
            call.method, call.path, headers={**brought, **call.headers, **headers}, **call.given
        )
        said = f"{answer.headers!r}\n{answer.text}"

        for word in (
            SECRET,
            "RuntimeError",
            "Traceback",
            "site-packages",
            "fumehood/",
            str(Path(__file__).parent),
        ):
            assert word not in said, (call, said)

        return answer
