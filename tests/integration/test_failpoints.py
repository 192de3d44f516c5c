"""X04 and X15: something goes wrong at each step of a sandbox's life. The walk over all failpoints.

The host processes are children (`failpoint_scenes.py`). At each point an operating system error is raised, a part is
killed, the caller gives up, or the point is held for a while. Whatever it is, the call ends in time with a value or an
error of the tree, nothing is left, a neighbour has noticed nothing, and the next sandbox works.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from fumehood import failpoints

from .launching import run_scene

SOURCES = Path(failpoints.__file__).parent
# A call's own limit and what the promise allows on top of it; none of the calls waits for anything.
ANSWER_SECONDS = 5.0
POOLED = [point for point in failpoints.POINTS if point.startswith("pool.")]
OTHERS = [point for point in failpoints.POINTS if point not in POOLED]
# Where nobody can wait, nothing can be held and nobody can give up.
SYNCHRONOUS = ("delete.cgroup", "delete.closing")
HELD = [point for point in OTHERS if point not in SYNCHRONOUS and not point.startswith("template.")]
# One of each verb: `make faults` walks all.
SOME = ["create.born", "run.sent", "checkpoint.forked", "rollback.files", "transaction.run", "pause.frozen"]
# State and files of one time, before or after the verb; a context that was killed has no variables.
WHOLE = {"(1, 'one')", "(2, 'two')", "(None, 'one')", "(None, 'two')"}
ENDED = {"SandboxClosedError", "SandboxPausedError"}
# These take every sandbox of their template along.
COMMON = ("zygote", "founder", "keeper")


def walked(kind: str, points: list[str], pool_size: int = 0) -> list[dict[str, Any]]:
    """Walks, and sees to what holds whatever goes wrong."""
    told: list[dict[str, Any]] = run_scene("failpoint_scenes.walk", kind, points, pool_size, timeout=300)

    for seen in told:
        assert seen["hits"] >= 1, seen
        assert not seen["outcome"].startswith("untyped"), seen
        assert seen["seconds"] < ANSWER_SECONDS, seen
        assert seen["after"][0] in WHOLE | ENDED, seen
        assert seen["lives"] is False, seen
        assert seen["fresh"] == "42", seen
        assert seen["neighbour"] == "42" or kind in COMMON, seen
        assert seen["excess"] == {}, seen
        # Where nobody is left to be told, the loop tells.
        assert not seen["complaints"] or seen["point"] in SYNCHRONOUS, seen

    assert [seen["point"] for seen in told] == points
    return told


def some(points: list[str]) -> list[str]:
    """All of these points, or in the ordinary suite one of each verb."""
    return points if os.environ.get("EVERY_FAULT") else [point for point in points if point in SOME]


@pytest.fixture(scope="module")
def errors() -> list[dict[str, Any]]:
    """What came of an error of the operating system at each point."""
    return walked("EMFILE", OTHERS)


def test_x04_an_error_at_every_point(errors: list[dict[str, Any]]) -> None:
    """It is told as an error of the tree, whatever the step; only where the sandbox has ended it is the log's."""
    for seen in errors:
        if seen["point"] in SYNCHRONOUS:
            assert seen["outcome"] == "returned True", seen
            assert len(seen["complaints"]) == 1, seen
        else:
            assert seen["outcome"] in ("OverloadedError", "CapacityError", "TemplateError"), seen


def test_x15_errors_say_whether_the_code_may_have_run(errors: list[dict[str, Any]]) -> None:
    """What failed before the code was sent may be repeated; what failed afterwards may have happened."""
    runs = {seen["point"]: (seen["unknown"], seen["after"][1]) for seen in errors}
    assert runs["run.turn"] == runs["run.ready"] == (False, False)
    assert runs["run.sent"][0] is True
    assert runs["run.replied"] == runs["run.finished"] == (True, True)
    # A sandbox that was not made is nowhere, so making one may be repeated.
    assert {runs[point][0] for point in runs if point.startswith("create.")} == {False}


def test_x04_init_dies_at_every_point() -> None:
    """The caller hears that the sandbox has ended, or never came to be."""
    for seen in walked("init", [point for point in OTHERS if not point.startswith("template.")]):
        assert seen["outcome"].startswith("returned") or seen["outcome"] in (
            "SandboxClosedError",
            "SandboxStartError",
        ), seen


def test_x04_a_context_dies() -> None:
    """The sandbox lives on, and its files with it."""
    for seen in walked("context", some(OTHERS)):
        assert seen["outcome"].startswith("returned") or seen["outcome"] == "CheckpointError", seen
        assert seen["point"].startswith("delete.") or seen["after"][0] in WHOLE, seen


@pytest.mark.parametrize("kind", ["zygote", "founder", "keeper"])
def test_x04_the_parts_of_a_template_die(kind: str) -> None:
    """All of its sandboxes end with them; the next one starts it anew, and a call that makes one does so itself."""
    points = some(OTHERS)[:: 1 if os.environ.get("EVERY_FAULT") else 3]

    for seen in walked(kind, points):
        assert seen["outcome"].startswith("returned") or seen["outcome"] in (
            "SandboxClosedError",
            "SandboxStartError",
            "TemplateError",
        ), seen


def test_x04_a_point_takes_long() -> None:
    """Others are served meanwhile, and afterwards everything is as if nothing had been."""
    for seen in walked("hold", some(HELD)):
        assert seen["outcome"].startswith("returned"), seen
        assert seen["outcome"] != "returned None", seen


def test_x14_who_gives_up_at_a_point() -> None:
    """It is over at once, and what was begun is undone or seen to its end."""
    for seen in walked("give up", some(HELD)):
        assert seen["outcome"] == "cancelled", seen


@pytest.mark.parametrize("kind", ["EIO", "init"])
def test_x04_the_pool_fails(kind: str) -> None:
    """A sandbox that dies on its way into the pool, or out of it, is nobody's: another is made."""
    for seen in walked(kind, POOLED, 1):
        assert seen["outcome"] in ("returned 42", "SandboxError"), seen


def test_an_unnamed_fault_is_told_too() -> None:
    """Not only what has run out: what the system cannot do says so, and that it may have been begun."""
    for seen in walked("EIO", some(OTHERS)):
        assert seen["outcome"] in ("SandboxError", "SandboxStartError"), seen


def test_the_list_of_points_is_the_truth() -> None:
    """What the sources pass is what is listed, each once but for the two ends of a transaction."""
    passed: list[str] = []

    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue

            if ast.unparse(node.func) in ("failpoints.reach", "failpoints.pass_by"):
                passed += [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]

    assert sorted(passed) == sorted(failpoints.POINTS)


def test_nothing_of_the_product_arms_a_point() -> None:
    """No environment variable, no request and no guest can: only code of this process, and none of ours does."""
    text = Path(failpoints.__file__).read_text(encoding="utf-8")
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "collections.abc", "contextlib", "typing"}

    for path in SOURCES.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert path == Path(failpoints.__file__) or "failpoints.arm(" not in source
        assert "failpoints.armed[" not in source

    with pytest.raises(ValueError, match="no failpoint"), failpoints.arm("run.nowhere", print):
        pass

    assert failpoints.armed == {}
