"""A server that keeps what it remembers elsewhere: in a real PostgreSQL, with files on a server that speaks S3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.unit.storage import postgres

from . import storage_programs


def test_keys_usage_and_files_outlive_two_servers(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server after another, and both at once: what one was told the other knows."""
    with postgres.running_server() as folder, storage_programs.s3() as bucket:
        for name, option in {
            "AWS_ENDPOINT_URL": "endpoint",
            "AWS_ACCESS_KEY_ID": "access_key_id",
            "AWS_SECRET_ACCESS_KEY": "secret_access_key",
            "AWS_REGION": "region",
        }.items():
            monkeypatch.setenv(name, bucket.options[option])

        settings = {
            "database_url": postgres.new_database(folder, "served"),
            "blobs_url": bucket.location,
            "pool_size": 0,
            "dialects": "librechat",
        }
        first, second = start_server(**settings), start_server(**settings)
        made = httpx2.post(
            f"{first.url}/v1/keys", json={"name": "k"}, headers=first.headers, timeout=60
        ).json()
        key = {"Authorization": f"Bearer {made['token']}"}
        assert httpx2.get(f"{second.url}/v1/sandboxes", headers=key, timeout=60).status_code == 200

        for server in (first, second):
            ran = httpx2.post(f"{server.url}/v1/execute", json={"code": "1"}, headers=key, timeout=60)
            assert ran.status_code == 200, ran.text

        assert first.stop() == 0
        assert second.stop() == 0
        third = start_server(**settings)
        (used,) = httpx2.get(f"{third.url}/v1/usage", headers=key, timeout=60).json()["items"]
        assert used["executions"] == 2


def test_a_database_that_cannot_be_had_is_reported(start_server: Callable[..., Any]) -> None:
    """Not a traceback: which one, why, and nothing of its password."""
    with pytest.raises(AssertionError) as failed:
        start_server(database_url="postgresql://user:very-secret@127.0.0.1:9/none", pool_size=0)

    said = str(failed.value)
    assert "127.0.0.1:9" in said
    assert "very-secret" not in said
    assert "Traceback" not in said
