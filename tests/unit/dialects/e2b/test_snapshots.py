"""The bounds of E2B's snapshots hold for requests that come at the same moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from fumehood.dialects.e2b import snapshots
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.errors import QuotaError
from fumehood.server.services import Services
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import open_database
from fumehood.storage.files import StoredFiles

TOGETHER = 4


class Saving:
    """A backend that lets requests go on when all of them have come."""

    def __init__(self, together: int) -> None:
        self.begun = 0
        self._all_there = asyncio.Barrier(together)

    async def info(self, sandbox_id: str) -> Any:
        await self._all_there.wait()
        return SimpleNamespace(id=sandbox_id)

    async def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        self.begun += 1
        yield b"state of " + sandbox_id.encode()


def caller(backend: Saving, owner: str = "k") -> ControlCaller:
    return cast("ControlCaller", SimpleNamespace(backend=backend, principal=SimpleNamespace(key_id=owner)))


def asked(**body: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    head = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "headers": head, "path_params": {"sandbox_id": "one"}}
    return Request(scope, receive)


async def _made(
    tmp_path: Path, requests: list[tuple[Request, ControlCaller]]
) -> list[Response | BaseException]:
    database = await open_database(f"sqlite:///{tmp_path}/fumehood.db")

    try:
        services = SimpleNamespace(
            stored_files=StoredFiles(database), blobs=open_blobs(str(tmp_path / "blobs"))
        )
        dialect = snapshots.SnapshotService(cast("Services", services))
        work = [dialect.create(*request) for request in requests]
        return await asyncio.gather(*work, return_exceptions=True)
    finally:
        await database.close()


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async def report_on(path: str) -> Any:
        return SimpleNamespace(left_out=())

    monkeypatch.setattr(snapshots, "report_on", report_on)


def test_no_more_are_kept_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are refused, before a sandbox is saved for them; another owner has room of its own."""
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)
    mine, others = Saving(TOGETHER), Saving(1)
    requests = [(asked(), caller(mine)) for _ in range(TOGETHER)] + [(asked(), caller(others, "other"))]
    *answers, other = asyncio.run(_made(tmp_path, requests))
    assert sum(isinstance(answer, Response) for answer in answers) == 1
    assert sum(isinstance(answer, QuotaError) for answer in answers) == TOGETHER - 1
    assert isinstance(other, Response)
    assert mine.begun == 1


def test_one_name_is_one_snapshot(tmp_path: Path) -> None:
    """Each takes the place of the one before."""
    backend = Saving(TOGETHER)
    answers = asyncio.run(_made(tmp_path, [(asked(name="same"), caller(backend)) for _ in range(TOGETHER)]))
    assert all(isinstance(answer, Response) for answer in answers), answers
    assert len([path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]) == 1
