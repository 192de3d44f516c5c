"""Each dialect as an attacker sees it: where tokens go, what it hands out, and one request that changes nothing.

Routes are not written down here: `walking.routes_by_dialect` takes them from the app. What is written down is what no
walk can know: which header a client brings its token in, and how the things are made whose ids stand in the paths.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import httpx2

from fumehood.mcp.toolbox import TOOLS

from .walking import FromManyAddresses

CANARY = "canary-5d2c7f"
Ids = Mapping[str, str]
# What no answer may hold: a stack, places of this checkout and its packages, of the server's own code.
_INSIDE = re.compile(r'Traceback \(most|File "/|site-packages|/src/fumehood|\.venv|sqlite3\.|asyncio\.')
_SHOWN_BY_BROWSERS = re.compile(r"text/html|xml|svg|javascript|text/css|pdf")
_LOGO = re.compile(r"/kernelspecs/[^/]+/logo-svg\.svg")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request, without its token.

    Attributes:
        method: Its method.
        path: Its path.
        headers: Headers beside those of the token.
        given: What the client library takes for a body or a query.
        is_bare: It brings tokens of its own, or none: those of the caller are not added.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    is_bare: bool = False


Ask = Callable[[Call], httpx2.Response]


class Caller:
    """Somebody who speaks a dialect with one token; looks at every answer.

    Args:
        server: The server that is asked.
        dialect: What is spoken.
        token: The token, or "" for a stranger.
    """

    def __init__(self, server: Any, dialect: Dialect, token: str) -> None:
        # Strangers are wrong more often than one address may be.
        transport = None if token else FromManyAddresses()
        self.client = httpx2.Client(base_url=server.url, timeout=30, transport=transport)
        self._server = server
        self.headers = dialect.credentials(token) if token else {}

    def __call__(self, call: Call, **headers: Any) -> httpx2.Response:
        """Send a request and return the answer, which tells nothing of the inside and shows nothing in a browser."""
        brought = {} if call.is_bare else self.headers
        answer = self.client.request(
            call.method, call.path, headers={**brought, **call.headers, **headers}, **call.given
        )
        self.client.cookies.clear()
        harmless(self._server, answer)
        return answer


def harmless(server: Any, answer: httpx2.Response) -> None:
    """See that an answer is none of those that rows W06, W07 and W10 forbid."""
    what = (answer.request.method, answer.request.url, answer.status_code, answer.text[:300])
    said = f"{answer.headers!r}\n{answer.text}"
    assert answer.status_code != 500, what
    assert not _INSIDE.search(said), what
    assert str(server.state) not in said, what
    assert server.token not in said, what
    assert "access-control-allow-origin" not in answer.headers, what
    kind = answer.headers.get("content-type", "")

    if answer.is_success and answer.content:
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], what

    if _SHOWN_BY_BROWSERS.search(kind) and not _LOGO.fullmatch(answer.request.url.path):
        assert answer.headers.get("content-disposition", "").startswith("attachment"), what


class Dialect(ABC):
    """What a walk over the routes of a dialect cannot know."""

    name: ClassVar[str]

    @abstractmethod
    def credentials(self, token: str) -> dict[str, str]:
        """The headers in which its ordinary clients bring a token."""

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        """Other ways of bringing one, as the client library takes them."""
        return []

    def set_up(self, ask: Ask) -> dict[str, str]:
        """Make one of everything that the dialect hands an id out for; its file holds the canary."""
        return {}

    @abstractmethod
    def probe(self, ids: Ids) -> Call:
        """A request that no browser may send from elsewhere, succeeds, and leaves things as they were."""

    def by_other_means(self, ids: Ids, own: Ids) -> list[Call]:
        """Requests of somebody who has `own`, that name `ids` by headers, bodies or signatures."""
        return []

    def never_made(self, ids: Ids) -> dict[str, str]:
        """Ids of the same form that nobody was given."""
        return {name: _other(value) for name, value in ids.items()}

    def unmake(self, ask: Ask, ids: Ids) -> None:
        """End what was made."""
        return


def _other(value: str) -> str:
    """The same but for its last five letters and digits."""
    last = value[-5:]
    return value[:-5] + ("00000" if last != "00000" else "11111")


def _made(answer: httpx2.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


class E2B(Dialect):
    name = "e2b"

    def credentials(self, token: str) -> dict[str, str]:
        return {"X-API-Key": token}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [
            {"headers": {"Authorization": f"Bearer {token}"}},
            {"headers": {"X-API-Key": "e2b_" + token.encode().hex()}},
        ]

    def set_up(self, ask: Ask) -> dict[str, str]:
        made = _made(ask(_post("/sandboxes", {"templateID": "base", "timeout": 600})))
        ids = {
            "sandbox_id": made["sandboxID"],
            "access": made["envdAccessToken"],
            "traffic": made["trafficAccessToken"],
            "rest": "x",
            "watcher_id": "",
            # Everybody's: the default template, and what no server of these tests has.
            "alias": "base",
            "template_id": "none-was-built",
            "template": "none-was-built",
            "build_id": "none-was-begun",
            "hash": "0" * 64,
            "volume_id": "none-was-made",
        }
        place = {"params": {"path": "secret.html"}}
        file = self.inside(ids, "POST", "/files", {"files": {"file": ("secret.html", CANARY)}, **place})
        _made(ask(file))
        watch = self.inside(ids, "POST", "/filesystem.Filesystem/CreateWatcher", {"json": {"path": "."}})
        snapshot = _made(ask(_post(f"/sandboxes/{ids['sandbox_id']}/snapshots", {})))
        return {
            **ids,
            "watcher_id": _made(ask(watch))["watcherId"],
            "snapshot_id": snapshot["snapshotID"],
        }

    def inside(
        self, ids: Ids, method: str, path: str, given: Mapping[str, Any] | None = None, port: int = 49983
    ) -> Call:
        """A request to what is in the sandbox, by its headers and its token."""
        headers = {
            "E2b-Sandbox-Id": ids["sandbox_id"],
            "E2b-Sandbox-Port": str(port),
            "X-Access-Token": ids["access"],
            "E2b-Traffic-Access-Token": ids["traffic"],
        }
        return Call(method=method, path=path, headers=headers, given=given or {}, is_bare=True)

    def never_made(self, ids: Ids) -> dict[str, str]:
        names = ("alias", "template_id", "template", "build_id", "hash", "volume_id")
        common = {name: ids[name] for name in names}
        return {**super().never_made(ids), **common}

    def probe(self, ids: Ids) -> Call:
        return _post(f"/sandboxes/{ids['sandbox_id']}/timeout", {"timeout": 600})

    def by_other_means(self, ids: Ids, own: Ids) -> list[Call]:
        # His own tokens at the sandbox of another, and the watcher of another at his own sandbox.
        theirs = {**own, "sandbox_id": ids["sandbox_id"]}
        watcher = {"json": {"watcherId": ids["watcher_id"]}}
        signed = {"path": "secret.html", "signature": "v1_" + "x" * 43}
        return [
            *(self.inside(theirs, method, path, given) for method, path, given in E2B_INSIDE),
            *(self.inside(theirs, *one, port=49999) for one in E2B_INTERPRETER),
            self.inside(theirs, "GET", "/", port=8000),
            self.inside(own, "POST", "/filesystem.Filesystem/GetWatcherEvents", watcher),
            self.inside(own, "POST", "/filesystem.Filesystem/RemoveWatcher", watcher),
            Call(method="GET", path="/files", given={"params": signed}, is_bare=True),
            _post("/sandboxes", {"templateID": ids["snapshot_id"], "timeout": 5}),
            replace(self.inside(theirs, "GET", "/files", {"params": signed}), is_bare=True),
        ]

    def unmake(self, ask: Ask, ids: Ids) -> None:
        ask(Call(method="DELETE", path=f"/sandboxes/{ids['sandbox_id']}"))
        ask(Call(method="DELETE", path=f"/snapshots/{ids['snapshot_id']}"))


def frame(data: object) -> bytes:
    """A frame of Connect."""
    payload = json.dumps(data).encode()
    return struct.pack(">BI", 0, len(payload)) + payload


_STREAM = {"Content-Type": "application/connect+json"}
E2B_INSIDE: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/files", {"params": {"path": "secret.html"}}),
    ("POST", "/files", {"params": {"path": "secret.html"}, "files": {"file": ("secret.html", b"x")}}),
    ("GET", "/health", {}),
    ("GET", "/metrics", {}),
    ("GET", "/envs", {}),
    ("POST", "/process.Process/List", {"json": {}}),
    ("POST", "/process.Process/SendInput", {"json": {"process": {"pid": 1}, "input": {"stdin": "eA=="}}}),
    ("POST", "/process.Process/SendSignal", {"json": {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}}),
    ("POST", "/filesystem.Filesystem/Stat", {"json": {"path": "secret.html"}}),
    ("POST", "/filesystem.Filesystem/ListDir", {"json": {"path": "."}}),
    ("POST", "/filesystem.Filesystem/Remove", {"json": {"path": "secret.html"}}),
]
E2B_INTERPRETER: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/execute", {"json": {"code": "1"}}),
    ("GET", "/contexts", {}),
    ("POST", "/contexts", {"json": {}}),
]


class Jupyter(Dialect):
    name = "jupyter"

    def credentials(self, token: str) -> dict[str, str]:
        return {"Authorization": f"token {token}"}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [{"headers": {"Authorization": f"Bearer {token}"}}, {"params": {"token": token}}]

    def set_up(self, ask: Ask) -> dict[str, str]:
        kernel_id = _made(ask(_post("/api/kernels", {})))["id"]
        named = {"path": f"{CANARY}.ipynb", "type": "notebook", "kernel": {"id": kernel_id}}
        session_id = _made(ask(_post("/api/sessions", named)))["id"]
        return {
            "kernel_id": kernel_id,
            "session_id": session_id,
            "name": "python3",
            "resource": "logo-svg.svg",
        }

    def probe(self, ids: Ids) -> Call:
        return _post(f"/api/kernels/{ids['kernel_id']}/interrupt", {})

    def by_other_means(self, ids: Ids, own: Ids) -> list[Call]:
        kernel = {"kernel": {"id": ids["kernel_id"]}}
        return [
            _post("/api/sessions", {"path": "mine.ipynb", **kernel}),
            Call(method="PATCH", path=f"/api/sessions/{own['session_id']}", given={"json": kernel}),
        ]

    def never_made(self, ids: Ids) -> dict[str, str]:
        return {**super().never_made(ids), "name": ids["name"], "resource": ids["resource"]}

    def unmake(self, ask: Ask, ids: Ids) -> None:
        ask(Call(method="DELETE", path=f"/api/kernels/{ids['kernel_id']}"))


class Fusion(Dialect):
    name = "fusion"

    def credentials(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [
            {"headers": {"X-API-Key": token}},
            {"headers": {"Authorization": "Basic " + base64.b64encode(f"u:{token}".encode()).decode()}},
            {"params": {"token": token}},
        ]

    def probe(self, ids: Ids) -> Call:
        return _post("/run_code", {"code": "print(6 * 7)", "language": "python"})


class LibreChat(Dialect):
    name = "librechat"

    def credentials(self, token: str) -> dict[str, str]:
        return {"X-API-Key": token}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [{"headers": {"Authorization": f"Bearer {token}"}}]

    def set_up(self, ask: Ask) -> dict[str, str]:
        upload = Call(
            method="POST",
            path="/librechat/upload",
            given={"files": {"file": ("secret.html", CANARY.encode())}},
        )
        stored = _made(ask(upload))
        # Its owner ends it by answering nothing, which is no traceback.
        code = {"code": f"try: await ask()\nexcept Exception: print('{CANARY}')", "tools": [{"name": "ask"}]}
        waiting = _made(ask(_post("/librechat/exec/programmatic", code)))
        return {
            "session_id": stored["session_id"],
            "file_id": stored["files"][0]["fileId"],
            "continuation_token": waiting["continuation_token"],
        }

    def probe(self, ids: Ids) -> Call:
        return _post("/librechat/exec/programmatic/cancel", {"request_id": "none"})

    def by_other_means(self, ids: Ids, own: Ids) -> list[Call]:
        file = {"id": ids["file_id"], "session_id": ids["session_id"], "name": "secret.html"}
        shown = "import glob\nfor name in glob.glob('*'): print(open(name).read())"
        token = {"continuation_token": ids["continuation_token"], "tool_results": []}
        return [
            _post("/librechat/exec", {"lang": "py", "code": shown, "files": [file]}),
            _post("/librechat/exec", {"lang": "py", "code": shown, "session_id": ids["session_id"]}),
            _post("/librechat/exec/programmatic", {"code": shown, "files": [file]}),
            _post("/librechat/exec/programmatic", token),
        ]

    def unmake(self, ask: Ask, ids: Ids) -> None:
        token = {"continuation_token": ids["continuation_token"], "tool_results": []}
        ask(_post("/librechat/exec/programmatic", token))


class Replit(Dialect):
    name = "replit"

    def credentials(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [{"headers": {"X-API-Key": token}}]

    def probe(self, ids: Ids) -> Call:
        return _post("/replit", {"code": "print(6 * 7)"})


class OpenAI(Dialect):
    name = "openai"

    def credentials(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [{"headers": {"X-API-Key": token}}]

    def set_up(self, ask: Ask) -> dict[str, str]:
        made = _made(ask(_post("/v1/containers", {"name": CANARY})))["id"]
        upload = Call(
            method="POST",
            path=f"/v1/containers/{made}/files",
            given={"files": {"file": ("secret.html", CANARY.encode())}},
        )
        return {"container_id": made, "file_id": _made(ask(upload))["id"]}

    def probe(self, ids: Ids) -> Call:
        files = {"file": ("probe.txt", b"x")}
        return Call(method="POST", path=f"/v1/containers/{ids['container_id']}/files", given={"files": files})

    def never_made(self, ids: Ids) -> dict[str, str]:
        # The id of a file says where in its container it lies, and nothing else.
        return {"container_id": _other(ids["container_id"]), "file_id": ids["file_id"]}

    def unmake(self, ask: Ask, ids: Ids) -> None:
        ask(Call(method="DELETE", path=f"/v1/containers/{ids['container_id']}"))


class Mcp(Dialect):
    name = "mcp"

    def credentials(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def other_ways(self, token: str) -> list[dict[str, Any]]:
        return [{"headers": {"X-API-Key": token}}]

    def set_up(self, ask: Ask) -> dict[str, str]:
        made = result_of(ask(self.tool("create_sandbox", {})))["structuredContent"]["sandbox_id"]
        file = {"sandbox_id": made, "path": "secret.html", "content": CANARY}
        result_of(ask(self.tool("write_file", file)))
        kept = result_of(ask(self.tool("checkpoint", {"sandbox_id": made})))
        return {"sandbox_id": made, "checkpoint_id": kept["structuredContent"]["checkpoint_id"]}

    def rpc(self, method: str, params: Mapping[str, Any], number: Any = 1) -> Call:
        """A request of the protocol, of the version that needs no handshake."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }

        if name := params.get("name", params.get("uri")):
            headers["Mcp-Name"] = str(name)

        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        return Call(method="POST", path="/mcp", headers=headers, given={"json": body})

    def tool(self, name: str, arguments: Mapping[str, Any]) -> Call:
        """A call of a tool."""
        return self.rpc("tools/call", {"name": name, "arguments": dict(arguments)})

    def probe(self, ids: Ids) -> Call:
        return self.rpc("server/discover", {})

    def by_other_means(self, ids: Ids, own: Ids) -> list[Call]:
        uri = f"sandbox://{ids['sandbox_id']}/home/user/secret.html"
        tools = tools_of_one(ids).items()
        return [self.rpc("resources/read", {"uri": uri}), *(self.tool(name, given) for name, given in tools)]

    def never_made(self, ids: Ids) -> dict[str, str]:
        return {"sandbox_id": _other(ids["sandbox_id"]), "checkpoint_id": ids["checkpoint_id"]}

    def unmake(self, ask: Ask, ids: Ids) -> None:
        ask(self.tool("kill_sandbox", {"sandbox_id": ids["sandbox_id"]}))


_ARGUMENTS: dict[str, Any] = {
    "code": "print(open('secret.html').read())",
    "command": "cat secret.html",
    "path": "secret.html",
    "content": "",
    "packages": ["bouquet"],
}


def tools_of_one(ids: Ids) -> dict[str, dict[str, Any]]:
    """Every tool that names a sandbox, with what it must be given; taken from the tools themselves."""
    found = {}

    for tool in TOOLS:
        parameters = inspect.signature(tool.function).parameters
        needed = [name for name, one in parameters.items() if one.default is one.empty and name != "context"]

        if "sandbox_id" in parameters:
            given = {name: ids.get(name, _ARGUMENTS.get(name, "1")) for name in needed}
            found[tool.name] = {**given, "sandbox_id": ids["sandbox_id"]}

    return found


def result_of(answer: httpx2.Response) -> Any:
    """The result of a call of a tool, which must not fail."""
    assert answer.status_code == 200, answer.text
    body = message_of(answer)
    assert not body["result"].get("isError"), body
    return body["result"]


def message_of(answer: httpx2.Response) -> Any:
    """The message of an answer, alone or in a stream of events."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.json()

    lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1])


def _post(path: str, body: Mapping[str, Any]) -> Call:
    return Call(method="POST", path=path, given={"json": dict(body)})


ALL: tuple[Dialect, ...] = (E2B(), Jupyter(), Fusion(), LibreChat(), Replit(), OpenAI(), Mcp())
