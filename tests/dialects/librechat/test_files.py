"""Uploads, downloads and lists, of both generations; who may see a file; and what becomes of old ones."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
import requests
from tests.dialects.librechat.conftest import CodeApi


def test_an_upload_of_the_old_generation(api):
    """`entity_id` before the file; freshness by the summary of the session; the bytes again; gone after a DELETE."""
    session, file = api.upload("report v1.txt", b"hello", entity_id="agent_1")
    query = {"entity_id": "agent_1"}

    listed = api.ask("GET", f"/files/{session}", params={"detail": "summary", **query}).json()
    found = next(item for item in listed if item["name"].startswith(f"{session}/{file}"))
    assert found["lastModified"].endswith("Z")
    assert found["size"] == 5

    got = api.ask("GET", f"/download/{session}/{file}", params=query)
    assert (got.status_code, got.content) == (200, b"hello")
    assert got.headers["content-disposition"].startswith("attachment")
    assert api.ask("GET", f"/download/{session}/{file}", params={"entity_id": "other"}).status_code == 404

    assert api.ask("DELETE", f"/files/{session}/{file}").status_code == 200
    assert api.ask("GET", f"/download/{session}/{file}").status_code == 404
    assert api.ask("GET", f"/files/{session}").json() == []


def test_an_upload_of_the_new_generation(api):
    """`kind`, `id` and `version`; a name with a folder; every form of the list; the object's own page."""
    fields = {"kind": "skill", "id": "skill-1", "version": "3", "read_only": "true"}
    session, file = api.upload("docs/SKILL.md", b"# skill", **fields)
    query = {"kind": "skill", "id": "skill-1", "version": "3"}

    simple = api.ask("GET", f"/files/{session}", params={"detail": "simple", **query}).json()
    assert simple == [f"{session}/{file}.md"]
    (full,) = api.ask("GET", f"/files/{session}", params={"detail": "full", **query}).json()
    assert full["metadata"]["original-filename"] == "docs/SKILL.md"
    assert full["name"].split("/")[1].split(".")[0] == file
    (normal,) = api.ask("GET", f"/files/{session}", params={"detail": "normalized", **query}).json()
    assert (normal["id"], normal["name"], normal["storage_session_id"]) == (file, "docs/SKILL.md", session)

    probe = api.ask("GET", f"/sessions/{session}/objects/{file}", params=query)
    assert probe.json()["lastModified"] == full["lastModified"]
    assert (
        api.ask("GET", f"/sessions/{session}/objects/{file}", params={**query, "id": "x"}).status_code == 404
    )

    told = api.run(
        "print(open('/mnt/data/docs/SKILL.md').read())",
        files=[
            {
                "id": file,
                "name": "docs/SKILL.md",
                "storage_session_id": session,
                "kind": "skill",
                "version": 3,
            }
        ],
    )
    assert told["stdout"] == "# skill\n"
    assert (told["files"][0]["inherited"], told["files"][0]["version"]) == (True, 3)


def test_many_files_in_one_upload(api):
    """One session for all of them."""
    parts = [("files", (f"d/{number}.txt", b"x" * number)) for number in range(3)]
    answer = api.ask("POST", "/upload/batch", data={"kind": "agent", "id": "a"}, files=parts)
    told = answer.json()

    assert (told["message"], told["succeeded"], told["failed"]) == ("success", 3, 0)
    assert [item["filename"] for item in told["files"]] == ["d/0.txt", "d/1.txt", "d/2.txt"]
    assert len(api.ask("GET", f"/files/{told['storage_session_id']}").json()) == 3
    assert api.ask("POST", "/upload/batch", files={"x": (None, "no file")}).status_code == 400


def test_a_file_may_not_be_too_large(start_server):
    """Nothing of it is kept."""
    server = start_server(max_upload_bytes=100_000, pool_size=0, drain_seconds=1)
    api = CodeApi(server.url, {"X-API-Key": server.token})
    answer = api.ask("POST", "/upload", files={"file": ("a", b"x" * 200_000)})
    assert answer.status_code == 413
    assert [path for path in (server.state / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a\x01b"])
def test_names_that_lead_elsewhere_are_refused(api, name):
    """A name is text, and never a way out of /mnt/data."""
    assert api.ask("POST", "/upload", files={"file": (name, b"x")}).status_code == 422


def test_a_key_sees_its_own_files_only(api, new_key):
    """Another key's file is not there: not by any route, not as the input of a run."""
    session, file = api.upload("secret.txt", b"secret")
    stranger = new_key()
    ref = [{"id": file, "name": "secret.txt", "session_id": session}]

    assert stranger.ask("GET", f"/download/{session}/{file}").status_code == 404
    assert stranger.ask("GET", f"/files/{session}").json() == []
    assert stranger.ask("GET", f"/sessions/{session}/objects/{file}").status_code == 404
    assert stranger.ask("DELETE", f"/files/{session}/{file}").status_code == 404
    body = {"lang": "py", "code": "1", "files": ref}
    assert stranger.ask("POST", "/exec", json=body).status_code == 404
    body = {"lang": "py", "code": "import os; print(os.listdir())", "session_id": session}
    assert stranger.ask("POST", "/exec", json=body).json()["stdout"] == "[]\n"
    assert api.ask("GET", f"/download/{session}/{file}").content == b"secret"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/exec"),
        ("POST", "/exec/programmatic"),
        ("POST", "/exec/programmatic/cancel"),
        ("POST", "/upload"),
        ("POST", "/upload/batch"),
        ("GET", "/download/a/b"),
        ("GET", "/files/a"),
        ("DELETE", "/files/a/b"),
        ("GET", "/sessions/a/objects/b"),
    ],
)
def test_every_route_asks_who_calls(server, new_key, method, path):
    """No token, a wrong one, and a key that may not run code; below both addresses."""
    nobody = CodeApi(server.url, {})

    for prefix in ("", "/v1"):
        refused = nobody.ask(method, f"{prefix}{path}")
        assert (refused.status_code, refused.json()["error"]) == (401, "unauthorized")
        assert nobody.ask(method, f"{prefix}{path}", headers={"X-API-Key": "wrong"}).status_code == 401

    assert new_key(scopes=["sandboxes"]).ask(method, path).status_code == 403


def test_health(server):
    """A probe that needs no token, where clients look for it."""
    for path in ("/health", "/v1/health"):
        assert requests.get(f"{server.url}/librechat{path}", timeout=10).status_code == 200


def test_expired_files_go_with_their_bytes(start_server, tmp_path: Path):
    """A file whose day is over is not there, and housekeeping takes its bytes."""
    state = tmp_path / "kept"
    server = start_server(state, pool_size=0, drain_seconds=1)
    CodeApi(server.url, {"X-API-Key": server.token}).upload("a.txt", b"hello")
    server.stop()

    (database,) = [path for path in state.iterdir() if path.suffix in (".db", ".sqlite", ".sqlite3")]
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE files SET expires_at = 1")
    connection.close()

    def blobs() -> list[Path]:
        return [path for path in (state / "blobs").rglob("*") if path.is_file()]

    assert len(blobs()) == 1
    start_server(state, pool_size=0, drain_seconds=1)
    ends = time.monotonic() + 30

    while blobs() and time.monotonic() < ends:
        time.sleep(0.05)

    assert blobs() == []
