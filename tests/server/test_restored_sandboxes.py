"""`on_host_loss="restore"`: a sandbox whose host is gone goes on from its last save, and never silently twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import InvalidArgumentError, Sandbox, SandboxClosedError

from .ends import client_of, kill, until


def test_a_lost_sandbox_goes_on_from_its_last_save(
    start_host: Callable[..., Any], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """What came after the save is gone, and is said to be: `restored` counts, and the id is another one."""
    host = start_host()
    server = start_server(host_socket=host.socket, pool_size=0, dialects="")
    at = {"url": server.url, "api_key": server.token}
    place = tmp_path / "state.fumehood"
    kept = Sandbox(on_host_loss="restore", envs={"COLOUR": "red"}, metadata={"name": "kept"}, **at)
    unsaved, plain, ended = (Sandbox(on_host_loss=word, **at) for word in ("restore", "raise", "restore"))
    kept.run_code("n = 41; open('notes.txt', 'w').write('before')")
    kept.save(place)
    kept.run_code("n = 0; open('notes.txt', 'w').write('after')")
    plain.save(tmp_path / "other.fumehood")
    ended.save(tmp_path / "ended.fumehood")
    ended.kill()
    first_id = kept.id
    old = kept.commands.run("sleep 600", background=True)

    kill(host)
    host = start_host(host.folder)

    with client_of(server) as api:
        until(lambda: api.get("/v1/capacity").status_code == 200, "the new host answers")

    # To look restores nothing.
    assert not kept.is_running()
    assert kept.run_code("import os; (n + 1, open('notes.txt').read(), os.environ['COLOUR'])").text == (
        "(42, 'before', 'red')"
    )
    assert (kept.restored, kept.id != first_id, kept.get_info().metadata) == (1, True, {"name": "kept"})
    assert kept.load_report is not None
    assert kept.run_code("n").text == "41"
    assert kept.files.read("notes.txt") == "before"
    # Its pid may be that of another process by now.
    new = [kept.commands.run("sleep 600", background=True) for _ in range(3)]

    with pytest.raises(SandboxClosedError):
        old.kill()

    assert {one.pid for one in new} <= {one.pid for one in kept.commands.list()}

    share = kept.shares.create()
    assert [one.id for one in kept.shares.list()] == [share.id]
    assert len(Sandbox.list(**at)) == kept.restored == 1

    for other in (unsaved, plain, ended):
        with pytest.raises(SandboxClosedError):
            other.run_code("1")

        assert other.restored == 0

    # What was sent for a file may be half read: it is not sent again by itself, and the next call goes on.
    kill(host)
    start_host(host.folder)

    with client_of(server) as api:
        until(lambda: api.get("/v1/capacity").status_code == 200, "the new host answers")

    with pytest.raises(SandboxClosedError):
        kept.files.write("notes.txt", "new")

    assert (kept.restored, kept.files.read("notes.txt")) == (2, "before")
    kept.kill()
    assert Sandbox.list(**at) == []

    for other in (unsaved, plain):
        other.kill()


def test_the_word_is_checked() -> None:
    """Before a sandbox starts."""
    with pytest.raises(InvalidArgumentError, match="'raise' or 'restore'"):
        Sandbox(on_host_loss="hope")  # type: ignore[arg-type]
