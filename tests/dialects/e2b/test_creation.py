"""One sandbox for each idempotency key, also where the host or the database fails at the worst moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from fumehood.dialects.e2b.auth import ControlCaller, SandboxTokens
from fumehood.dialects.e2b.creation import Creation
from fumehood.errors import FumehoodError, HostUnavailableError, IdempotencyConflictError, StorageError
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings
from fumehood.storage.database import open_database
from fumehood.storage.idempotency import Begun, Idempotency
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation, SandboxInfo


class _Backend:
    """Makes sandboxes; `error` is raised once, after one was made."""

    def __init__(self, error: FumehoodError | None = None) -> None:
        self.made: list[SandboxInfo] = []
        self._error = error

    async def create(self, spec: Any) -> SandboxInfo:
        info = SandboxInfo(
            id=f"made{len(self.made)}",
            template="default",
            state="running",
            started_at=datetime.now(UTC),
            ends_at=None,
            limits=Limits(),
            isolation=Isolation(level="namespaces"),
        )
        self.made.append(info)
        error, self._error = self._error, None

        if error is not None:
            raise error

        return info


class _NoRoom(Idempotency):
    """A database that cannot take a reply any more."""

    async def finish(self, begun: Begun, *, status: int, headers: Mapping[str, str], body: bytes) -> None:
        raise StorageError(operation="storing a reply", reason="no space left")


class _NoInterpreters:
    async def ensure(self, *_: Any) -> None:
        """Opens no port: as with the setting off."""


_NO_INTERPRETERS: Any = _NoInterpreters()


class _NoVolumes:
    async def wanted(self, *_: Any) -> list[Any]:
        """Finds none, as the request names none."""
        return []


async def _same(template: str) -> str:
    return template


class _Scene:
    def __init__(self, idempotency: Idempotency, backend: Any) -> None:
        tokens = SandboxTokens(b"s" * 32)
        # Templates of E2B's own are never looked for among the snapshots.
        stored: Any = (None, _NoVolumes())
        self._creation = Creation(idempotency, tokens, ServerSettings(), stored, _same, _NO_INTERPRETERS)
        self._caller = ControlCaller(Principal(key_id="k"), backend)

    async def create(self) -> Response:
        body = json.dumps({"templateID": "base"}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        headers = [(b"idempotency-key", b"one"), (b"content-type", b"application/json")]
        request = Request({"type": "http", "method": "POST", "headers": headers, "app": None}, receive)
        return await self._creation.create(request, self._caller)


async def _unknown(url: str) -> None:
    database = await open_database(url)
    try:
        backend = _Backend(HostUnavailableError(host="h", reason="it went", outcome_unknown=True))
        scene = _Scene(Idempotency(database), backend)

        with pytest.raises(HostUnavailableError):
            await scene.create()

        with pytest.raises(IdempotencyConflictError, match="it is unknown whether"):
            await scene.create()

        assert len(backend.made) == 1
    finally:
        await database.close()


async def _refused(url: str) -> None:
    database = await open_database(url)
    try:
        backend = _Backend(HostUnavailableError(host="h", reason="it is not there", outcome_unknown=False))
        scene = _Scene(Idempotency(database), backend)

        with pytest.raises(HostUnavailableError):
            await scene.create()

        assert (await scene.create()).status_code == 201
    finally:
        await database.close()


async def _without_room(url: str) -> None:
    database = await open_database(url)
    try:
        answer = await _Scene(_NoRoom(database), _Backend()).create()
        assert answer.status_code == 201
        assert json.loads(bytes(answer.body))["sandboxID"] == "made0"
    finally:
        await database.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'fumehood.db'}"


def test_a_sandbox_that_may_live_is_not_made_again(url: str) -> None:
    """Whoever asks again hears that nobody knows."""
    asyncio.run(_unknown(url))


def test_a_key_whose_request_failed_for_certain_may_be_used_again(url: str) -> None:
    asyncio.run(_refused(url))


def test_a_sandbox_that_was_made_is_reported_of_whatever_the_database_does(url: str) -> None:
    """Its id would be lost otherwise, and it would live on."""
    asyncio.run(_without_room(url))
