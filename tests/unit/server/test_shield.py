"""Which requests the ingress answers itself once their address has sent too many wrong credentials, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.dialects.e2b.auth import E2BAuthenticator, SandboxTokens
from fumehood.dialects.e2b.envd import Envd
from fumehood.server.anonymous import REFUSALS_BURST
from fumehood.server.drain import Drain
from fumehood.server.ingress import Ingress
from fumehood.server.ports import proxy
from fumehood.server.settings import ServerSettings

WRONG = [(b"x-api-key", b"wrong")]


class NoServices:
    """Plays the services of a server, for what refuses its caller without them."""

    via = "e2b"

    def spoken_by(self, dialect: str) -> NoServices:
        return self


SERVICES: Any = NoServices()


class Exchange:
    """Plays a server in a sandbox whose answer has no body."""

    async def carry(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        return


def seen_by_app(
    path: str,
    headers: list[tuple[bytes, bytes]],
    host: str = "localhost",
    *,
    is_guests: bool = False,
    answered: ASGIApp | None = None,
) -> int:
    """Sends twice the burst of requests that are answered by 401, and returns how many of them the app sees.

    Args:
        path: Of the requests.
        headers: Theirs, besides the Host.
        host: The Host.
        is_guests: Whether a server in a sandbox answers.
        answered: Answers in place of all that.
    """
    seen = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal seen
        seen += 1

        if answered is not None:
            await answered(scope, receive, send)
            return

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


@pytest.mark.parametrize("kind", ["application/connect+json", "application/json"])
def test_a_flood_of_wrong_tokens_of_a_sandbox_is_refused_though_streams_answer_with_200(
    kind: str,
) -> None:
    """A stream of Connect holds its refusal in the body."""
    envd = Envd(E2BAuthenticator(SERVICES), SandboxTokens(b"secret"), 0)
    statuses = set()

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        answer = await envd.answer(Request(scope, receive), "abc")
        statuses.add(answer.status_code)
        await answer(scope, receive, send)

    headers = [(b"x-access-token", b"wrong"), (b"content-type", kind.encode())]
    assert seen_by_app("/process.Process/Start", headers, answered=answered) < 1.5 * REFUSALS_BURST
    assert statuses == {200 if kind.endswith("+json") else 401}
