"""Cancellation goes through `fumehood.cancellation`: no other shield, no other callback that reads an error."""

from __future__ import annotations

import ast

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
