"""Audit files of a server: all of each record, for its owner alone, written before code can do anything about it."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fumehood import Sandbox
from fumehood.audit.verification import read_lines, verify_lines
from fumehood.cli.main import main


def record_of(folder: Path, sandbox_id: str) -> Path:
    return folder / f"{sandbox_id}.jsonl"


def kinds(path: Path) -> list[str]:
    return [
        json.loads(line)["kind"] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")
    ]


def test_records_lie_in_a_folder_and_code_is_there_before_it_runs(
    start_server: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that is killed in the middle leaves a record that is whole and names what ran."""
    folder = tmp_path / "audit"
    server = start_server(pool_size=0, dialects="", audit_folder=folder)
    sandbox = Sandbox(url=server.url, api_key=server.token)
    head = sandbox.run_code("y = 1").audit_head
    path = record_of(folder, sandbox.id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kinds(path) == ["created", "executing", "executed"]

    # What the routes give is what lies in the file.
    place = f"{server.url}/v1/sandboxes/{sandbox.id}/audit"
    lines = httpx2.get(f"{place}?form=lines", headers=server.headers, timeout=60)
    assert lines.text == path.read_text()
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert main(["audit", "export", sandbox.id, "--url", server.url, "--api-key", server.token]) == 0
    assert capsys.readouterr().out == path.read_text()

    # Events are counted, by kind and by what was done.
    sandbox.commands.run("nmap || true")
    metrics = httpx2.get(f"{server.url}/metrics", headers=server.headers, timeout=60).text
    assert 'fumehood_security_events_total{action="record",kind="unusual_program"} 1.0' in metrics

    def run() -> None:
        with suppress(Exception):
            sandbox.run_code("import time; time.sleep(30)")

    running = threading.Thread(target=run)
    running.start()

    while kinds(path).count("executing") < 2:
        pass

    server.process.kill()
    running.join()

    with suppress(Exception):
        sandbox.kill()

    with path.open("rb") as file:
        found = verify_lines(read_lines(file), str(head))

    assert found.ok, found.reason
    assert kinds(path)[-1] == "executing"


def test_the_server_keeps_a_record_of_its_own(server: Any, api: httpx2.Client, place: str) -> None:
    """Keys, logins, shares and foreign sandboxes killed are in one chain, with by whom; no token is, nor own kills."""
    made = api.post("/v1/keys", json={"name": "audited", "scopes": ["sandboxes"]}).json()
    key_id, token = made["key"]["id"], made["token"]
    of_key = {"Authorization": f"Bearer {token}"}
    theirs = [api.post("/v1/sandboxes", json={}, headers=of_key).json()["id"] for _ in range(2)]
    assert api.delete(f"/v1/sandboxes/{theirs[0]}", headers=of_key).status_code == 204
    assert api.delete(f"/v1/sandboxes/{theirs[1]}").status_code == 204
    share = api.post("/v1/shares", json={"sandbox_id": place.rpartition("/")[2]}).json()
    opened = api.post(f"/v1/shares/{share['share']['id']}/open", json={"secret": share["secret"]})
    assert opened.status_code == 200, opened.text
    api.delete(f"/v1/shares/{share['share']['id']}")
    assert api.get("/v1/audit", headers=of_key).status_code == 403
    api.patch(f"/v1/keys/{key_id}", json={"name": "renamed"})
    again = api.post(f"/v1/keys/{key_id}/rotate", json={}).json()["token"]
    api.delete(f"/v1/keys/{key_id}")

    log = api.get("/v1/audit").json()
    assert log["entries"][0]["kind"] == "server_started" or log["dropped"]
    wanted = {key_id, theirs[0], theirs[1], share["share"]["id"]}
    about = [entry for entry in log["entries"] if wanted & set(map(str, entry["fields"].values()))]
    assert [entry["kind"] for entry in about] == [
        "key_made",
        "sandbox_killed",
        "share_made",
        "share_opened",
        "share_revoked",
        "key_changed",
        "key_rotated",
        "key_revoked",
    ]
    killed = about[1]["fields"]
    assert killed == {"sandbox_id": theirs[1], "owner": key_id, "by": "owner", "via": "api"}
    lines = api.get("/v1/audit", params={"form": "lines"}).text
    assert not any(secret in lines for secret in (token, again, share["secret"], server.token))
    assert verify_lines(lines.encode().splitlines(keepends=True)).ok
