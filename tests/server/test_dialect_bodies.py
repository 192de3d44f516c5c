"""What is sent to each dialect by somebody who has a key and means no good: row W08.

Bodies that are too large, too deep, or of the wrong kind in every field, by HTTP and in frames. Every answer is looked
at by `dialects.harmless`: a fault of the server is none that it could give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from .dialect_scenes import Scene, asked_of
from .dialects import E2B, Call, Dialect, Jupyter, Mcp, tools_of_one

pytestmark = pytest.mark.usefixtures("nothing_left_of_dialects")
MIB = 1 << 20
UNSAFE = ("POST", "PUT", "PATCH")
STREAMED = {"Content-Type": "application/connect+json"}


@pytest.fixture(scope="module")
def server(dialect_server: RunningServer) -> RunningServer:
    return dialect_server


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
        ("/sandboxes/{sandbox_id}/snapshots", {"name": "a", "memory": False}),
        ("/sandboxes/{sandbox_id}/fork", {"count": 0, "timeout": 9}),
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
