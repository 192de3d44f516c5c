"""The weakest level: in a place that forbids namespaces, as in a container, asked for by its name.

What it promises is attacked from inside, and each attempt is made from outside as well, where it must succeed: else
its refusal would prove nothing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from fumehood_jail.landlock_fence import why_impossible

from .launching import run_scene

USERS = ["ordinary user", "root"]
# What root may do to others and an ordinary user not, and what no child of a process under the filter may.
NOT_EVEN_OUTSIDE = {"a user namespace"}

pytestmark = [
    pytest.mark.skipif(why_impossible() is not None, reason="needs Landlock ABI 6"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to arrange the place"),
]


@pytest.fixture(scope="module", params=USERS)
def seen(request: pytest.FixtureRequest) -> Any:
    """What one host process has seen, where no namespace can be made."""
    if request.param == "ordinary user":
        return run_scene("landlock_scenes.everything", ordinary=True, place=("seccomp profile",))

    return run_scene("landlock_scenes.everything", place=("readable", "seccomp profile"))


def test_nobody_gets_it_who_has_not_asked_for_it(seen: Any) -> None:
    """The error names the layer, the reason, the way to get it, and the weaker way by its name."""
    answers = seen["refused"]
    assert answers["weaker"] == "landlock-only"

    for asked in ("default", "floor"):
        assert answers[asked].startswith("user namespace: ")
        assert "the seccomp profile of the container forbids new user namespaces" in answers[asked]
        assert "isolation='landlock-only'" in answers[asked]


def test_what_works_elsewhere_works_there(seen: Any) -> None:
    """State, errors, files, commands, contexts, interrupts, pauses; and it says what it is."""
    worked = dict(seen["every_promise"])
    layers = worked.pop("layers")
    # Modes and times are refused to whoever may own files of the host.
    assert worked.pop("metadata") == ("ok" if seen["is_root"] else "PermissionError")

    assert worked == {
        "level": "landlock-only",
        "reply": "landlock-only",
        "text": "42",
        "error": "ZeroDivisionError",
        "read": "'hello'",
        "back": "hello",
        "scratch": "'scratch'",
        "heard": "heard word\n",
        "home": "True",
        "python": "42\n",
        "bash": "42\n",
        "other context": "False",
        "interrupted": "TimeLimitExceeded",
        "kept": "42",
        "died": "ContextDied",
        "after": "42",
        "figure": 1,
        "metrics": True,
        "resumed": "'resumed'",
        "anew": "(False, True)",
        "unavailable": [
            "CheckpointUnavailableError",
            "ForkUnavailableError",
            *["CheckpointUnavailableError"] * 3,
            "SaveError",
        ],
        "untouched": "7",
        "network": "IsolationUnavailableError",
        "listening": "InvalidArgumentError",
        "private": "PathPermissionError",
        "outside": "PathPermissionError",
    }
    assert layers["namespaces"] == "off"
    assert layers["landlock files"] == layers["landlock signals"] == layers["seccomp"] == "on"
    assert layers["identity"] == layers["network"] == "degraded"


def test_nothing_of_the_host_is_in_reach(seen: Any) -> None:
    """Files, folders, sockets and processes of the host's user, and another sandbox."""
    attacks = seen["attacks"]
    assert {name for name, outcome in attacks["outside"].items() if outcome != "ok"} == NOT_EVEN_OUTSIDE
    assert attacks["outside left"] != "whole"

    for inside in ("context", "command"):
        assert attacks[inside].keys() == attacks["outside"].keys()
        assert [name for name, outcome in attacks[inside].items() if outcome == "ok"] == []
        assert attacks[f"{inside} left"] == "whole"

    assert attacks["by a link"] == ["PathPermissionError"] * 2
    assert attacks["after kill(-1)"] == [True, "42", "42"]


def test_nothing_survives(seen: Any) -> None:
    """Double forks, sessions of their own, one that changes its number all the time: all end with the sandbox.

    When the reaper itself is killed from outside, the launcher ends what it has left.
    """
    assert seen["ends"] == {"killed": [True, [], [], False], "reaper killed": [True, [], [], False]}


def test_nothing_outlives_the_host(seen: Any) -> None:
    """When the host process is killed, its sandboxes end, and their folders are removed."""
    assert seen["host_ends"] == {"lived": True, "left": [True, [], [], False]}


def test_bombs_are_bounded(seen: Any) -> None:
    """By control groups or by the watcher and a resource limit; the sandbox lives on, and can be ended."""
    bombs = seen["bombs"]
    assert bombs["memory"] == "out_of_memory"
    stopped, made = bombs["forks"]
    assert stopped == 11
    # Without control groups the limit holds for all processes of the user, of which some have ended meanwhile.
    assert 20 <= made <= 120
    assert bombs["after"] == "42"
    assert bombs["bomb"] == [True, []]
