"""The same library for an ordinary user, and where a system refuses: an error that says what to do.

When the tests run as root, the children become an ordinary user; otherwise they stay who they are.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from .launching import SUBORDINATE_IDS, USER_ID, run_scene

CELLS = (
    "multiprocessing_fork",
    "shared_memory",
    "asyncio_parts",
    "terminal",
    "machine",
    "processes_and_signals",
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to arrange the system")


# -- without newuidmap: everything under the user's own id


def test_every_verb_works_without_root() -> None:
    """An ordinary user has every verb, and is told which layers are weaker and why."""
    seen = run_scene("user_scenes.every_verb", ordinary=True)
    isolation = seen.pop("isolation")
    loop = seen.pop("loop").splitlines()

    assert "----> 1 while True: pass" in loop
    assert loop[-1] == "TimeLimitExceeded: ran longer than 0.3 s: it was interrupted, the state is kept"
    assert seen == {
        "text": "42",
        "read": "hello",
        "owner": "user",
        "id": "user\n1000\n",
        "heard": "heard word\n",
        "cwd": "'/tmp'",
        "bash": "42\n",
        "kept": "42",
        "died": "ContextDied",
        "after": "42",
        "metrics": True,
        "level": "namespaces",
        "running": False,
    }
    for name in ("namespaces", "filesystem root", "capabilities", "no new privileges", "seccomp", "network"):
        assert isolation[name][0] == "on"


@needs_root
def test_the_isolation_of_an_ordinary_user_is_reported_as_it_is() -> None:
    """Without subordinate ids and writable cgroups, two layers are degraded: why, and the way out."""
    isolation = run_scene("user_scenes.every_verb", ordinary=True)["isolation"]
    state, why = isolation["identity"]
    assert state == "degraded"
    assert "install newuidmap and list a range in /etc/subuid" in why

    assert isolation["landlock"][0] == "on"
    assert "one thread of init stands outside" in isolation["landlock"][1]

    for name, expected, words in (
        ("cgroup memory", "degraded", "a watcher inside instead"),
        ("cgroup pids", "degraded", "a resource limit instead"),
        ("cgroup cpu", "off", "nothing holds cpu_cores"),
    ):
        state, why = isolation[name]
        assert (state, words in why) == (expected, True)
        # The reason is the same for all of them, and told once.
        reason = isolation["cgroup memory"][1] if "as 'cgroup memory' tells" in why else why
        assert "not writable" in reason or "does not" in reason


def test_code_of_a_template_cannot_change_the_mounts() -> None:
    """Neither make a folder of the user writable, nor uncover what a mount covers; the same user could outside."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        seen = run_scene("user_scenes.a_template_that_changes_its_mounts", folder, ordinary=True)

    assert seen["written"] is False
    assert seen["tried"].pop("write") == errno.EROFS
    assert len(seen["tried"]) > 3
    assert set(seen["tried"].values()) <= {errno.EPERM, errno.EINVAL}


def test_an_ordinary_user_forks() -> None:
    """Forks need no right either: state and files part, and what lies beneath outlives what lies above."""
    assert run_scene("user_scenes.forking", ordinary=True) == {
        "parts": ["(1, 'a')", "(1, 'a')", "(1, 'ab')"],
        "shared": "'c'",
        "apart": "False",
        "pids": "2",
        "caps": "['0000000000000000']",
        "after": "2",
    }


def test_an_ordinary_user_goes_back() -> None:
    """Leases and forks need no right, and without control groups shared memory counts once."""
    seen = run_scene("user_scenes.going_back", ordinary=True)
    assert seen.pop("bomb") in (["rolled_back", "out_of_memory"], ["rolled_back", "error"])
    assert seen == {
        "back": "(1, 'one', 40)",
        "after": "(1, 'one')",
        "verdicts": ["accepted", "wrong_answer"],
        "checkpoints": 8,
    }


def test_a_ready_sandbox_keeps_a_smaller_memory_limit() -> None:
    """What the watcher was told when a sandbox was made cannot be changed: another one is made then."""
    assert run_scene("user_scenes.memory_limit_of_a_ready_sandbox", ordinary=True) == {
        "kind": "out_of_memory"
    }


def test_bombs_end_without_cgroups() -> None:
    """Rlimits and the watcher hold: OutOfMemory, no process above the limit, and the sandbox lives on."""
    seen = run_scene("user_scenes.memory_and_fork_bombs", ordinary=True)

    assert seen["bomb"] == ["out_of_memory", "OutOfMemory", True]
    assert seen["child bomb"] == "-9"
    errno_value, forked = seen["forks"]
    assert errno_value == 11
    assert 30 <= forked <= 40
    assert (seen["after"], seen["neighbour"]) == ("42", "'neighbour'")


def test_memory_that_forks_share_counts_once() -> None:
    """Twenty children of a context, of 85 MB each that they share with it, fit into 256 MiB."""
    seen = run_scene("user_scenes.many_forked_children", ordinary=True)

    assert (seen["forked"], seen["bomb"], seen["alive"]) == ("20", "-9", "20")
    assert seen["more processes"] == 20
    # What a fork writes to is its own: a few megabytes each.
    assert 10 <= seen["alone"] <= 100
    assert seen["alone"] <= seen["together"] <= 200


def test_contexts_that_are_weighed_cannot_be_read() -> None:
    """So that init may weigh a context it can be traced; Landlock leaves that to what it has started itself."""
    seen = run_scene("user_scenes.reaching_for_memory", ordinary=True)

    assert seen.pop("child") == ["ok"]
    # Of init: the process, and each of its two threads.
    assert seen == {"context": ["EACCES"], "command": ["EACCES"], "init": ["EACCES"] * 3}


def test_bombs_end_for_root_in_the_same_way() -> None:
    """The promise does not depend on who keeps the limit."""
    seen = run_scene("user_scenes.memory_and_fork_bombs")

    assert seen["bomb"] == ["out_of_memory", "OutOfMemory", True]
    assert seen["child bomb"] == "-9"
    assert seen["forks"][0] == 11
    assert (seen["after"], seen["neighbour"]) == ("42", "'neighbour'")


def test_programs_work_without_root() -> None:
    """What works for root works for an ordinary user."""
    shown = run_scene("user_scenes.cells", *CELLS, ordinary=True)
    assert shown == dict.fromkeys(shown, "works\n")
    assert len(shown) == 2 * len(CELLS)


@needs_root
def test_strict_refuses_what_is_degraded() -> None:
    """`strict=True` starts nothing where a layer is weaker, and names the layers."""
    said = run_scene("user_scenes.strict", ordinary=True)
    assert "identity, cgroup memory, cgroup pids" in said
    assert "newuidmap" in said


# -- with newuidmap: an id of its own for each sandbox


@pytest.fixture
def newuidmap() -> Iterator[None]:
    if shutil.which("newuidmap") is None:
        pytest.skip("needs newuidmap (package uidmap)")

    yield
    # The locks on the user's ids; the user is gone too.
    shutil.rmtree(f"/tmp/fumehood-uids-{USER_ID}", ignore_errors=True)


@needs_root
@pytest.mark.usefixtures("newuidmap")
def test_each_sandbox_has_an_id_of_the_users_range() -> None:
    """With ranges in /etc/subuid and /etc/subgid, sandboxes run under different ids, none the user's."""
    seen = run_scene("user_scenes.ids_of_two", ordinary=True, place=("subordinate ids",))
    first, count = SUBORDINATE_IDS
    assert seen["identity"] == "on"
    assert seen["killed"] is True
    assert all(first <= owner < first + count for owner in seen["owners"])
    assert seen["owners"][0] != seen["owners"][1]


@needs_root
@pytest.mark.usefixtures("newuidmap")
def test_every_verb_works_with_subordinate_ids() -> None:
    """The same verbs over ids that are not the caller's, whose processes only the zygote may kill."""
    seen = run_scene("user_scenes.every_verb", ordinary=True, place=("subordinate ids",))
    assert (seen["kept"], seen["after"], seen["owner"], seen["running"]) == ("42", "42", "user", False)
    assert seen["isolation"]["identity"] == ["on", "a host uid of its own"]


# -- the doctor


def test_the_doctor_of_an_ordinary_user() -> None:
    """`fumehood doctor` finds what is needed, and says of each layer that is weaker how to get it."""
    told = run_scene("user_scenes.doctor", ordinary=True)
    layers = {layer["name"]: layer for layer in told["layers"]}

    assert told["code"] == 0, told
    assert all(line.startswith("fumehood: ") for line in told["stderr"].splitlines()), told["stderr"]
    assert layers["user namespace"]["state"] == layers["first sandbox"]["state"] == "there"
    assert re.fullmatch(
        r"level \S+: started in [\d.]+ s, computed 6 \* 7 in \d+ ms", layers["first sandbox"]["why"]
    )
    assert all(layer["state"] == "there" for layer in told["layers"] if layer["need"] == "required")
    assert all(layer["how_to_get_it"] for layer in told["layers"] if layer["state"] != "there")


@needs_root
def test_a_server_names_at_its_start_what_is_weaker() -> None:
    """One line for the operator, and one of the log with the reasons."""
    *log, line = run_scene("user_scenes.server_start", ordinary=True)
    assert line == (
        "isolation of sandboxes here is namespaces, missing: cgroup cpu, cgroup io; weaker: identity, cgroup memory, "
        "cgroup pids, cgroup freezer: `fumehood doctor` says why, and the way out\n"
    )
    (logged,) = [entry for entry in log if "layers of isolation are missing or weaker here" in entry]
    assert "not writable" in logged or "does not" in logged


# -- systems that refuse

REFUSALS = {
    "seccomp profile": (
        "user namespace",
        "the seccomp profile of the container forbids new user namespaces",
        "--security-opt seccomp=unconfined",
    ),
    "no user namespaces": (
        "user namespace",
        "user.max_user_namespaces is 0",
        "sysctl -w user.max_user_namespaces=",
    ),
    "masked proc": ("proc", "the /proc of this container is masked", "--security-opt systempaths=unconfined"),
}


@needs_root
@pytest.mark.parametrize("ordinary", [True, False], ids=["ordinary user", "root"])
@pytest.mark.parametrize("place", REFUSALS)
def test_a_refusing_system_is_named_with_the_way_out(place: str, ordinary: bool) -> None:
    """Where no sandbox can start, the error says which layer is missing, why, and how to allow it."""
    layer, reason, way_out = REFUSALS[place]
    seen = run_scene("user_scenes.refusal", ordinary=ordinary, place=(place,))

    assert seen["kind"] == "IsolationUnavailableError"
    assert seen["layer"] == layer
    assert reason in seen["text"]
    assert way_out in seen["text"]


@needs_root
@pytest.mark.parametrize("place", REFUSALS)
def test_the_doctor_of_a_refusing_system(place: str) -> None:
    """There `fumehood doctor` ends with code 1 and says the same."""
    layer, reason, way_out = REFUSALS[place]
    told = run_scene("user_scenes.doctor", ordinary=True, place=(place,))
    missing = {found["name"]: found for found in told["layers"] if found["state"] == "missing"}

    assert told["code"] == 1
    assert reason in missing[layer]["why"]
    assert way_out in missing[layer]["how_to_get_it"]
