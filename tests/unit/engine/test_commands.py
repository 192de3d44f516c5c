"""The commands of a sandbox, with pipes and terminals as they are: what a hostile one writes costs little to keep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tracemalloc
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from tests.unit.apart import apart, elsewhere  # noqa: F401 - a fixture

from fumehood.bounds import MIB
from fumehood.engine import commands as live_processes
from fumehood.engine.clock import Idleness, SandboxClock
from fumehood.engine.command_output import SCROLLBACK_BYTES, CommandOutput
from fumehood.engine.commands import LiveProcesses
from fumehood.engine.init_client import InitError
from fumehood.errors import ProcessNotFoundError
from fumehood.values.limits import Limits
from fumehood.values.requests import ProcessExited, ProcessOutput, ProcessSpec, PtySize
from fumehood.values.sandbox import Truncation


class Init:
    """Plays an init that starts a command: it keeps the ends that it is given, and writes what a command would."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.refusal: Exception | None = None
        self.pid = 7

    async def ask(
        self, verb: str, _payload: bytes = b"", *, fds: tuple[int, ...] = (), **arguments: Any
    ) -> Any:
        self.asked.append((verb, arguments))
        self.fds += [os.dup(fd) for fd in fds]
        await self.answers.wait()

        if self.refusal is not None:
            raise self.refusal

        return {"pid": self.pid, "found": True}, b""

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def commands_of(init: Init, limits: Limits | None = None) -> LiveProcesses:
    clock = SandboxClock()
    return LiveProcesses(init.ask, limits or Limits(), {}, clock, Idleness(clock))


async def started(limits: Limits | None = None, pty: PtySize | None = None) -> tuple[LiveProcesses, Init]:
    init = Init()
    processes = commands_of(init, limits)
    await processes.start(ProcessSpec(argv=("x",), pty=pty))
    return processes, init


async def write(fd: int, data: bytes) -> None:
    """Writes, and lets the host read it."""
    os.write(fd, data)
    # In the first turn the loop finds that there is something, in the second it reads.
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _all(processes: LiveProcesses) -> list[ProcessOutput | ProcessExited]:
    return [event async for event in processes.output(7)]


def joined(events: list[Any], stream: str) -> bytes:
    return b"".join(
        event.data for event in events if isinstance(event, ProcessOutput) and event.stream == stream
    )


def _grown(before: tracemalloc.Snapshot) -> int:
    """What the code that handles output holds more than before; an engine of other tests may work beside it."""
    names = ("commands", "command_process", "command_output", "loop_share", "guest_output")
    ours = [tracemalloc.Filter(True, f"*/fumehood/engine/*{name}.py") for name in names]
    after = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(line.size_diff for line in after.compare_to(before.filter_traces(ours), "filename"))


@pytest.mark.parametrize("is_followed", [False, True])
def test_output_in_single_bytes_costs_little_more_than_its_bytes(is_followed):
    """Nobody can make the host keep an object for each byte, whether or not somebody follows."""

    async def work() -> None:
        processes, init = await started()
        seen: list[Any] = []

        async def follow() -> None:
            async for event in processes.output(7):
                seen.append(getattr(event, "data", None))

        following = asyncio.ensure_future(follow()) if is_followed else None
        await write(init.fds[1], b"a")
        tracemalloc.start()
        before = tracemalloc.take_snapshot()

        for _ in range(10_000):
            await write(init.fds[1], b"a")
            # What a follower keeps is its own business.
            seen.clear()

        grown = _grown(before)
        tracemalloc.stop()
        assert grown < 10_000 * 3
        processes.note_exit(7, 0)
        events = await _all(processes)
        assert joined(events, "stdout") == b"a" * 10_001
        assert isinstance(events[-1], ProcessExited)

        if following is not None:
            await following

        init.close()

    asyncio.run(work())


@pytest.mark.parametrize("has_long_arguments", [False, True])
def test_commands_that_have_ended_hold_no_more_than_those_that_run(has_long_arguments, monkeypatch):
    """Who starts one after another and looks at none: the oldest are forgotten before their time."""
    monkeypatch.setattr(live_processes, "_ENDED_BYTES", 0)
    limits = Limits(processes=4, stdout_bytes=16_000, stderr_bytes=16_000)

    async def work() -> list[int]:
        init = Init()
        processes = commands_of(init, limits)
        argv = ("x", "y" * 16_000) if has_long_arguments else ("x",)

        for pid in range(1, 21):
            init.pid = pid
            await processes.start(ProcessSpec(argv=argv))

            if not has_long_arguments:
                await write(init.fds[1], b"a" * 16_000)

            processes.note_exit(pid, 0)
            init.close()
            init.fds = []

        kept = []

        for pid in range(1, 21):
            with contextlib.suppress(ProcessNotFoundError):
                events = [event async for event in processes.output(pid)]
                assert isinstance(events[-1], ProcessExited)
                kept.append(pid)

        return kept

    kept = asyncio.run(work())
    assert kept == list(range(21 - len(kept), 21))
    assert 7 <= len(kept) <= 8


def test_a_number_that_comes_again_is_the_new_command():
    """What the former command of a number held is held no longer."""

    async def work() -> None:
        processes, init = await started()
        await write(init.fds[1], b"former")
        processes.note_exit(7, 0)
        await processes.start(ProcessSpec(argv=("x",)))
        assert processes._ended_bytes == 0
        processes.note_exit(7, 3)
        events = await _all(processes)
        assert joined(events, "stdout") == b""
        assert events[-1].exit_code == 3
        init.close()

    asyncio.run(work())


def test_a_terminal_that_is_followed_keeps_its_last_output_alone():
    """Those who attach again find 256 KiB; of all else no trace is kept, in however many pieces it came."""

    async def work() -> None:
        processes, init = await started(pty=PtySize())
        output = processes.output(7)
        tracemalloc.start()
        before = tracemalloc.take_snapshot()

        for number in range(3000):
            os.write(init.fds[0], b"%1023d\n" % number)
            event = await anext(output)
            assert isinstance(event, ProcessOutput)

        grown = _grown(before)
        tracemalloc.stop()
        assert grown < 1.5 * SCROLLBACK_BYTES
        last = await anext(processes.output(7, after_bytes=2999 * 1024))
        assert last == ProcessOutput(stream="pty", data=b"%1023d\n" % 2999)
        attached = processes.output(7, after_bytes=1024)
        kept = [await anext(attached) for _ in range(4)]
        assert [event.skipped_bytes for event in kept if isinstance(event, ProcessOutput)][1:] == [0, 0, 0]
        assert isinstance(kept[0], ProcessOutput)
        assert 0 <= 2999 * 1024 - SCROLLBACK_BYTES - kept[0].skipped_bytes <= 1024
        await attached.aclose()
        processes.note_exit(7, 0)
        assert [type(event) async for event in output] == [ProcessExited]
        init.close()

    asyncio.run(work())


def test_a_follower_sees_what_comes_in_its_order():
    """From the beginning or from the middle, at once or piece by piece, of one stream or of both."""

    async def work() -> None:
        processes, init = await started()
        _, stdout, stderr = init.fds
        live = processes.output(7)
        pieces: list[Any] = []

        for fd, data in ((stdout, b"ab"), (stdout, b"c"), (stderr, b"d"), (stdout, b"e")):
            await write(fd, data)
            pieces.append(await anext(live))

        assert [(piece.stream, piece.data) for piece in pieces] == [
            ("stdout", b"ab"),
            ("stdout", b"c"),
            ("stderr", b"d"),
            ("stdout", b"e"),
        ]
        await write(stdout, b"f")
        processes.note_exit(7, 3)
        late = await _all(processes)
        assert [(piece.stream, piece.data) for piece in late[:-1]] == [
            ("stdout", b"abc"),
            ("stderr", b"d"),
            ("stdout", b"ef"),
        ]
        rest = [event async for event in live]
        assert joined(rest, "stdout") == b"f"
        assert [event.exit_code for event in (rest[-1], late[-1])] == [3, 3]
        init.close()

    asyncio.run(work())


def test_a_terminal_stands_still_until_somebody_looks():
    """What nobody has seen is bounded; who gives up before the next piece has not seen the last one."""

    async def work() -> None:
        processes, init = await started(pty=PtySize())
        (terminal,) = init.fds
        os.set_blocking(terminal, False)
        written = 0

        with contextlib.suppress(BlockingIOError):
            while written < 100 * MIB:
                # Before it is full, the host takes it while we wait.
                written += os.write(terminal, b"x" * (1 << 15))
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        assert 1 * MIB < written < 4 * MIB
        first = processes.output(7)
        shown = await anext(first)
        await first.aclose()
        second = processes.output(7)
        seen = b""

        while len(seen) < written:
            event = await anext(second)
            assert isinstance(event, ProcessOutput)
            seen += event.data

        assert isinstance(shown, ProcessOutput)
        assert len(seen) == written
        await write(terminal, b"y")
        event = await anext(second)
        assert event == ProcessOutput(stream="pty", data=b"y")
        processes.note_exit(7, 0)
        assert [type(event) async for event in second] == [ProcessExited]
        init.close()

    asyncio.run(work())


@pytest.mark.parametrize("bound", ["runs", "limits"])
def test_streams_that_take_turns_cost_a_bounded_amount(bound):
    """Beyond a bound their order is not kept, and beyond the limits nothing is: every byte is told or counted."""
    count = 40_000 if bound == "runs" else 50
    output = CommandOutput(replace(Limits(), stdout_bytes=count, stderr_bytes=count - 10))
    follower = output.pieces()
    seen = {"stdout": 0, "stderr": 0}

    def look() -> None:
        for piece in takewhile(lambda piece: piece is not None, follower):
            seen[piece.stream] += len(piece.data)

    tracemalloc.start()

    for number in range(count):
        output.add("stdout", b"a")
        output.add("stderr", b"b")

        if number % 100 == 0:
            look()

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB

    look()
    assert seen == {"stdout": count, "stderr": count - 10}
    assert output.truncated == Truncation(stderr_bytes=10)
    late = list(takewhile(lambda piece: piece is not None, output.pieces()))
    assert b"".join(piece.data for piece in late if piece.stream == "stdout") == b"a" * count
    # One that changes streams at every byte is kept as it was, up to the bound.
    assert [piece.data for piece in late[:80]] == [b"a", b"b"] * 40
    assert len(late) < 20_010


@pytest.mark.parametrize("how", ["waited for", "given up", "given up, and refused"])
@apart
def test_a_command_whose_start_is_given_up_is_killed(how):
    """Init may have begun it by then: nobody knows its number, so nobody else could end it."""

    async def work() -> None:
        init = Init()
        init.answers.clear()
        processes = commands_of(init)
        before = set(os.listdir("/proc/self/fd"))
        starting = asyncio.ensure_future(processes.start(ProcessSpec(argv=("x",))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given_up = how != "waited for"

        if given_up:
            starting.cancel()

        if how == "given up, and refused":
            init.refusal = InitError("os", "no such file", 2)

        await asyncio.sleep(0)
        # Who gives up is not kept waiting for init.
        assert starting.cancelled() is given_up
        init.answers.set()

        for _ in range(5):
            await asyncio.sleep(0)

        begun = how == "given up"
        killed = [("signal_process", {"pid": 7, "signal": 9})] if begun else []
        assert init.asked[1:] == killed
        is_there = how != "given up, and refused"
        assert [info.pid for info in processes.running] == [7] * is_there

        if is_there:
            processes.note_exit(7, 137)

        assert processes.running == ()
        init.close()
        # The descriptor of each listing has the number of the one before.
        assert set(os.listdir("/proc/self/fd")) <= before

    asyncio.run(work())
