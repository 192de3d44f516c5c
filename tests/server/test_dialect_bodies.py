"""What is sent to each dialect and comes out of it by somebody who has a key, and means no good.

Rows W06 to W08 and W10: bodies that are too large, too deep or of the wrong kind in every field, names that a guest has
made up, faults of the server itself. Every answer is looked at by `dialects.harmless`.
"""

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
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from fumehood.server.app import create_app
from fumehood.server.assembly import open_services
from fumehood.server.run import _listen
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings

from .dialect_scenes import Scene, asked_of, body_of, routes_of
from .dialects import E2B, Call, Caller, Dialect, Jupyter, Mcp, message_of, tools_of_one

MIB = 1 << 20
UNSAFE = ("POST", "PUT", "PATCH")
STREAMED = {"Content-Type": "application/connect+json"}


@pytest.fixture(scope="module")
def server(dialect_server: RunningServer) -> RunningServer:
    return dialect_server


@pytest.fixture(scope="module", autouse=True)
def no_sandboxes_left(dialect_server: RunningServer) -> Iterator[None]:
    """End what odd requests have made all the same."""
    yield

    with httpx2.Client(base_url=dialect_server.url, headers=dialect_server.headers, timeout=30) as client:
        for item in client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]:
            client.delete(f"/v1/sandboxes/{item['id']}")


# -- W08: how much


def test_w08_bodies_are_bounded_on_every_route(
    scene: Scene, dialect: Dialect, of_dialect: list[BaseRoute]
) -> None:
    """By the length that is announced, and by what comes when none is; uploads of files have a bound of their own."""
    seen = 0

    for method, path in asked_of(of_dialect, scene.ids):
        if method not in UNSAFE:
            continue

        headers = {
            "Content-Type": "application/json",
            **({} if dialect.name != "mcp" else dialect.probe({}).headers),
        }
        whole = Call(method=method, path=path, headers=headers, given={"content": b" " * (3 * MIB)})
        assert scene.owner(whole).status_code == 413, path
        seen += 1

        # Some refuse before they read, because they read nothing at all.
        came = Call(method=method, path=path, headers=headers, given={"content": _pieces(3 * MIB)})
        answer = scene.owner(came)
        assert 400 <= answer.status_code < 500 or answer.status_code == 501 or _reads_nothing(path), (
            path,
            answer.text,
        )

    assert seen
    # Control.
    assert scene.owner(dialect.probe(scene.ids)).is_success


def _pieces(size: int) -> Iterator[bytes]:
    yield from (b" " * 65_536 for _ in range(size // 65_536))


def _reads_nothing(path: str) -> bool:
    return path.endswith(("/interrupt", "/restart"))


# Requests of each dialect that are right, so that each of their fields can be made wrong.
Template = tuple[str, dict[str, Any]]
TEMPLATES: dict[str, list[Template]] = {
    "e2b": [
        (
            "/sandboxes",
            {"templateID": "base", "timeout": 9, "metadata": {}, "envVars": {}, "autoPause": False},
        ),
        ("/sandboxes/{sandbox_id}/timeout", {"timeout": 600}),
        ("/sandboxes/{sandbox_id}/connect", {"timeout": 600}),
        ("/sandboxes/{sandbox_id}/refreshes", {"duration": 600}),
        ("/sandboxes/{sandbox_id}/network", {"allow_internet_access": False, "allowOut": [], "denyOut": []}),
    ],
    "jupyter": [
        ("/api/kernels", {"name": "python3", "env": {}}),
        ("/api/sessions", {"path": "a", "name": "a", "type": "notebook", "kernel": {"id": "{kernel_id}"}}),
    ],
    "fusion": [
        (
            "/run_code",
            {
                "code": "",
                "language": "python",
                "compile_timeout": 1,
                "run_timeout": 1,
                "memory_limit_MB": 64,
                "stdin": "",
                "files": {},
                "fetch_files": [],
                "args": [],
            },
        ),
        (
            "/run_jupyter",
            {"cells": [], "cell_timeout": 1, "total_timeout": 1, "kernel": "python3", "files": {}},
        ),
    ],
    "librechat": [
        (
            "/librechat/exec",
            {"lang": "py", "code": "", "args": [], "timeout": 1, "files": [], "session_id": "x"},
        ),
        ("/librechat/exec/programmatic", {"code": "", "lang": "py", "tools": [], "timeout": 1, "files": []}),
        ("/librechat/exec/programmatic", {"continuation_token": "x", "tool_results": []}),
        ("/librechat/exec/programmatic/cancel", {"request_id": "x"}),
    ],
    "replit": [("/replit", {"code": "", "files": {}, "interpreter_mode": False, "strace": False})],
    "openai": [
        ("/v1/containers", {"name": "a", "memory_limit": "1g", "expires_after": {}, "network_policy": {}}),
        ("/v1/containers", {"name": "a", "expires_after": {"anchor": "last_active_at", "minutes": 1}}),
        (
            "/v1/containers",
            {"name": "a", "network_policy": {"type": "allowlist", "allowed_domains": ["a.test"]}},
        ),
    ],
    "mcp": [],
}
ODD: dict[str, str] = {
    "null": "null",
    "true": "true",
    "minus": "-1",
    "huge": "1" + "0" * 400,
    "infinite": "1e999",
    "NaN": "NaN",
    "half": '"\\ud800"',
    "nul": '"a\\u0000b"',
    "long": '"' + "x" * 70_000 + '"',
    "list": '[[], "\\ud800", 1]',
    "object": '{"\\ud800": {"a": null}, "..": [1], "type": [], "minutes": 1e400, "id": {}, "name": []}',
    "objects": '[{"name": [], "id": {}, "call_id": [], "session_id": 1, "storage_session_id": []}]',
}


def mutations(template: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """A right body, with one field after the other made odd."""
    for name in template:
        for odd, text in ODD.items():
            if name == "code" and text.startswith('"'):
                # It would only fail, in words of its own.
                continue

            rest = [
                f"{json.dumps(other)}: {json.dumps(value)}"
                for other, value in template.items()
                if other != name
            ]
            yield f"{name}: {odd}", ("{" + ", ".join([f"{json.dumps(name)}: {text}", *rest]) + "}").encode()


def test_w08_no_field_is_a_fault(scene: Scene, dialect: Dialect) -> None:
    """Each field of each request in twelve odd ways: refused or done, and never a 500 (see `harmless`)."""
    templates = [*TEMPLATES[dialect.name]]

    for path, template in templates:
        for name, value in scene.ids.items():
            path = path.replace(f"{{{name}}}", value)
            template = json.loads(json.dumps(template).replace(f"{{{name}}}", value))

        method = "PUT" if path.endswith("/network") else "POST"

        for what, body in mutations(template):
            given = {"content": body}
            headers = {"Content-Type": "application/json"}
            answer = scene.owner(Call(method=method, path=path, headers=headers, given=given))
            assert len(answer.content) < 100_000, (path, what)

    assert templates or dialect.name == "mcp"
    assert scene.owner(dialect.probe(scene.ids)).is_success


def test_w08_no_call_inside_a_sandbox_is_a_fault(scene: Scene, dialect: Dialect) -> None:
    """The daemon and the interpreter that E2B's headers name, and the tools of MCP."""
    if isinstance(dialect, E2B):
        for path, template in E2B_CALLS:
            for _, body in mutations(template):
                port = 49999 if path.startswith(("/execute", "/contexts")) else 49983
                is_stream = path in E2B_STREAMS
                content = b"\x00" + len(body).to_bytes(4, "big") + body if is_stream else body
                headers = STREAMED if is_stream else {"Content-Type": "application/json"}
                call = dialect.inside(scene.ids, "POST", path, {"content": content}, port)
                scene.owner(call, **{**headers, "Connect-Timeout-Ms": "200"})
    elif isinstance(dialect, Mcp):
        for tool, arguments in tools_of_one(scene.ids).items():
            for what, body in mutations({**arguments, "sandbox_id": "x", **MCP_CODE.get(tool, {})}):
                call = dialect.tool(tool, {})
                text = json.dumps(call.given["json"]).replace(
                    '"arguments": {}', f'"arguments": {body.decode()}'
                )
                headers = {**call.headers, "Content-Type": "application/json"}
                answer = scene.owner(replace(call, headers=headers, given={"content": text.encode()}))
                # Refused by the protocol, or by the tool: no sandbox is called so.
                assert answer.status_code in (200, 400), (tool, what, answer.text)

    assert scene.owner(dialect.probe(scene.ids)).is_success


MCP_CODE = {"run_code": {"code": "1"}}
E2B_CALLS: list[Template] = [
    ("/execute", {"code": "1", "context_id": "", "language": "python", "env_vars": {}}),
    ("/contexts", {"language": "python", "cwd": "/tmp"}),
    ("/process.Process/SendInput", {"process": {"pid": 1}, "input": {"stdin": ""}}),
    ("/process.Process/SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGTERM"}),
    ("/process.Process/Update", {"process": {"pid": 1}, "pty": {"size": {"cols": 80, "rows": 24}}}),
    (
        "/process.Process/Start",
        {"process": {"cmd": "true", "args": [], "envs": {}, "cwd": "/"}, "tag": "t", "pty": {}},
    ),
    ("/filesystem.Filesystem/Stat", {"path": "x"}),
    ("/filesystem.Filesystem/ListDir", {"path": ".", "depth": 1}),
    ("/filesystem.Filesystem/Move", {"source": "x", "destination": "y"}),
    ("/filesystem.Filesystem/GetWatcherEvents", {"watcherId": "x"}),
    ("/filesystem.Filesystem/WatchDir", {"path": ".", "recursive": False}),
]
E2B_STREAMS = ("/process.Process/Start", "/filesystem.Filesystem/WatchDir")


def test_w08_frames_of_a_websocket_are_bounded(scene: Scene, dialect: Dialect, server: Any) -> None:
    """Too large, too deep, of too many values, or not what they say: the connection ends, the kernel goes on."""
    if not isinstance(dialect, Jupyter):
        assert not [name for name in scene.ids if name == "kernel_id"]
        return

    url = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{scene.ids['kernel_id']}/channels"
    frames: dict[str, tuple[str | bytes, int]] = {
        "large": ("x" * (17 * MIB), 1009),
        "deep": ("[" * 100_000, 1007),
        "values": ('{"a": [' + "[]," * 600_000 + "0]}", 1007),
        "half": ("{", 1007),
        "offsets": (b"\xff" * 64, 1007),
        "count": ((1024).to_bytes(4, "big") + b"\x00" * 64, 1007),
        "types": ('{"header": {"msg_id": [], "msg_type": {}}, "channel": 1}', 1007),
    }

    for name, (sent, code) in frames.items():
        with connect(url, additional_headers=scene.owner.headers, max_size=None) as socket:
            # It may be gone before all was sent, with what the server said.
            assert _closed_with(socket, sent) in ((code, None) if name == "large" else (code,)), name

    assert scene.owner(dialect.probe(scene.ids)).is_success


def _closed_with(socket: ClientConnection, sent: str | bytes) -> int | None:
    """The code with which a server ends a connection on which this is sent."""
    try:
        socket.send(sent)

        while True:
            socket.recv(timeout=20)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


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
            body = {"code": code, "tools": [{"name": "ask"}], "timeout": 300}

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
