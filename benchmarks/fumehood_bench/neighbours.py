"""Neighbours: calls in one sandbox while another is at its limits, and computing beside busy programs of the host.

In the first both are on the machine that is measured, with the limits that sandboxes have by default, but for the
neighbour's share of the processors, which is bounded as an owner bounds it who lets strangers in. Quiet and noisy calls
are taken in blocks, one after the other, so that both see the same machine: between blocks the neighbour is paused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fumehood import FumehoodError, Limits, Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import in_turn, milliseconds, percentile

_TARGET_RATIO = 3.0
_FLOODED_RATIO = 5.0
# Computing gets at least nine tenths of what the same code gets outside.
_COMPUTING_RATIO = 1 / 0.9
_COMPUTE = """
import time
begun = time.perf_counter()
i = 0
while i < 5_000_000:
    i += 1
print(time.perf_counter() - begun)
"""
_BLOCK = 25
# Its first one and the context's, what makes the noise, and what each of its threads runs.
_NOISY_PROCESSES = 6
_MIB = 1 << 20
# Half of the machine, and a little of everything else, all of which it uses.
_LIMITS = Limits(
    cpu_cores=max(0.5, (os.cpu_count() or 1) / 2),
    memory_bytes=256 * _MIB,
    disk_bytes=64 * _MIB,
    processes=48,
    wall_seconds=3600,
)
# Each loop meets its limit and goes on: what dies of it is begun again.
_NOISE = '''
import os, subprocess, sys, threading, time

SPIN = "while True: pass"
HOLD = "x = []\\nwhile True: x.append(bytearray(1 << 22))"
SHOUT = "import os\\nwhile True: os.write(1, b'x' * 60000 + b'\\\\n')"
FILL = """
import os
while True:
    try:
        with open('/tmp/full', 'wb') as file:
            while True: file.write(bytes(1 << 20))
    except OSError:
        os.unlink('/tmp/full')
"""
FORK = """
import os, time
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError:
        pass
    try:
        os.waitpid(-1, os.WNOHANG)
    except OSError:
        pass
"""

def keep(code, output):
    while True:
        subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=output, stderr=subprocess.DEVNULL)

for code in (SPIN, SPIN, HOLD, FILL, FORK):
    threading.Thread(target=keep, args=(code, subprocess.DEVNULL), daemon=True).start()

print("begun", flush=True)
keep(SHOUT, None)
'''

# Writes the shortest frames there are to the channel of its context, as fast as the host takes them. It waits for the
# end of the execution: what the context itself writes at the same time would break the frames, and end the sandbox.
_FLOOD = """
import gc, json, os, socket, struct, threading, time

found = [one.id for one in gc.get_objects() if type(one).__name__ == 'GuestExecution' and hasattr(one, 'id')]
name = next(one for one in found if one[-1:].isdigit())
header = json.dumps({'type': 'stream', 'id': name, 'name': 'stdout', 'at': 1.0}).encode()
frame = struct.pack('!II', len(header), 1) + header + b'x'
channel = socket.socket(fileno=os.dup(3))
channel.setblocking(True)

def flood():
    piece = frame * 10_000
    while not os.path.exists('/tmp/execution-has-ended'): time.sleep(0.01)
    channel.sendall(piece)
    open('/tmp/flood-has-begun', 'w').close()
    while True: channel.sendall(piece)

threading.Thread(target=flood, daemon=True).start()
"""


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure calls beside a noisy sandbox and beside a flood, and computing beside busy programs."""
    yield from _calls_beside_a_noisy_sandbox(plan)
    yield _calls_beside_a_flood(plan)
    yield _computing_beside_busy_programs(plan)


def _computing_beside_busy_programs(plan: Plan) -> Figure:
    """Compare the same code in a sandbox and outside, in turn, while every processor is busy.

    Each program is in a session of its own, as programs of different services are: the kernel groups by session.
    """
    with Sandbox(limits=Limits(wall_seconds=600)) as sandbox, _busy_programs(os.cpu_count() or 1):
        samples = in_turn(
            plan.repetitions(10),
            warm_up=1,
            inside=lambda: float("".join(sandbox.run_code(_COMPUTE).logs.stdout)),
            outside=lambda: float(
                subprocess.run(
                    [sys.executable, "-c", _COMPUTE],
                    capture_output=True,
                    check=True,
                    start_new_session=True,
                ).stdout
            ),
        )

    return Figure(
        name="computing beside a busy program of the host for each processor, p50",
        unit="s",
        ours=percentile(samples["inside"], 50),
        samples=len(samples["inside"]),
        reference=percentile(samples["outside"], 50),
        reference_name="the same code in a process outside, in turn",
        target=_COMPUTING_RATIO,
    )


@contextmanager
def _busy_programs(count: int) -> Iterator[None]:
    programs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _calls_beside_a_noisy_sandbox(plan: Plan) -> Iterator[Figure]:
    """Count the calls that fail, and measure how much slower the slow ones become."""
    calls = plan.repetitions(200)
    quiet: list[float] = []
    noisy: list[float] = []
    failed = 0

    with Sandbox() as sandbox, Sandbox(limits=_LIMITS) as neighbour:
        failed += _calls(sandbox, 20, [])
        neighbour.files.write("noise.py", _NOISE)
        neighbour.commands.run("exec python3 -I -S noise.py", background=True, timeout=None)

        while neighbour.get_metrics().processes < _NOISY_PROCESSES:
            _calls(sandbox, 1, [])

        neighbour.pause()

        while len(noisy) < calls:
            _calls(sandbox, _BLOCK, quiet)
            neighbour.resume()
            failed += _calls(sandbox, min(_BLOCK, calls - len(noisy)), noisy)
            usage = neighbour.get_metrics()
            neighbour.pause()
            assert usage.processes >= _NOISY_PROCESSES, "the neighbour was not noisy"

    yield Figure(
        name=f"{calls} calls beside a sandbox at its limits: failed",
        unit="",
        ours=failed,
        samples=calls,
        target=0,
        note=f"it may use {_LIMITS.cpu_cores:g} processors, and burns them, memory, processes, disk and output",
    )
    yield Figure(
        name=f"{calls} calls beside a sandbox at its limits: p95",
        unit="ms",
        ours=percentile(noisy, 95),
        samples=len(noisy),
        reference=percentile(quiet, 95),
        reference_name="p95 of the same calls in the same run while that sandbox is paused",
        target=_TARGET_RATIO,
    )


def _calls_beside_a_flood(plan: Plan) -> Figure:
    """Measure how much slower calls become while another sandbox floods its channel with frames."""
    calls = plan.repetitions(200)
    quiet: list[float] = []
    flooded: list[float] = []

    with Sandbox() as sandbox, Sandbox(limits=_LIMITS) as neighbour:
        _calls(sandbox, 20, [])
        neighbour.run_code(_FLOOD)
        neighbour.files.write("/tmp/execution-has-ended", "")

        while not neighbour.files.exists("/tmp/flood-has-begun"):
            _calls(sandbox, 1, [])

        neighbour.pause()

        while len(flooded) < calls:
            _calls(sandbox, _BLOCK, quiet)
            neighbour.resume()
            _calls(sandbox, min(_BLOCK, calls - len(flooded)), flooded)
            neighbour.pause()

        neighbour.resume()

    return Figure(
        name=f"{calls} calls beside a sandbox that floods its channel with frames: p95",
        unit="ms",
        ours=percentile(flooded, 95),
        samples=len(flooded),
        reference=percentile(quiet, 95),
        reference_name="p95 of the same calls in the same run while that sandbox is paused",
        target=_FLOODED_RATIO,
    )


def _calls(sandbox: Sandbox, count: int, samples: list[float]) -> int:
    """Takes samples of a call; returns how many had another answer than the right one."""
    wrong = 0

    def ask() -> None:
        nonlocal wrong
        try:
            wrong += sandbox.run_code("6 * 7").text != "42"
        except FumehoodError:
            wrong += 1

    for _ in range(count):
        samples.append(milliseconds(ask))

    return wrong
