"""The folders of a sandbox are declared once on each side of the trust border."""

from __future__ import annotations

import ast

_DECLARED = {"fumehood.values.guest_paths", "fumehood_guest.shared.folders", "fumehood_jail.mounts"}


def test_the_folders_of_a_sandbox_are_declared_once(modules):
    """Elsewhere they are written out only as a part of a longer text, such as a hint or a docstring."""
    broken = [
        f"{module.name}, line {node.lineno}: use fumehood.values.guest_paths or fumehood_guest.shared.folders"
        for module in modules
        if module.name not in _DECLARED
        for node in module.nodes
        if isinstance(node, ast.Constant) and node.value in ("/home/user", "/mnt/data")
    ]
    assert broken == []
