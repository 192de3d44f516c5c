"""What a server tells its owner of itself, and of two moments of a sandbox, at the command line too."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from fumehood import ForbiddenError, Sandbox, read_server_audit
from fumehood.cli.main import main


def test_the_machine_is_examined_for_the_owner_alone(api: httpx2.Client, other: httpx2.Client) -> None:
    """The rows of `fumehood doctor`; a key is refused before anything is tried."""
    assert other.get("/v1/doctor").json()["code"] == "forbidden"
    answer = api.get("/v1/doctor").json()
    rows = {row["name"]: row for row in answer["items"]}
    assert rows["first sandbox"]["state"] == "there"
    assert "warm runs" not in rows
    assert answer["is_of_sandboxes"]
    # The next answer is that one.
    assert api.get("/v1/doctor").json() == answer


def test_the_servers_audit_record_is_read_by_programs(
    server: Any, other: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python and at the command line, with its chain whole; for the owner alone."""
    log = read_server_audit(url=server.url, api_key=server.token)
    assert log.entries[0].kind == "server_started"
    assert log.fault() is None
    assert main(["audit", "server", "--url", server.url, "--api-key", server.token]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["hash"] for line in lines][: len(log.entries)] == [
        one.hash for one in log.entries
    ]
    token = other.headers["authorization"].removeprefix("Bearer ")

    with pytest.raises(ForbiddenError):
        read_server_audit(url=server.url, api_key=token)


def test_two_moments_are_compared_at_the_command_line(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 when something differs, 0 when nothing does; names of a guest are made visible."""
    with Sandbox(url=server.url, api_key=server.token) as sandbox:
        sandbox.run_code("x = 1\ny = 2")
        sandbox.checkpoint("first")
        words = ["--url", server.url, "--api-key", server.token]
        assert main(["compare", sandbox.id, "first", *words]) == 0
        capsys.readouterr()
        sandbox.run_code("x = 5\nopen('a\\x1bb', 'w').write('1')")
        assert main(["compare", sandbox.id, "first", *words]) == 1
        out = capsys.readouterr().out
        assert "changed" in out
        assert "created" in out
        assert "\x1b" not in out
        assert main(["compare", sandbox.id, "first", "--json", *words]) == 1
        assert json.loads(capsys.readouterr().out)["variables"][0]["name"] == "x"
