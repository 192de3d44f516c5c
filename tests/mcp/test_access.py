"""Who may do what at `/mcp` of `fumehood serve`: tokens, tenants, quotas, and the ingress in front of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from fumehood.mcp.toolbox import TOOLS

from .conftest import new_sandbox, over_http, play, run, text_of

DISCOVER = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "server/discover",
}


@pytest.fixture
def web(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
        yield client


@pytest.fixture
def key(server: Any) -> Callable[..., str]:
    """Makes keys; gives their tokens."""

    def make(**given: Any) -> str:
        body = {"name": "tenant", **given}
        made = httpx2.post(f"{server.url}/v1/keys", json=body, headers=server.headers, timeout=60)
        assert made.status_code == 201, made.text
        token: str = made.json()["token"]
        return token

    return make


def test_a_token_is_needed(web: httpx2.Client, server: Any, key: Callable[..., str]) -> None:
    assert web.post("/mcp", json=DISCOVER).status_code == 401
    assert web.post("/mcp", json=DISCOVER, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert web.post("/mcp", json=DISCOVER, headers={"X-API-Key": key(scopes=["execute"])}).status_code == 403
    # Control: with the right token it answers, whichever header brings it.
    for headers in (server.headers, {"X-API-Key": key()}):
        answer = web.post("/mcp", json=DISCOVER, headers=headers)
        assert (answer.status_code, "tools" in answer.json()["result"]["capabilities"]) == (200, True)


def test_one_tenant_does_not_see_another(server: Any, key: Callable[..., str]) -> None:
    """A sandbox of somebody else answers like one that never was, by every tool and as a resource."""

    async def scene() -> None:
        async with over_http(server.url, key()) as ours, over_http(server.url, key()) as theirs:
            place = await new_sandbox(ours)
            await run(ours, "open('secret.txt', 'w').write('42')", place)
            assert place not in text_of(await theirs.call_tool("list_sandboxes", {}))

            calls: dict[str, dict[str, Any]] = {
                "run_code": {"code": "1"},
                "run_command": {"command": "true"},
                "read_file": {"path": "secret.txt"},
                "write_file": {"path": "secret.txt", "content": ""},
                "list_files": {},
                "checkpoint": {},
                "rollback": {"checkpoint_id": "checkpoint-1"},
                "fork_sandbox": {},
                "install_packages": {"packages": ["bouquet"]},
                "to_notebook": {},
            }
            of_one = {
                tool.name for tool in TOOLS if "sandbox_id" in inspect.signature(tool.function).parameters
            }
            assert set(calls) == of_one - {"kill_sandbox"}

            for tool, given in calls.items():
                result = await theirs.call_tool(tool, {"sandbox_id": place, **given})
                assert result.is_error
                assert f"no sandbox has the id '{place}'" in text_of(result)

            with pytest.raises(Exception, match="no sandbox has the id"):
                await theirs.read_resource(f"sandbox://{place}/home/user/secret.txt")

            ended = await theirs.call_tool("kill_sandbox", {"sandbox_id": place})
            assert ended.structured_content["was_alive"] is False
            # Control: it is there, and unchanged.
            contents = (await ours.read_resource(f"sandbox://{place}/home/user/secret.txt")).contents
            assert contents[0].text == "42"
            assert (await ours.call_tool("kill_sandbox", {"sandbox_id": place})).structured_content[
                "was_alive"
            ]

    play(scene)


def test_quotas_hold(server: Any, key: Callable[..., str]) -> None:
    async def scene() -> None:
        async with over_http(server.url, key(policy={"max_sandboxes": 1})) as client:
            place = await new_sandbox(client)
            refused = await client.call_tool("run_code", {"code": "1"})
            assert refused.is_error
            assert "used 1 of 1 sandboxes" in text_of(refused)
            assert "kill_sandbox" in text_of(refused)
            # Control: what there is can be used, and ended to make room.
            await run(client, "1", place)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})
            again = await run(client, "1")
            await client.call_tool("kill_sandbox", {"sandbox_id": again.structured_content["sandbox_id"]})

    play(scene)


def test_a_key_gives_no_more_network_than_it_may(server: Any, key: Callable[..., str]) -> None:
    async def scene() -> None:
        async with over_http(server.url, key(policy={"max_network": "none"})) as client:
            for word in ("pip", "internet"):
                refused = await client.call_tool("create_sandbox", {"network": word})
                assert refused.is_error
                assert "max_network" in text_of(refused)

    play(scene)


def test_the_ingress_is_in_front_of_it(web: httpx2.Client, server: Any) -> None:
    """Foreign hosts, browsers of other origins, bodies that are too large or hold too much."""
    web.headers.update(server.headers)
    assert web.post("/mcp", json=DISCOVER, headers={"Host": "evil.example"}).status_code == 421
    assert web.post("/mcp", json=DISCOVER, headers={"Origin": "https://evil.example"}).status_code == 403
    padded = {**DISCOVER, "padding": "x" * (17 << 20)}
    assert web.post("/mcp", json=padded).status_code == 413
    assert web.post("/mcp", content=b"[" + b"1," * 600_000 + b"1]").status_code == 422
    assert web.post("/mcp", json=DISCOVER).status_code == 200


def test_there_are_no_sessions(web: httpx2.Client, server: Any) -> None:
    """Nothing waits at the server for a client that may never come back."""
    web.headers.update(server.headers)
    assert web.get("/mcp").status_code == 405
    assert web.delete("/mcp").status_code == 405


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_old_versions_shake_hands(server: Any, version: str) -> None:
    """A handshake leaves nothing behind; calls afterwards say their version in a header, the oldest in none."""
    headers = {**server.headers, "Accept": "application/json, text/event-stream"}
    who = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    call = {"name": "run_code", "arguments": {"code": "6 * 7"}}

    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as old:
        hello = old.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who})
        assert hello.status_code == 200
        assert "mcp-session-id" not in hello.headers
        assert f'"protocolVersion":"{version}"' in hello.text
        old.headers.update({} if version < "2025-06-18" else {"MCP-Protocol-Version": version})
        done = old.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        made = re.search(r'"sandbox_id":"([a-z0-9]{32})"', done.text)
        assert made is not None
        assert '"value":"42"' in done.text
        old.delete(f"/v1/sandboxes/{made[1]}")
