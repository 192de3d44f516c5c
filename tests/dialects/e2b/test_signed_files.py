"""Strangers who guess at signed URLs: what they cost does not grow with their number."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from fumehood.dialects.e2b.auth import SandboxTokens, SignedPath
from fumehood.dialects.e2b.envd import SignedUrls

TOKENS = SandboxTokens(b"s" * 32)
GUESS = "v1_" + "A" * 43


class _Backend:
    """Lists sandboxes when it is let, and counts how often and how many at once."""

    def __init__(self, *ids: str) -> None:
        self.ids = list(ids)
        self.listed = 0
        self.most = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None
        self._now = 0

    async def list(self) -> tuple[Any, ...]:
        found = tuple(SimpleNamespace(id=one) for one in self.ids)
        self.listed += 1
        self._now += 1
        self.most = max(self.most, self._now)
        await self.may_answer.wait()
        self._now -= 1
        error, self.error = self.error, None

        if error is not None:
            raise error

        return found


class _Envd:
    async def answer(self, request: Request, sandbox_id: str) -> Response:
        return Response(sandbox_id)


def _files(backend: _Backend) -> SignedUrls:
    envd: Any = _Envd()
    anybody: Any = backend
    return SignedUrls(anybody, TOKENS, envd)


def _request(signature: str, path: str = "x") -> Request:
    query = urlencode({"path": path, "signature": signature}).encode()
    scope = {"type": "http", "method": "GET", "path": "/files", "query_string": query, "headers": []}
    return Request({**scope, "server": ("localhost", 80), "scheme": "http"})


def _signed(sandbox_id: str) -> Request:
    token = TOKENS.access_token(sandbox_id)
    return _request(SignedPath("x", "read", "", "", "").signature_by(token))


async def _some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_cannot_be_a_signature_lists_nothing() -> None:
    async def scene() -> None:
        backend = _Backend("a")
        backend.may_answer.set()
        files = _files(backend)

        for signature in ("v1_x", "v1_", "x", GUESS[1:], GUESS + "A", GUESS + "\n", GUESS[:-1] + "é"):
            assert (await files.answer(_request(signature))).status_code == 401

        assert backend.listed == 0

    asyncio.run(scene())


def test_strangers_share_one_listing_at_a_time() -> None:
    """And somebody who has signed is found, though the sandbox came while others were waiting."""

    async def scene() -> None:
        backend = _Backend("a")
        files = _files(backend)
        guesses = [asyncio.create_task(files.answer(_request(GUESS))) for _ in range(100)]
        await _some_turns()
        backend.ids.append("b")
        signed = asyncio.create_task(files.answer(_signed("b")))
        await _some_turns()
        backend.may_answer.set()

        assert {(await guess).status_code for guess in guesses} == {401}
        assert (await signed).body == b"b"
        assert backend.most == 1
        # The first, and one that began after all had come.
        assert backend.listed == 2

    asyncio.run(scene())


def test_a_listing_that_fails_is_nobody_elses() -> None:
    """Nor is an older one given in its place."""

    async def scene() -> None:
        backend = _Backend()
        backend.may_answer.set()
        files = _files(backend)
        assert (await files.answer(_request(GUESS))).status_code == 401

        backend.may_answer.clear()
        backend.error = OSError("gone")
        failing = asyncio.create_task(files.answer(_request(GUESS)))
        await _some_turns()
        backend.ids.append("b")
        signed = [asyncio.create_task(files.answer(_signed("b"))) for _ in range(2)]
        await _some_turns()
        backend.may_answer.set()

        assert isinstance((await asyncio.gather(failing, return_exceptions=True))[0], OSError)
        assert [(await one).body for one in signed] == [b"b", b"b"]
        assert backend.listed == 3

    asyncio.run(scene())
