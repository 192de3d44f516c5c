"""Which requests the ingress answers itself once their address has sent too many wrong credentials, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from fumehood.server.anonymous import REFUSALS_BURST
from fumehood.server.drain import Drain
from fumehood.server.ingress import Ingress
from fumehood.server.ports import proxy
from fumehood.server.settings import ServerSettings

WRONG = [(b"x-api-key", b"wrong")]


class Exchange:
    """Plays a server in a sandbox whose answer has no body."""

    async def carry(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        return


def seen_by_app(
    path: str, headers: list[tuple[bytes, bytes]], host: str = "localhost", *, is_guests: bool = False
) -> int:
    """Sends twice the burst of requests that are answered by 401, and returns how many of them the app sees."""
    seen = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal seen
        seen += 1

        if is_guests:
            await proxy._Carried(Exchange(), 401, [])(scope, receive, send)  # type: ignore[arg-type]
            return

        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        return

    async def main() -> None:
        settings = ServerSettings(domain="boxes.test")
        ingress = Ingress(app, settings, Drain(), lambda *_: None, lambda *_: False)

        for _ in range(2 * REFUSALS_BURST):
            scope: dict[str, Any] = {
                "type": "http",
                "method": "POST",
                "path": path,
                "query_string": b"",
                "headers": [(b"host", host.encode()), *headers],
                "client": ("192.0.2.1", 1),
            }
            await ingress(scope, receive, send)

    asyncio.run(main())
    return seen


@pytest.mark.parametrize("headers", [WRONG, []], ids=["wrong", "none"])
@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/v1/execute", "localhost"),
        ("/api/contents/ports/x", "localhost"),
        ("/v1/files/ports/x", "localhost"),
        ("/v1/sandboxes/abc/ports/80/sign", "localhost"),
        # What answers there is a guest, for whoever has a key.
        ("/v1/sandboxes/abc/ports/80/x", "localhost"),
        # The server itself answers at the ports of E2B's own services.
        ("/v1/execute", "49983-abc.boxes.test"),
        ("/v1/execute", "49999-abc.boxes.test"),
    ],
)
def test_a_flood_is_refused_whatever_its_path_contains(
    path: str, host: str, headers: list[tuple[bytes, bytes]]
) -> None:
    # While they are sent, some more have their turn.
    assert seen_by_app(path, headers, host) < 1.5 * REFUSALS_BURST


@pytest.mark.parametrize(
    ("path", "host", "is_guests"),
    [
        ("/p/1-owner-0/abc/80/x", "localhost", False),
        ("/x", "8000-abc.boxes.test", False),
        ("/v1/sandboxes/abc/ports/80/x", "localhost", True),
    ],
)
def test_refusals_by_a_server_in_a_sandbox_are_its_own(path: str, host: str, is_guests: bool) -> None:
    assert seen_by_app(path, WRONG, host, is_guests=is_guests) == 2 * REFUSALS_BURST
