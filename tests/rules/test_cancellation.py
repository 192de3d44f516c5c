"""Cancellation goes through `fumehood.cancellation`: no other shield, no other callback that reads an error."""

from __future__ import annotations

import ast
from collections import Counter

_HOME = "fumehood.cancellation"


def test_nothing_is_shielded_elsewhere(modules):
    """A shielded task needs a reference that keeps it and a reader for its error; the functions there see to both."""
    broken = [
        f"{module.name}, line {node.lineno}: use complete, finish or wait_shared"
        for module in modules
        if module.name != _HOME
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr == "shield"
    ] + [f"{module.name} imports shield" for module in modules if "asyncio.shield" in module.imports]
    assert broken == []


# The ends of two processes: a signal cancels their only task.
_ENDS = {"fumehood.cli.warm_daemon": 1, "fumehood.mcp.stdio": 1}


def test_no_task_swallows_its_own_cancellation(modules):
    """`suppress(CancelledError)` around a wait also drops the cancellation of the task that waits."""
    found = Counter(
        module.name
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("suppress")
        and any("CancelledError" in ast.unparse(argument) for argument in node.args)
    )
    assert found == _ENDS, "use cancel_and_wait or stop"


def test_no_callback_of_a_future_is_a_lambda(modules):
    """Most of them read the error of a task that nothing waits for, each in other words, or just call something."""
    broken = [
        f"{module.name}, line {node.lineno}: use consume_result or when_done"
        for module in modules
        if module.name != _HOME
        for node in module.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_done_callback"
        and any(isinstance(argument, ast.Lambda) for argument in node.args)
    ]
    assert broken == []
