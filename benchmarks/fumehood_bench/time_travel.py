"""Going back: a checkpoint and a rollback of a context with data, a transactional cell, many cases of one program.

Runs in a process whose pool is off. The forks that are the floor are made by the very context that is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import descendants, memory_bytes
from fumehood_bench.timing import in_turn, milliseconds, percentile

DATA = """
import os, numpy as np, pandas as pd
frame = pd.DataFrame(np.random.default_rng(1).random((1_310_720, 10)))
for number in range(10):
    with open(f'part-{number}.bin', 'wb') as file:
        file.write(os.urandom(1 << 20))
assert 100 <= frame.memory_usage().sum() / 2**20 <= 101
"""
_FORK = """
import os, time
def fork_ms():
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return (time.perf_counter() - start) * 1e3
"""
_PROGRAM = "import numpy as np\nn = int(input())\nprint(int(np.arange(n).sum()))\n"


def measure(plan: Plan) -> Iterator[Figure]:
    """Checkpoint, rollback, what an idle one costs, transactions, judging."""
    yield from _going_back(plan)
    yield _transaction(plan)
    yield _judging(plan)


def _going_back(plan: Plan) -> Iterator[Figure]:
    others = descendants()

    with Sandbox() as sandbox:
        run(sandbox, DATA)
        taken: list[float] = []
        undone: list[float] = []
        pids = descendants() - others
        before = sum(memory_bytes(pid)[0] for pid in pids)
        checkpoint = sandbox.checkpoint()
        held = sum(memory_bytes(pid)[0] for pid in descendants() - others) - before
        sandbox.drop_checkpoint(checkpoint)

        for _ in range(plan.repetitions(100)):
            taken.append(milliseconds(lambda: sandbox.checkpoint("point")))
            run(sandbox, "frame.iloc[0, 0] = 1; _ = open('part-3.bin', 'ab').write(b'more')")
            undone.append(milliseconds(lambda: sandbox.rollback("point")))
            sandbox.drop_checkpoint("point")

    what = "of a context with a 100 MB DataFrame and 10 MB of files"
    yield Figure(
        name=f"checkpoint {what}, p50", unit="ms", ours=percentile(taken, 50), samples=len(taken), target=20
    )
    yield Figure(
        name=f"rollback {what}, p50", unit="ms", ours=percentile(undone, 50), samples=len(undone), target=20
    )
    yield Figure(name="an idle checkpoint of it", unit="MB", ours=held / 1e6, samples=1, target=3)


def _transaction(plan: Plan) -> Figure:
    with Sandbox() as sandbox:
        run(sandbox, _FORK)
        samples = in_turn(
            plan.repetitions(200),
            block=10,
            plain=lambda: milliseconds(lambda: sandbox.run_code("y = 1")),
            ours=lambda: milliseconds(lambda: sandbox.run_code("y = 1", transactional=True)),
            reference=lambda: float(sandbox.run_code("fork_ms()").text or "nan"),
        )

    plain = percentile(samples["plain"], 50)
    return Figure(
        name="what `transactional=True` adds to `y = 1`, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50) - plain,
        samples=len(samples["ours"]),
        target=3,
        reference=percentile(samples["reference"], 50),
        reference_name="`os.fork` and wait in the same context",
    )


def _judging(plan: Plan) -> Figure:
    count = plan.repetitions(1000)
    cases = [(f"{number}\n", str(number * (number - 1) // 2)) for number in range(count)]

    with Sandbox() as sandbox, TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(_PROGRAM)
        sandbox.judge(_PROGRAM, cases[:10])
        start = time.perf_counter()
        results = sandbox.judge(_PROGRAM, cases)
        seconds = time.perf_counter() - start
        assert {result.verdict for result in results} == {"accepted"}, json.dumps(cases[:1])
        plain = [
            milliseconds(
                lambda: subprocess.run(
                    [sys.executable, program], input=b"5\n", check=True, capture_output=True
                )
            )
            for _ in range(plan.repetitions(30))
        ]

    return Figure(
        name=f"judging {count:,} cases of a program that imports numpy",
        unit="cases/s",
        ours=count / seconds,
        samples=count,
        target=10,
        reference=1e3 / percentile(plain, 50),
        reference_name="`python program.py` a case",
        at_least=True,
    )


def run(sandbox: Sandbox, code: str) -> None:
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
