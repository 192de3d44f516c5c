"""Trees of forks by chance, held to a model: forked, adopted, gone back or ended, each is where it should be."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest

from fumehood import Sandbox

_STEPS = 12


@dataclass
class Node:
    """A sandbox, and what it should hold."""

    sandbox: Sandbox
    path: list[int]


class Tree:
    """All that live, of one sandbox and what came of it.

    Args:
        seed: What chance begins with.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.nodes = [Node(Sandbox(), [])]
        self.run(self.nodes[0], "path = []; open('path', 'w').close()")

    def run(self, node: Node, code: str, **options: object) -> str:
        execution = node.sandbox.run_code(code, **options)  # type: ignore[arg-type]
        return execution.text or ""

    def go_on(self, node: Node) -> None:
        number = self.dice.randrange(1000)
        self.run(node, f"path.append({number}); print({number}, file=open('path', 'a'))")
        node.path = [*node.path, number]

    def fork(self, node: Node) -> None:
        for child in node.sandbox.forks(self.dice.choice((1, 2))):
            self.nodes.append(Node(child, node.path))
            self.go_on(self.nodes[-1])

    def adopt(self, node: Node) -> None:
        children = [one for one in self.nodes if one.sandbox.get_info().parent_id == node.sandbox.id]

        if children:
            child = self.dice.choice(children)
            node.sandbox.adopt(child.sandbox)
            node.path = child.path
            self.nodes.remove(child)

    def go_back(self, node: Node) -> None:
        checkpoint = node.sandbox.checkpoint()
        path = node.path
        self.go_on(node)
        node.sandbox.rollback(checkpoint)
        node.path = path

    def fork_from_before(self, node: Node) -> None:
        checkpoint = node.sandbox.checkpoint()
        path = node.path
        self.go_on(node)
        child = node.sandbox.fork(checkpoint=checkpoint)
        self.nodes.append(Node(child, path))

    def undo(self, node: Node) -> None:
        self.run(node, "path.clear(); open('path', 'w').close(); 1 / 0", transactional=True)

    def end(self, node: Node) -> None:
        if len(self.nodes) > 1:
            node.sandbox.kill()
            self.nodes.remove(node)

    def check(self) -> None:
        for node in self.nodes:
            told = self.run(node, "path, [int(line) for line in open('path')]")
            assert told.replace("\n", "") == str((node.path, node.path))


@pytest.mark.parametrize("seed", range(60 if os.environ.get("EVERY_FAULT") else 1))
def test_each_is_where_it_should_be(seed: int) -> None:
    """Variables and files of every living sandbox, after every step."""
    tree = Tree(seed)
    acts = [
        tree.fork,
        tree.fork,
        tree.go_on,
        tree.adopt,
        tree.go_back,
        tree.fork_from_before,
        tree.undo,
        tree.end,
    ]

    try:
        for _ in range(_STEPS):
            tree.dice.choice(acts)(tree.dice.choice(tree.nodes))
            tree.check()
    finally:
        for node in tree.nodes:
            node.sandbox.kill()
