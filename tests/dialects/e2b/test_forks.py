"""Forks by E2B's SDK: sandboxes that go on from one state, each on its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from e2b import NotFoundException
from e2b.exceptions import RateLimitException, SandboxException
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def parent(addresses):
    """A sandbox with a state."""
    with Sandbox.create(timeout=600, envs={"GREETING": "hello"}, metadata={"who": "me"}) as sandbox:
        sandbox.run_code("rows = [1, 2, 3]\ncount = iter(range(100)); next(count)")
        sandbox.files.write("kept.txt", "before")
        yield sandbox


def test_forks_go_on_from_here_and_apart(parent):
    """Variables, files and labels come along; nothing comes back."""
    first, second = forks = parent.fork(count=2, timeout=120)
    assert len({parent.sandbox_id, first.sandbox_id, second.sandbox_id}) == 3

    for number, fork in enumerate(forks):
        with fork:
            done = fork.run_code(f"rows.append({number}); rows, next(count)")
            assert done.text == f"([1, 2, 3, {number}], 1)"
            assert fork.files.read("kept.txt") == "before"
            fork.files.write("kept.txt", f"fork {number}")
            assert fork.commands.run("cat kept.txt; echo $GREETING").stdout == f"fork {number}hello\n"
            info = fork.get_info()
            assert info.metadata == {"who": "me"}
            assert timedelta(seconds=100) < info.end_at - info.started_at <= timedelta(seconds=121)

    assert parent.run_code("rows").text == "[1, 2, 3]"
    assert parent.files.read("kept.txt") == "before"


def test_the_asynchronous_sdk_forks_too(parent):
    """By the id of a sandbox, one fork unless more are asked for."""

    async def scene():
        (fork,) = await AsyncSandbox.fork(parent.sandbox_id)

        async with fork:
            assert (await fork.run_code("sum(rows)")).text == "6"
            info = await fork.get_info()
            assert timedelta(seconds=280) < info.end_at - info.started_at <= timedelta(seconds=301)

    asyncio.run(scene())


def test_what_cannot_be_forked_is_reported(parent, new_key):
    """An unknown sandbox, somebody else's, more than there may be."""
    with pytest.raises(NotFoundException):
        Sandbox.fork("nobody" * 5)

    with pytest.raises(NotFoundException):
        Sandbox.fork(parent.sandbox_id, api_key=new_key())

    key = new_key(max_sandboxes=2)

    with Sandbox.create(timeout=60, api_key=key) as sandbox:
        with pytest.raises(RateLimitException):
            sandbox.fork(count=2)

        # None was made: there is room for one.
        (fork,) = sandbox.fork(count=1)
        assert fork.kill()

        with pytest.raises(SandboxException, match="400"):
            sandbox.fork(timeout=-1)
