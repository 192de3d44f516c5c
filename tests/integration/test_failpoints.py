"""X04 and X15: something goes wrong at each step of a sandbox's life. The walk over all failpoints.

The host processes are children (`failpoint_scenes.py`). At each point an operating system error is raised, a part is
killed, the caller gives up, or the point is held for a while. Whatever it is, the call ends in time with a value or an
error of the tree, nothing is left, a neighbour has noticed nothing, and the next sandbox works.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import in_time

from fumehood import failpoints

from .launching import run_scene

SOURCES = Path(failpoints.__file__).parent
# A call's own limit and what the promise allows on top of it; none of the calls waits for anything.
ANSWER_SECONDS = 5.0
POOLED = [point for point in failpoints.POINTS if point.startswith("pool.")]
# Connections have a test of their own: `test_egress_faults.py`.
OTHERS = [point for point in failpoints.POINTS if point not in (*POOLED, "egress.carry")]
# Where nobody can wait, nothing can be held and nobody can give up.
SYNCHRONOUS = ("delete.cgroup", "delete.closing")
HELD = [point for point in OTHERS if point not in SYNCHRONOUS and not point.startswith("template.")]
# One of each verb: `make faults` walks all.
SOME = ["create.started", "run.sent", "checkpoint.forked", "fork.moved", "rollback.files", "pause.frozen"]
# State and files of one time, before or after the verb; a context that was killed has no variables.
WHOLE = {"(1, 'one')", "(2, 'two')", "(None, 'one')", "(None, 'two')"}
ENDED = {"SandboxClosedError", "SandboxPausedError"}
# How the death of a sandbox is told; what ends with its init may be noticed first.
DEATHS = ("SandboxClosedError", "SandboxStartError", "CheckpointError", "ForkError")
# These take every sandbox of their template along.
COMMON = ("zygote", "jail_init", "launcher")
EVERY = bool(os.environ.get("EVERY_FAULT"))

Seen = dict[str, Any]
# The walk as a whole, on a machine that may be busy with other tests.
_MOST_SECONDS = 600
pytestmark = pytest.mark.timeout(_MOST_SECONDS + 10)


def steps() -> list[tuple[str, str]]:
    """What goes wrong where: all of it, or in the ordinary suite two things everywhere and the rest at some points."""
    chosen = {
        "EMFILE": OTHERS,
        "init": [point for point in OTHERS if not point.startswith("template.")],
        "EIO": OTHERS if EVERY else ["run.sent", "pause.frozen"],
        "context": OTHERS if EVERY else SOME,
        "hold": HELD if EVERY else SOME,
        "give up": HELD if EVERY else SOME,
        "jail_init": OTHERS if EVERY else ["create.started", "rollback.files"],
        "zygote": OTHERS if EVERY else ["run.sent"],
        "launcher": OTHERS if EVERY else ["transaction.run"],
    }
    return [(kind, point) for kind, points in chosen.items() for point in points]


def walked(chosen: list[tuple[str, str]], pool_size: int = 0) -> list[Seen]:
    """Walks, and sees to what holds whatever goes wrong."""
    told: list[Seen] = run_scene("failpoint_scenes.walk", chosen, pool_size, timeout=_MOST_SECONDS)
    assert [(seen["kind"], seen["point"]) for seen in told] == chosen
    slow = [step for step, seen in zip(chosen, told, strict=True) if seen["seconds"] >= ANSWER_SECONDS]

    for step in slow:
        # By itself, since the machine may have been the reason.
        in_time(lambda step=step: _alone(step, pool_size), lambda seen: [seen["seconds"]], ANSWER_SECONDS)

    for seen in told:
        assert seen["hits"] >= 1, seen
        assert not seen["outcome"].startswith("untyped"), seen
        assert seen["after"][0] in WHOLE | ENDED, seen
        assert seen["lives"] is False, seen
        assert seen["fresh"] == "42", seen
        assert seen["neighbour"] == "42" or seen["kind"] in COMMON, seen
        assert seen["excess"] == {}, seen
        # Where nobody is left to be told, the loop tells.
        assert not seen["complaints"] or seen["point"] in SYNCHRONOUS, seen

    return told


def _alone(step: tuple[str, str], pool_size: int) -> Seen:
    (seen,) = run_scene("failpoint_scenes.walk", [step], pool_size)
    told: Seen = seen
    return told


@pytest.fixture(scope="module")
def told() -> dict[str, list[Seen]]:
    """What came of everything, by what went wrong."""
    by_kind: dict[str, list[Seen]] = {}

    for seen in walked(steps()):
        by_kind.setdefault(seen["kind"], []).append(seen)

    return by_kind


def test_x04_an_error_at_every_point(told: dict[str, list[Seen]]) -> None:
    """It is told as an error of the tree, whatever the step; only where the sandbox has ended it is the log's."""
    for seen in told["EMFILE"]:
        if seen["point"] in SYNCHRONOUS:
            assert seen["outcome"] == "returned True", seen
            assert len(seen["complaints"]) == 1, seen
        else:
            assert seen["outcome"] in ("OverloadedError", "CapacityError", "TemplateError"), seen


def test_x04_an_unnamed_fault_is_reported_too(told: dict[str, list[Seen]]) -> None:
    """Not only what has run out: also what the system cannot do."""
    for seen in told["EIO"]:
        named = seen["outcome"] in ("SandboxError", "SandboxStartError", "TemplateError")
        assert named or seen["point"] in SYNCHRONOUS, seen


def test_x15_errors_say_whether_the_code_may_have_run(told: dict[str, list[Seen]]) -> None:
    """What failed before the code was sent may be repeated; what failed afterwards may have happened."""
    runs = {seen["point"]: (seen["unknown"], seen["after"][1]) for seen in told["EMFILE"]}
    assert runs["run.turn"] == runs["run.ready"] == (False, False)
    assert runs["run.sent"][0] is True
    assert runs["run.replied"] == runs["run.finished"] == (True, True)
    # A sandbox that was not made is nowhere, so making one may be repeated.
    assert {runs[point][0] for point in runs if point.startswith("create.")} == {False}
    # A transaction that its sandbox's end has cut off had begun.
    ends = {
        seen["point"]: seen["unknown"] for seen in told["init"] if seen["point"].startswith("transaction.")
    }
    assert set(ends.values()) == {True}


def test_x04_init_dies_at_every_point(told: dict[str, list[Seen]]) -> None:
    """The caller hears that the sandbox has ended, or never came to be."""
    for seen in told["init"]:
        is_told = seen["outcome"] in DEATHS
        assert is_told or seen["outcome"].startswith("returned"), seen


def test_x04_a_context_dies(told: dict[str, list[Seen]]) -> None:
    """The sandbox lives on, and its files with it."""
    for seen in told["context"]:
        # The zygote may or may not have forked the first one: a sandbox without it is not handed out.
        failure = "SandboxStartError" if seen["point"].startswith("create.") else "CheckpointError"
        assert seen["outcome"].startswith("returned") or seen["outcome"] == failure, seen
        assert seen["point"].startswith("delete.") or seen["after"][0] in WHOLE, seen


@pytest.mark.parametrize("kind", COMMON)
def test_x04_the_parts_of_a_template_die(told: dict[str, list[Seen]], kind: str) -> None:
    """All of its sandboxes end with them; the next one starts it anew, and a call that makes one does so itself."""
    for seen in told[kind]:
        is_told = seen["outcome"] in (*DEATHS, "TemplateError")
        assert is_told or seen["outcome"].startswith("returned"), seen


def test_x04_a_point_takes_long(told: dict[str, list[Seen]]) -> None:
    """Afterwards everything is as if nothing had been."""
    for seen in told["hold"]:
        assert seen["outcome"].startswith("returned"), seen
        assert seen["outcome"] != "returned None", seen


def test_x14_who_gives_up_at_a_point(told: dict[str, list[Seen]]) -> None:
    """It is over at once, and what was begun is undone or seen to its end."""
    for seen in told["give up"]:
        assert seen["outcome"] == "cancelled", seen


def test_x04_the_pool_fails() -> None:
    """A sandbox that dies on its way into the pool is nobody's; one that is given away dying says so."""
    kinds = ("EIO", "init", "context") if EVERY else ("EIO",)

    for seen in walked([(kind, point) for kind in kinds for point in POOLED], 1):
        assert seen["outcome"] in ("returned 42", "SandboxError", "SandboxClosedError", "returned None"), seen


def test_the_list_of_points_is_the_truth() -> None:
    """What the sources pass is what is listed, each once but for the two ends of a transaction."""
    passed: list[str] = []

    for path in SOURCES.rglob("*.py"):
        for call in re.findall(
            r"failpoints\.(?:reach|reach_sync)\(([^)]*)", path.read_text(encoding="utf-8")
        ):
            passed += re.findall(r'"([a-z_]+\.[a-z_]+)"', call)

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
