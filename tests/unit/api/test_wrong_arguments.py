"""Arguments that are refused before anything starts, each with its value and the way out."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle

import pytest

import fumehood
from fumehood import AsyncSandbox, Sandbox
from fumehood.api.packages import install_command
from fumehood.assemble import remote_backend
from fumehood.errors import InvalidArgumentError
from fumehood.values.network import read_network

CALLBACKS = ["on_stdout", "on_stderr", "on_result", "on_error", "on_input", "on_tool_call"]


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_can_be_called(name):
    """A list to gather output in is an easy slip; it is told before the code runs, not at its first output."""
    with pytest.raises(InvalidArgumentError, match=rf"{name}=\[\] is refused"):
        fumehood.run_code("open('/tmp/ran', 'w')", **{name: []})

    with pytest.raises(InvalidArgumentError, match=rf"{name}=\[\] is refused"):
        asyncio.run(AsyncSandbox().run_code("open('/tmp/ran', 'w')", **{name: []}))


def test_who_listens_for_security_events_can_be_called():
    """Otherwise nobody would hear of the first one."""
    for kind in (Sandbox, AsyncSandbox):
        with pytest.raises(InvalidArgumentError, match=r"on_security_event=\[\] is refused"):
            kind(on_security_event=[])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": 8765}, "url=8765 is refused"),
        ({"url": "localhost:8765"}, "url takes http://HOST:PORT or https://HOST"),
        ({"url": "http://127.0.0.1:1", "api_key": 5}, "api_key takes the token of a server, as text"),
        ({"backend": "http://127.0.0.1:1"}, "the address of a server goes into `url`"),
        ({"backend": ""}, "backend takes a Backend"),
    ],
)
def test_where_sandboxes_live_is_said_in_words_that_fit(wrong, said):
    """A port in place of an address, and an address in place of a backend."""
    with pytest.raises(InvalidArgumentError, match=said):
        Sandbox(**wrong)

    with pytest.raises(InvalidArgumentError, match=said):
        Sandbox.list(**wrong)


@pytest.mark.parametrize("cases", [None, 5, "1 2", [("1", 2)], ["1", "2"]], ids=repr)
def test_cases_are_pairs_of_texts(cases):
    """Before any program runs."""
    with pytest.raises(InvalidArgumentError, match="cases takes pairs of texts"):
        asyncio.run(AsyncSandbox().judge("print(1)", cases))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fumehood.run_code("1", files=["a.csv"]), "files takes a mapping of paths to text or bytes"),
        (
            lambda: fumehood.build_template("x", requirements=5),
            "requirements takes the path of a file, or a list",
        ),
        (lambda: fumehood.build_template("x", preload=5), "preload takes a list of modules"),
        (lambda: fumehood.build_template("x", files=5), "files takes the path of a folder"),
        (lambda: fumehood.build_template("x", envs=["A=1"]), "envs takes a mapping of text to text"),
        (lambda: fumehood.build_template("x", on_progress=5), "on_progress takes a function"),
        (lambda: asyncio.run(fumehood.aexplore(AsyncSandbox(), 5)), "codes takes 1 to"),
        (lambda: fumehood.ArtifactStore(5), "location takes a folder, or the address of a bucket"),
        (lambda: Sandbox.from_notebook(["a.ipynb"]), "notebook takes a path, or a notebook as JSON holds it"),
    ],
)
def test_values_of_another_kind_are_refused(call, said):
    """A list for a mapping, a number for a list: in words that need no manual."""
    with pytest.raises(InvalidArgumentError, match=said):
        call()


def test_the_number_of_an_open_file_is_no_notebook():
    """It would be read, and then closed under whoever has it."""
    reading, writing = os.pipe()

    with pytest.raises(InvalidArgumentError, match="notebook takes a path"):
        Sandbox.from_notebook(reading)

    os.close(reading)
    os.close(writing)


def test_a_notebook_goes_where_a_path_leads():
    """What is no path at all is told as one of the wrong form is."""
    with pytest.raises(InvalidArgumentError, match=r"path takes a path that ends with \.ipynb"):
        asyncio.run(AsyncSandbox().to_notebook(5))


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


@pytest.mark.parametrize("begin", [Sandbox, AsyncSandbox, Sandbox.create], ids=["sync", "async", "create"])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("timout", "'timeout'"),
        ("netwrok", "'network'"),
        ("cpu", "'cpu_seconds' or 'cpu_cores'"),
        ("cpus", "'cpu_cores'"),
        ("Memory", "'memory'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_one_that_was_meant(begin, name, meant):
    """Of an argument as of a limit; a short name may be the beginning of two."""
    with pytest.raises(
        TypeError, match=rf"unexpected keyword argument '{name}': .*; did you mean {meant}\?$"
    ):
        begin(**{name: 3})


@pytest.mark.parametrize("name", ["cp", "kwargs", "image"])
def test_a_name_that_is_like_no_other_gets_no_question(name):
    """Two letters begin too much."""
    with pytest.raises(TypeError) as refused:
        Sandbox(**{name: 3})

    assert "did you mean" not in str(refused.value)


def test_packages_are_named_one_by_one_or_as_one_list():
    """A list is what `libraries` takes."""
    separate = install_command(("polars>=1", "humanize"))
    assert separate[-3:] == ["--", "polars>=1", "humanize"]
    assert install_command((["polars>=1", "humanize"],)) == separate
    assert install_command((("polars>=1", "humanize"),)) == separate


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ((), "one by one or as one list, such as 'polars>=1'"),
        (([],), "one by one or as one list, such as 'polars>=1'"),
        ((["--upgrade"],), "packages='--upgrade' is refused"),
        ((["a"], "b"), "names that begin with a letter"),
        (([["a"]],), "names that begin with a letter"),
        (["a"] * 51, "packages='51 names' is refused"),
    ],
)
def test_what_is_no_package_is_refused(packages, said):
    """Before a sandbox starts, in a list as beside each other."""
    with pytest.raises(InvalidArgumentError, match=said):
        asyncio.run(AsyncSandbox().install(*packages))


def test_one_text_is_no_list_of_libraries():
    """Its letters would be installed, each a package of that name."""
    with pytest.raises(InvalidArgumentError, match=r"takes a list of names, such as \['polars'\]"):
        fumehood.run_code("1", libraries="polars")
