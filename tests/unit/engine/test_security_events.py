"""The security monitor: which programs are unusual, and what becomes of more events than anybody wants to read."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace

import pytest

from fumehood.audit.chain import AuditChain
from fumehood.engine.audit_trail import AuditTrail
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.security_events import MAX_EVENTS, SecurityMonitor, unusual_program
from fumehood.errors import SandboxError
from fumehood.values.limits import Limits
from fumehood.values.security import SecurityRule, SecuritySettings

# Of the sandbox, of its init, of the system, and of our own.
CANNOT_PAUSE = (
    SandboxError("some of it does not stop"),
    InitError("os", "no", 1),
    InitGoneError(),
    OSError(errno.ENODEV, "the control group has gone"),
    RuntimeError("a fault"),
)


@pytest.mark.parametrize(
    ("argv", "name", "is_guess"),
    [
        (("/usr/bin/nmap", "-sS"), "nmap", False),
        (("/bin/bash", "-l", "-c", "cd /tmp && sudo -n true"), "sudo", True),
        (("sh", "-c", "echo x | nc host 1"), "nc", True),
        (("bash", "-c", "x=$(strace -p 1)"), "strace", True),
        (("bash", "-c", "exec /usr/sbin/tcpdump"), "tcpdump", True),
    ],
)
def test_unusual_programs_are_seen(argv, name, is_guess):
    assert unusual_program(argv) == (name, is_guess)


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "nmap"),
        ("bash", "-c", "echo nmap; ls ./mount.txt; sumo"),
        ("bash", "-c"),
        ("bash",),
        ("",),
        ("bash", "-c", "x" * 1_000_000),
    ],
)
def test_usual_ones_are_left_alone(argv):
    assert unusual_program(argv) is None


class Scene:
    """A monitor without a sandbox behind it."""

    def __init__(self, *rules: SecurityRule) -> None:
        self.ended: list[str] = []
        self.paused = 0
        self.refusal: Exception | None = None
        self.trail = AuditTrail()
        self.trail.begin(AuditChain(), dict)
        sandbox = SimpleNamespace(id="box", limits=Limits(), end=self.ended.append)
        self.monitor = SecurityMonitor(sandbox, self.trail, self.pause, self.figures)
        self.monitor.begin(SecuritySettings(rules=rules), lambda _: None)

    async def pause(self) -> None:
        self.paused += 1

        if self.refusal is not None:
            raise self.refusal

    async def figures(self):
        return {"processes": 100, "inodes_used": 1}, b""

    async def told(self):
        return [event async for event in self.monitor.follow()]


def test_a_flood_is_counted_and_bounded():
    """All of it is judged by the rules; of what is only recorded, some is told."""

    async def scene():
        there = Scene(SecurityRule(kind="refused_call", action="kill", count=5_000))

        for _ in range(5_000):
            there.monitor.note_refused_call("mount", 7)

        there.monitor.end("policy", "")
        return there, await there.told()

    there, told = asyncio.run(scene())
    assert there.monitor.counts == {"refused_call": 5_000}
    assert there.ended == ["policy"]
    assert 100 <= len(told) < MAX_EVENTS
    assert (told[-1].action, told[-1].count) == ("kill", 5_000)
    kinds = [entry.kind for entry in there.trail.read("box").entries]
    assert 100 <= kinds.count("refused_call") < 1_000
    assert kinds[-3:] == ["policy", "left_out", "ended"]


def test_who_follows_late_and_slowly_hears_the_newest():
    async def scene():
        there = Scene(SecurityRule(kind="limit_hit", action="pause"))

        for _ in range(MAX_EVENTS + 10):
            there.monitor.note_guessed_limit("processes")

        there.monitor.end("killed", "")
        return await there.told()

    told = asyncio.run(scene())
    assert len(told) == MAX_EVENTS
    assert (told[0].count, told[-1].count) == (11, MAX_EVENTS + 10)


def test_what_ran_long_is_looked_at_once():
    async def scene():
        there = Scene()
        there.monitor.note_ran(0.001)
        there.monitor.note_ran(1.0)
        there.monitor.note_ran(1.0)
        follower = asyncio.ensure_future(anext(there.monitor.follow()))
        event = await asyncio.wait_for(follower, 20)
        return event, there.monitor.counts

    event, counts = asyncio.run(scene())
    assert (event.kind, counts) == ("process_storm", {"process_storm": 1})


def test_before_and_after_its_time_nothing_is_reported():
    async def scene():
        there = Scene()
        there.monitor.end("killed", "")
        there.monitor.note_refused_call("mount", None)
        return await there.told(), there.monitor.counts

    assert asyncio.run(scene()) == ([], {})


@pytest.mark.parametrize("refusal", [None, *CANNOT_PAUSE], ids=repr)
def test_what_cannot_be_paused_is_ended(refusal):
    """Whatever keeps it from standing still: a rule is carried out."""

    async def scene():
        there = Scene(SecurityRule(kind="limit_hit", action="pause", count=1))
        there.refusal = refusal
        there.monitor.note_guessed_limit("processes")

        while not there.paused:
            await asyncio.sleep(0)

        await asyncio.sleep(0)
        return there.ended

    assert asyncio.run(scene()) == ([] if refusal is None else ["policy"])
