"""Sandboxes with an interpreter of their own: how they end, what is left, and what one does to another.

The host processes are children (`own_interpreter_scenes.py`), so that all that they have around them can be counted.
"""

from __future__ import annotations

import os
import shutil

import pytest

from fumehood_jail.landlock_fence import why_impossible

from .launching import run_scene

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to arrange the system")


def test_x02_an_end_is_of_that_sandbox_alone_and_leaves_nothing() -> None:
    """Killed, forked and killed first, or one of its processes dead: errors say so, and the neighbour lives on."""
    told = run_scene("own_interpreter_scenes.ends_and_deaths")
    assert told["killed"] == [2, 1, {}]
    assert told["forked"] == ["42", {}]
    assert set(told["deaths"]) == {"launcher", "jail_init", "zygote", "init"}
    assert [death for death in told["deaths"].values() if death != ["SandboxClosedError", False, {}]] == []
    assert (told["survivor"], told["mounts"], told["last"]) == ("42", True, 0)


def test_a_pool_keeps_sandboxes_with_interpreters_ready() -> None:
    """Whoever takes one waits for no interpreter, and none is shared; all of them end with the engine."""
    told = run_scene("own_interpreter_scenes.pool")
    assert told == {"warm": 3, "marks": 3, "kept": True, "left": 0, "descriptors": 0}


def test_an_interpreter_that_was_not_used_may_die() -> None:
    """Another one is started; and one that is only starting ends with the template."""
    told = run_scene("own_interpreter_scenes.unused")
    assert told == {"anew": 1, "given up": "CancelledError", "ended": True, "left": 0}


def test_x14_a_start_that_is_given_up_leaves_no_descriptor() -> None:
    """Whatever the threads of this process are busy with."""
    assert run_scene("own_interpreter_scenes.given_up") == 0


def test_x14_a_start_may_be_given_up_at_the_last_moment() -> None:
    """Whoever gave it up has not got it either, and nobody would end its processes."""
    assert run_scene("own_interpreter_scenes.given_up_at_the_last_moment") == ["CancelledError", 0, 0]


@pytest.mark.parametrize(
    "level",
    [
        "namespaces",
        pytest.param(
            "landlock-only",
            marks=[
                needs_root,
                pytest.mark.skipif(why_impossible() is not None, reason="needs Landlock ABI 6"),
            ],
        ),
    ],
)
def test_x14_a_start_may_be_given_up_again_and_again(level: str) -> None:
    """What is tidied up at the first time is not left half done at the next."""
    assert run_scene("own_interpreter_scenes.given_up_again_and_again", level) == [True, True, 0, 0]


def test_an_engine_is_closed_while_its_pool_is_filled() -> None:
    """What was being started for nobody yet is gone when the engine is."""
    assert run_scene("own_interpreter_scenes.closed_while_filling") == {"left": 0, "descriptors": 0}


@needs_root
@pytest.mark.skipif(why_impossible() is not None, reason="needs Landlock ABI 6")
def test_the_weaker_way_has_them_too() -> None:
    """Where no namespace can be made: `landlock-only`."""
    place = ("readable", "seccomp profile")
    told = run_scene("own_interpreter_scenes.other_level", "landlock-only", place=place)
    expected = {"levels": ["landlock-only"] * 2, "marks": 2, "half": True, "text": "42", "left": 0}
    assert told == expected


@needs_root
@pytest.mark.skipif(shutil.which("newuidmap") is None, reason="needs newuidmap (package uidmap)")
def test_each_takes_a_block_of_ids() -> None:
    """Of an ordinary user's range, which here has two: a third is refused by name, until one has ended."""
    told = run_scene("own_interpreter_scenes.used_up_ids", ordinary=True, place=("subordinate ids",))
    kind, words = told["refused"]
    assert kind == "SandboxStartError"
    assert "all 2 blocks of ids" in words
    assert "/etc/subuid" in words
    assert (told["texts"], told["excess"]) == (["42", "42"], {})
