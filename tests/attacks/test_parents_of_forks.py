"""T01: what the code of a sandbox can do to a sandbox that was forked from it, whose processes it sees.

The same probe runs in the fork itself, where it finds all of it: the control. By the kernel's rules the owner of a user
namespace has every capability over what is in it; those of forks belong to an id that no code can take.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from fumehood import Sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sandboxes with ids of their own")

PROBE = """
import json, os
PLACES = ("environ", "maps", "mem", "ns/user", "fd", "root/tmp/secret", "root/mnt/data/secret", "cwd/secret")
def reach(place):
    try:
        if place.endswith("fd"):
            os.listdir(place)
        elif "/ns/" in place:
            os.readlink(place)
        else:
            with open(place, "rb") as file:
                if not place.endswith("mem"):
                    file.read(1)
    except OSError as error:
        return error.errno
    return "reached"
found = {}
for name in os.listdir("/proc"):
    if not name.isdigit() or b"sleep" not in open(f"/proc/{name}/cmdline", "rb").read():
        continue
    try:
        os.kill(int(name), 0)
        signalled = "reached"
    except OSError as error:
        signalled = error.errno
    found[name] = {"kill": signalled, **{place: reach(f"/proc/{name}/{place}") for place in PLACES}}
print(json.dumps(found))
"""
PREPARE = """
import subprocess
for place in ("/tmp/secret", "/mnt/data/secret", "/home/user/secret"):
    with open(place, "w") as file:
        file.write("of the fork")
sleeper = subprocess.Popen(["sleep", "1000"])
"""


@pytest.fixture(scope="module")
def family() -> Iterator[tuple[Sandbox, Sandbox]]:
    """A sandbox, and a fork of it in which something sleeps."""
    with Sandbox() as parent:
        child = parent.fork()

        with child:
            assert child.run_code(PREPARE).error is None
            yield parent, child


def in_context(sandbox: Sandbox) -> dict[str, Any]:
    """What the probe finds as a context."""
    found: dict[str, Any] = json.loads("".join(sandbox.run_code(PROBE).logs.stdout))
    return found


def in_command(sandbox: Sandbox) -> dict[str, Any]:
    """What it finds as a command, whose signals Landlock does not scope."""
    sandbox.files.write("/home/user/probe.py", PROBE)
    found: dict[str, Any] = json.loads(sandbox.commands.run("python /home/user/probe.py").stdout)
    return found


@pytest.mark.parametrize("probe", [in_context, in_command])
def test_t01_a_parent_sees_that_its_fork_exists_and_reaches_nothing(
    family: tuple[Sandbox, Sandbox], probe: Any
) -> None:
    """Neither memory, nor files, nor environment, nor a signal; the fork itself has all of it."""
    parent, child = family
    control = in_context(child)
    assert len(control) == 1
    assert set(next(iter(control.values())).values()) == {"reached"}

    found = probe(parent)
    assert len(found) == 1
    assert set(next(iter(found.values())).values()) <= {1, 13}


def test_t01_no_guest_takes_the_id_that_owns_forks(family: tuple[Sandbox, Sandbox]) -> None:
    """It is in reserve in each context, and the system call filter refuses it, in every form."""
    code = """
import os
def attempt(call, *ids):
    try:
        call(*ids)
    except OSError as error:
        return error.errno
    return os.getresuid()
print(os.getresuid(), [attempt(*one) for one in (
    (os.setresuid, -1, 2000, -1), (os.setresuid, 2000, 2000, 2000), (os.seteuid, 2000), (os.setreuid, -1, 2000),
    (os.setuid, 2000), (os.setresuid, -1, -1, 2000), (os.setresuid, 1000, 1000, 1000),
)])
"""
    for sandbox in family:
        told = "".join(sandbox.run_code(code).logs.stdout)
        assert told.strip() == "(1000, 1000, 2000) [1, 1, 1, 1, 1, 1, (1000, 1000, 1000)]"
