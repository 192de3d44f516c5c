"""Snapshots by E2B's SDKs: made, found, started from and deleted; what they cannot hold is said."""

from __future__ import annotations

import pytest
from e2b import AuthenticationException, NotFoundException, SandboxException
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def source(addresses):
    """A sandbox with a state, and a snapshot of it."""
    with Sandbox.create(timeout=300, envs={"GREETING": "hello"}) as sandbox:
        sandbox.run_code("import threading; table = {'n': [1, 2]}; same = table; lock = threading.Lock()")
        sandbox.files.write("/home/user/notes.txt", "first")
        yield sandbox


def test_a_sandbox_is_made_of_a_snapshot(source):
    """Files, variables, what they share, and the environment; afterwards the two know nothing of each other."""
    snapshot = source.create_snapshot()
    source.files.write("/home/user/notes.txt", "second")

    with Sandbox.create(snapshot.snapshot_id, timeout=60, envs={"MORE": "1"}) as made:
        assert made.sandbox_id != source.sandbox_id
        assert made.get_info().template_id == snapshot.snapshot_id
        assert made.files.read("/home/user/notes.txt") == "first"
        assert made.run_code("table['n'], same is table, 'lock' in globals()").text == "([1, 2], True, False)"
        assert made.commands.run("echo $GREETING $MORE").stdout == "hello 1\n"

    assert source.run_code("lock.locked()").text == "False"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False

    with pytest.raises((NotFoundException, SandboxException), match="404"):
        Sandbox.create(snapshot.snapshot_id, timeout=60)


def test_snapshots_have_names_and_are_listed(source):
    """By sandbox and by name, a page at a time; a second one of a name takes the place of the first."""
    first = source.create_snapshot(name="team/start")
    assert first.names == ["team/start:default"]
    second = source.create_snapshot(name="team/start")
    other = source.create_snapshot()
    pages = source.list_snapshots(limit=1)
    found = []

    while pages.has_next:
        found += pages.next_items()

    assert [item.snapshot_id for item in found] == [other.snapshot_id, second.snapshot_id]
    assert [item.names for item in found] == [[], ["team/start:default"]]
    assert len(Sandbox.list_snapshots(name="team/start").next_items()) == 1
    assert Sandbox.list_snapshots(sandbox_id="another").next_items() == []

    with Sandbox.create("team/start:default", timeout=60) as made:
        assert made.run_code("table").text == "{'n': [1, 2]}"

    assert Sandbox.delete_snapshot("team/start:default") is True
    assert Sandbox.delete_snapshot(other.snapshot_id) is True


async def make_by_async_sdk(source):
    snapshot = await AsyncSandbox.create_snapshot(source.sandbox_id, mode="filesystem")
    made = await AsyncSandbox.create(snapshot.snapshot_id, timeout=60)
    told = (await made.run_code("'table' in globals()")).text, await made.files.exists("/home/user/notes.txt")
    await made.kill()
    return told, await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)


def test_a_snapshot_of_the_files_alone_begins_without_variables(source):
    """As E2B's does, which boots from the disk; by the asynchronous SDK."""
    import asyncio

    assert asyncio.run(make_by_async_sdk(source)) == (("False", True), True)


def test_what_is_not_kept_is_reported(http, addresses, source):
    """In the answer to whoever made it."""
    path = f"/sandboxes/{source.sandbox_id}/snapshots"
    answer = http.post(path, headers={"X-API-Key": addresses["E2B_API_KEY"]}, json={"name": "told"})
    assert answer.status_code == 201
    left_out = {one["name"]: one["reason"] for one in answer.json()["notKept"]}
    assert "lock" in left_out["lock"]
    assert "not kept" in left_out["processes"]
    assert Sandbox.delete_snapshot("told") is True
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}
    assert http.post(path, headers=headers, json={"name": "no name!"}).status_code == 400
    assert http.get("/snapshots?nextToken=x", headers=headers).status_code == 400
    assert http.get("/snapshots?limit=0", headers=headers).status_code == 400


def test_snapshots_of_another_tenant_are_not_there(source, new_key):
    """Not in a list, not to start from, not to delete; and nobody saves a sandbox of somebody else."""
    key = new_key()
    snapshot = source.create_snapshot(name="mine")

    assert Sandbox.list_snapshots(api_key=key).next_items() == []
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=key) is False
    assert Sandbox.delete_snapshot("mine", api_key=key) is False

    for name in (snapshot.snapshot_id, "mine"):
        with pytest.raises((NotFoundException, SandboxException), match="404"):
            Sandbox.create(name, timeout=60, api_key=key)

    with pytest.raises(NotFoundException):
        Sandbox.create_snapshot(source.sandbox_id, api_key=key)

    with pytest.raises(AuthenticationException):
        Sandbox.create_snapshot(source.sandbox_id, api_key="e2b_" + "0" * 40)

    assert Sandbox.delete_snapshot("mine") is True
