"""Parts die at any moment: calls end in time with an error of ours, the next one works, and nothing stays behind.

The host processes are children (`fault_scenes.py`), some of them under a guardian that adopts what would outlive
them: its end is the end of the last process. What else could be left, the tests count.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.waiting import in_time

from . import census
from .launching import end, run_scene, start_scene

# A scene is played three times where the machine was too slow for it, and ends by its own time-out where it hangs.
pytestmark = pytest.mark.timeout(1000)
ENDED = {"SandboxClosedError", "SandboxStartError"}
# Whatever the fault, a caller waits no longer than this for an answer.
ANSWER_SECONDS = 5.0
# Whatever the end of the host, its processes have ended after this time.
SURVIVAL_SECONDS = 5.0


# -- parts of a living host


@pytest.mark.parametrize(
    ("victim", "seed"),
    # With the last three a template's packages are imported anew each time, which takes a second.
    [
        ("context", 1),
        ("context", 2),
        ("init", 3),
        ("init", 4),
        ("zygote", 5),
        ("jail_init", 6),
        ("launcher", 7),
    ],
)
def test_a_part_is_killed_at_a_random_moment(victim: str, seed: int) -> None:
    """Each verb is answered in time, the next sandbox works, and the host holds no more than before."""
    rounds = 3 if victim in ("context", "init") else 1

    told = in_time(
        lambda: run_scene("fault_scenes.killed_parts", victim, seed, rounds),
        lambda told: [seen["seconds"] for seen in told["faults"]],
        ANSWER_SECONDS,
    )
    assert told["excess"] == {}

    for seen in told["faults"]:
        outcome = seen["outcome"]
        assert seen["fresh"] == "42", seen

        if victim == "context":
            # Files and commands do not depend on a context; what did is told, and a fresh one goes on.
            assert outcome != "SandboxStartError" or seen["activity"] == "new context", seen
            assert outcome != "SandboxClosedError", seen
            assert seen["activity"] != "run_code" or outcome == "'ContextDied'", seen
            assert seen["running"], seen
            assert seen["after"] in ("42", None), seen
        else:
            assert not outcome.endswith("Error") or outcome in ENDED, seen
            assert seen["activity"] != "run_code" or outcome == "SandboxClosedError", seen
            # The kill may have come after the call, and its news after the next one.
            assert seen["after"] in ("42", "SandboxClosedError"), seen


@pytest.mark.parametrize("victim", ["init", "jail_init"])
def test_every_call_that_waits_is_reported(victim: str) -> None:
    """A call that waits when its sandbox dies hears that it died, at once, whatever it waits for."""
    told = in_time(
        lambda: run_scene("fault_scenes.waiting_calls", victim),
        lambda told: [seconds for _, seconds in told.values()],
        ANSWER_SECONDS,
    )

    for name, (outcome, _) in told.items():
        assert outcome == "SandboxClosedError: died", name


# -- the host itself


class Host:
    """A host process under a guardian, which ends after the last of its processes."""

    def __init__(self, scene: str, *arguments: str) -> None:
        self.mounts = census.mounts()
        self.folders = census.folders()
        self.guardian = start_scene(scene, *arguments, place=("guardian",))
        assert self.guardian.stdout is not None
        self.pid = int(self.guardian.stdout.readline())

    def wait(self) -> tuple[int, str]:
        """Wait until nothing of it lives; return the host's exit code, and what was written to standard error."""
        _, complaint = self.guardian.communicate(timeout=120)
        text = complaint.decode()
        survived = re.search(r"survived by (\d+\.\d+) s", text)
        assert survived is not None, text
        assert float(survived[1]) < SURVIVAL_SECONDS
        return self.guardian.returncode, text

    def left_behind(self) -> list[str]:
        """What is there of it now besides processes; folders and locks that serve the next one do not count."""
        mounts = [line for line in census.mounts() if line not in self.mounts]
        folders = [path for path in census.folders() if path not in self.folders]
        return [*census.cgroups_of(self.pid), *mounts, *(path for path in folders if "/uids" not in path)]

    def close(self) -> None:
        for pid in census.descendants_of(self.guardian.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

        end(self.guardian)


@pytest.fixture
def start_host() -> Iterator[type[Host]]:
    started: list[Host] = []

    class Closed(Host):
        def __init__(self, scene: str, *arguments: str) -> None:
            super().__init__(scene, *arguments)
            started.append(self)

    yield Closed

    for host in started:
        host.close()


@pytest.mark.parametrize("how", ["return", "sys.exit", "exception"])
def test_a_program_that_ends_leaves_nothing(start_host: type[Host], how: str) -> None:
    """However a program comes to its end, with sandboxes and cells still running, everything of it is gone."""
    host = start_host("fault_scenes.ends_with_living_sandboxes", how)
    code, complaint = host.wait()

    assert code == (1 if how == "exception" else 0), complaint
    assert host.left_behind() == []


@pytest.mark.parametrize("how", ["os._exit", "abort"])
def test_a_program_that_breaks_off_leaves_no_process(start_host: type[Host], how: str) -> None:
    """Without a chance to clean up, processes are gone all the same; the next start clears away the rest."""
    host = start_host("fault_scenes.ends_with_living_sandboxes", how)
    host.wait()

    assert run_scene("fault_scenes.one_call") == "42"
    assert host.left_behind() == []


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else that looks like one of ours to whoever goes by names."""
    words = ["fumehood_jail.launcher", "fumehood_guest.template.jail_init", "fumehood"]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *words])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_host_is_killed_at_a_random_moment(
    start_host: type[Host], seed: int, bystander: subprocess.Popen[bytes]
) -> None:
    """SIGKILL of a busy host ends every sandbox with its detached processes; the next start clears away the rest.

    And nothing else: whoever is not of it lives on, whatever it is called.
    """
    host = start_host("fault_scenes.busy_host")
    pidfd = os.pidfd_open(host.pid)
    # Nothing ends by itself meanwhile: this is the random moment.
    assert census.wait_for_ends([pidfd], random.Random(seed).uniform(0, 0.2)) == [pidfd]
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    host.wait()

    assert run_scene("fault_scenes.one_call") == "42"
    assert host.left_behind() == []
    assert bystander.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_host_is_reported_to_end(start_host: type[Host], number: signal.Signals) -> None:
    """A supervisor's SIGTERM and a closed terminal end everything."""
    host = start_host("fault_scenes.busy_host")
    os.kill(host.pid, number)
    code, complaint = host.wait()

    assert code == -number & 0xFF, complaint
    assert run_scene("fault_scenes.one_call") == "42"
    assert host.left_behind() == []


@pytest.mark.parametrize("attempt", range(6))
def test_a_busy_host_hears_ctrl_c(start_host: type[Host], attempt: int) -> None:
    """It cleans up itself, and each of its threads learns that its sandbox has ended, whatever it was doing."""
    host = start_host("fault_scenes.busy_host")
    os.kill(host.pid, signal.SIGINT)
    code, complaint = host.wait()

    assert code == 130, complaint
    assert "Traceback" not in complaint
    assert host.left_behind() == []


# -- many, and forks


def test_many_sandboxes_leave_a_host_as_it_was() -> None:
    """After 200 sandboxes a host holds as many descriptors, threads, processes, tasks and cgroups as before."""
    seen = run_scene("fault_scenes.many_sandboxes", 200)
    assert seen["excess"] == {}


@pytest.mark.parametrize("seed", [1, 2])
def test_calls_that_are_given_up_leave_nothing(seed: int) -> None:
    """Cancelled at any moment, a call neither breaks its sandbox nor leaves anything with the host."""
    seen = run_scene("fault_scenes.cancelled_calls", seed, 60)
    assert seen["text"] == "42"
    assert seen["excess"] == {}


@pytest.mark.parametrize("method", ["os.fork", "multiprocessing", "subprocess"])
def test_a_forked_child_does_not_disturb_its_parent(method: str) -> None:
    """The child ends, runs sandboxes of its own or another program; the parent's live on, and end with it."""
    seen = run_scene("fault_scenes.forks_with_living_sandboxes", method)
    assert seen == {"code": 0, "text": "2", "running": True, "ended": True}


def test_a_forked_child_does_not_keep_sandboxes_alive() -> None:
    """When the parent is killed its sandboxes end, though a child holds copies of every descriptor."""
    parent = start_scene("fault_scenes.forked_child_outlives")
    assert parent.stdout is not None
    pid, child = map(int, parent.stdout.readline().split())
    pidfds = [os.pidfd_open(part) for part in census.descendants_of(pid) if part != child]
    child_pidfd = os.pidfd_open(child)

    try:
        # launcher, jail init, zygote, three inits and contexts, a command
        assert len(pidfds) >= 6
        os.kill(pid, signal.SIGKILL)
        assert census.wait_for_ends(pidfds, SURVIVAL_SECONDS) == []
        assert census.wait_for_ends([child_pidfd], 0) == [child_pidfd]
    finally:
        signal.pidfd_send_signal(child_pidfd, signal.SIGKILL)
        end(parent)

        for fd in (*pidfds, child_pidfd):
            os.close(fd)


def test_the_guardian_sees_what_outlives_a_host() -> None:
    """The positive control of this file: a process that does stay behind is noticed."""
    guardian = start_scene("fault_scenes.leaves_a_process", place=("guardian",))
    _, complaint = guardian.communicate(timeout=120)
    survived = re.search(r"survived by (\d+\.\d+) s", complaint.decode())

    assert guardian.returncode == 0
    assert survived is not None
    assert float(survived[1]) > 0.2
