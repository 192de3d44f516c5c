"""Arguments that are refused before anything starts, each with its value and the way out."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

import fumehood
from fumehood import AsyncSandbox, Sandbox
from fumehood.assemble import remote_backend
from fumehood.errors import InvalidArgumentError
from fumehood.network import read_network


@pytest.mark.parametrize("name", ["on_stdout", "on_stderr", "on_result", "on_error", "on_input"])
def test_a_callback_can_be_called(name):
    """A list to gather output in is an easy slip; it is told before the code runs, not at its first output."""
    with pytest.raises(InvalidArgumentError, match=r"callback=\[\] is refused"):
        fumehood.run_code("open('/tmp/ran', 'w')", **{name: []})


@pytest.mark.parametrize("sandbox_id", [None, 7, "", b"id"])
def test_an_id_is_text(sandbox_id):
    """As a lookup that has failed gives something else."""
    with pytest.raises(InvalidArgumentError, match="sandbox_id takes text"):
        asyncio.run(AsyncSandbox.connect(sandbox_id))

    with pytest.raises(InvalidArgumentError, match="sandbox_id takes text"):
        Sandbox.connect(sandbox_id)


def test_a_network_shows_what_was_given_unless_it_may_hold_a_secret():
    """`network=True` is not `network='bool'`."""
    with pytest.raises(InvalidArgumentError, match="network=True is refused"):
        read_network(True)

    with pytest.raises(InvalidArgumentError, match="network='dict' is refused"):
        read_network({"secrets": {"api.example.com": {"Authorization": "s3cret"}}})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [Sandbox, AsyncSandbox])
def test_a_sandbox_is_not_copied(again, kind):
    """Whoever tries hears what to do instead, and not which part of the engine a pickle does not like."""
    with pytest.raises(TypeError, match=r"cannot be pickled or copied: .* `connect\(id\)`"):
        again(kind.__new__(kind))


@pytest.mark.parametrize("token", ["two words", "s3cret\nX-More: header", "clé"])
def test_a_token_that_no_header_takes_is_refused_and_not_shown(token):
    """The client below would show it, in an error that blames the server."""
    with pytest.raises(InvalidArgumentError, match="api_key takes the token alone") as refused:
        Sandbox(url="http://127.0.0.1:1", api_key=token)

    assert token not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_token_may_have_been_read_from_a_file():
    """A line break at its end is none of its own."""
    assert remote_backend("http://127.0.0.1:1", "s3cret\n") is remote_backend("http://127.0.0.1:1", "s3cret")


@pytest.mark.parametrize("sandbox", [None, "id", [], AsyncSandbox()])
def test_what_is_explored_is_a_sandbox(sandbox):
    """`explore` and `aexplore` are easily taken for one another, and a list of forks for a fork."""
    with pytest.raises(
        InvalidArgumentError, match="sandbox takes a Sandbox; `aexplore` takes an AsyncSandbox"
    ):
        fumehood.explore(sandbox, ["1"])

    with pytest.raises(
        InvalidArgumentError, match=r"child takes one of the sandboxes that `fork\(\)` has returned"
    ):
        Sandbox.__new__(Sandbox).adopt(sandbox)
