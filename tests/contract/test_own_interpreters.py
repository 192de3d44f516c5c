"""Templates that start an interpreter for each sandbox: nothing is shared by start, and everything else is as usual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fumehood import InvalidArgumentError, Limits, Sandbox, Template
from fumehood.assemble import make_backend, read_settings
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal

# Without packages it is there sooner.
OWN = Template(name="own", preload=(), own_interpreter=True)
SHARED = Template(name="shared", preload=())
# The seed of str's hash; where the heap, the interpreter and the loader's vdso lie.
BIRTHMARKS = """
import ctypes, os, re
vdso = re.search(r"^(\\w+)-.*\\[vdso]", open("/proc/self/maps").read(), re.M)[1]
hash("fumehood"), id(os), ctypes.addressof(ctypes.c_int.in_dll(ctypes.pythonapi, "Py_OptimizeFlag")), int(vdso, 16)
"""

Open = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def open_one() -> Iterator[Open]:
    """Makes sandboxes by an engine without a pool: interpreters that nobody asked for would only take time."""
    portal = Portal()
    backend = make_backend(EngineSettings(pool_size=0), portal)
    yield lambda template=OWN, **options: Sandbox(template, backend=backend, **options)
    portal.close()


@pytest.fixture(scope="module")
def pair(open_one: Open) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes of one template, the second by a way that no pool could serve."""
    with open_one() as one, open_one(envs={"WHO": "Ada"}, limits=Limits(processes=60)) as other:
        yield one, other


def marks(sandbox: Sandbox, **options: Any) -> tuple[int, ...]:
    """What a sandbox has by start."""
    execution = sandbox.run_code(BIRTHMARKS, **options)
    assert execution.error is None, execution.error
    return tuple(map(int, execution.text.strip("()").split(",")))


def test_t04_two_of_a_template_have_nothing_in_common_from_their_start(pair):
    """Neither the hash seed nor any address."""
    one, other = map(marks, pair)
    assert [number for number, (a, b) in enumerate(zip(one, other, strict=True)) if a == b] == []


def test_garbage_is_collected_in_it(pair):
    """Its start, which leaves out what many forks win, ends as every start: collections are on, for new objects."""
    code = "import gc; gc.isenabled(), gc.get_threshold()[0] > 0, gc.get_freeze_count() > 10_000"
    assert pair[0].run_code(code).text == "(True, True, True)"


def test_without_the_option_all_of_it_is_the_same(open_one):
    """The control: two of one zygote differ in nothing of this."""
    with open_one(SHARED) as one, open_one(SHARED) as other:
        assert marks(one) == marks(other)


def test_contexts_and_forks_of_one_sandbox_share_its_interpreter(pair):
    """A new context, one that was started again, and forks, which go on from this very memory."""
    sandbox, _ = pair
    mine = marks(sandbox)
    context = sandbox.create_code_context()
    assert marks(sandbox, context=context) == mine
    sandbox.restart_code_context(context)
    assert marks(sandbox, context=context) == mine

    for fork in sandbox.forks(2):
        with fork:
            assert marks(fork) == mine


def test_it_is_reported_of_a_sandbox_and_of_its_forks(pair, open_one, start_server):
    """Also of one whose template does not ask for it, by who is told over HTTP."""
    sandbox, _ = pair

    with sandbox.fork() as fork, open_one(SHARED) as shared:
        told = [one.get_info().own_interpreter for one in (sandbox, fork, shared)]

    assert told == [True, True, False]
    server = start_server(pool_size=0, own_interpreters=True)

    with Sandbox(url=server.url, api_key=server.token) as distant:
        assert distant.get_info().own_interpreter is True
        assert [info.own_interpreter for info in Sandbox.list(url=server.url, api_key=server.token)] == [True]


def test_everything_works_as_usual(pair):
    """State, files, commands, checkpoints, variables, pauses, and what is told of it."""
    _, sandbox = pair
    sandbox.run_code("state = [1]")
    checkpoint = sandbox.checkpoint()
    sandbox.run_code("state.append(2); open('note', 'w').close()")
    sandbox.rollback(checkpoint)
    assert sandbox.run_code("state").text == "[1]"
    assert not sandbox.files.exists("note")
    assert sandbox.commands.run("echo $WHO").stdout == "Ada\n"
    assert sandbox.get_info().template == "own"
    assert sandbox.pause()
    assert sandbox.resume()


def test_an_engine_can_start_one_for_each_of_every_template(monkeypatch):
    """Also for those that do not ask for it; the environment says so, in so many words."""
    monkeypatch.setenv("FUMEHOOD_OWN_INTERPRETERS", "yes")
    monkeypatch.setenv("FUMEHOOD_POOL_SIZE", "0")
    portal = Portal()
    backend = make_backend(read_settings(), portal)
    try:
        with Sandbox(SHARED, backend=backend) as one, Sandbox(SHARED, backend=backend) as other:
            assert len({*marks(one), *marks(other)}) == 2 * len(marks(one))
    finally:
        portal.close()

    monkeypatch.setenv("FUMEHOOD_OWN_INTERPRETERS", "perhaps")

    with pytest.raises(InvalidArgumentError, match="FUMEHOOD_OWN_INTERPRETERS"):
        read_settings()


def test_what_is_neither_true_nor_false_is_refused():
    """Nothing is started for it."""
    with pytest.raises(InvalidArgumentError, match="own_interpreter"):
        Template(own_interpreter="yes")
