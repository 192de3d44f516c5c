"""Names that may occur in one place only, or nowhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

# Modules that turn bytes into objects or code: a guest's bytes must never meet them.
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
# The guest pickles variables of its own when it is saved, and unpickles them when it is loaded, in the sandbox.
PICKLES = "fumehood_guest.export.pickling"
# Variables of the user, and bytecode of ours, for a sandbox: neither has a way to read any.
ONLY_WRITE = (
    "fumehood.ipython_magic",
    "fumehood.runtimes.namespaces.guest_bytecode",
    "fumehood_guest.image.bytecode",
)
# The guest runs user code: that is what it is for, and it does so in the shell.
RUNS_CODE = "fumehood_guest"


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_ctypes_is_in_one_file(modules):
    """Every raw system call goes through the file that is reviewed for it; R is a library, and so is an attacker's."""
    users = {
        module.name for module in modules if "ctypes" in {name.partition(".")[0] for name in module.imports}
    }
    assert users == {
        "fumehood_jail.syscalls",
        "fumehood.scorecard.attack.calls",
        "fumehood_guest.languages.libr",
    }


def test_nothing_is_unpickled(modules):
    """No part of ours has a way to turn bytes into objects other than JSON."""
    users = [
        module.name
        for module in modules
        if module.name not in (PICKLES, *ONLY_WRITE)
        and UNSAFE_MODULES & {name.partition(".")[0] for name in module.imports}
    ]
    assert users == []


@pytest.mark.parametrize("name", ONLY_WRITE)
def test_what_goes_into_a_sandbox_is_only_written(modules, name):
    """Variables of the notebook's user and bytecode of our sources go in, and no way to read any is imported."""
    tree = next(module.tree for module in modules if module.name == name)
    taken = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in UNSAFE_MODULES
        for alias in node.names
    ]
    assert taken == ["dumps"]
    assert not any(
        alias.name in UNSAFE_MODULES
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    )


def test_only_the_guest_runs_code(modules):
    """The host never evaluates anything."""
    users = [
        module.name
        for module in modules
        if module.top != RUNS_CODE and UNSAFE_CALLS & set(calls(module.tree))
    ]
    assert users == []


def test_only_the_command_line_prints(modules):
    """A library says nothing on its own."""
    users = [
        module.name
        for module in modules
        if module.top == "fumehood"
        and not module.name.startswith("fumehood.cli")
        and "print" in calls(module.tree)
    ]
    assert users == []


def test_the_environment_is_read_in_one_place(modules):
    """Settings come from `assemble` only, so that importing decides nothing."""
    users = {
        module.name
        for module in modules
        if module.top == "fumehood"
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and _is_os(node.value)
    }
    assert users <= {
        "fumehood.assemble",
        "fumehood.cli.attacks",
        "fumehood.cli.backup",
        "fumehood.cli.chat",
        # What it starts has its environment.
        "fumehood.cli.cluster",
        # It reads the settings of the server that it opens.
        "fumehood.cli.console",
        # An installer has the environment of this process.
        "fumehood.pip_configuration",
        # NO_COLOR and TERM: what a terminal shows is no setting of ours.
        "fumehood.cli.terminal",
        "fumehood.cli.host",
        # The scripts of `fumehood completion` ask by a variable.
        "fumehood.cli.kernel",
        "fumehood.cli.main",
        # Ray makes the adapter, with the environment of its machine.
        "fumehood.cluster.adapter",
        "fumehood.cli.mcp",
        # The variables of OpenTelemetry, as for `fumehood.server.run`.
        "fumehood.daemon.app",
        # XDG_STATE_HOME: where the user's state lies is no setting of ours.
        "fumehood.cli.outputs",
        "fumehood.cli.serve",
        # Before anything heavy is imported: whether there is a process to ask, and where.
        "fumehood.cli.warm",
        # What it gives to a program of the user's choice is the user's own environment.
        "fumehood.templates.images.outer_builder",
        # It looks at the environment of whatever it runs in.
        "fumehood.scorecard.attack.surroundings",
        "fumehood.server.run",
    }


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "HACK"])
def test_nothing_is_left_for_later(modules, word):
    """What is in the tree is done."""
    assert [module.name for module in modules if word in module.text] == []


def test_names_say_what_a_thing_is(modules):
    """Words that say nothing name no module and no class."""
    empty = ("util", "helper", "manager", "misc", "common")
    named = [
        name
        for module in modules
        for name in [
            module.name.rpartition(".")[2],
            *(node.name for node in module.nodes if isinstance(node, ast.ClassDef)),
        ]
        # matplotlib asks a backend for a class of this name.
        if any(word in name.lower() for word in empty) and name != "FigureManager"
    ]
    assert named == []


def _is_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "os"
