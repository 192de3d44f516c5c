"""What the tool for models costs on top of `run_code`, call by call in the same sandbox.

Both sides take turns, each call beside one of the other's, so that the difference is that of two neighbours. The tool
looks for new files, and writes the text that a model reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from fumehood import Sandbox
from fumehood.llm import CodeInterpreter
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import in_turn, milliseconds, percentile

_CODE = "print('done')\ny = 1"
_FILES = 20


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of the difference of two neighbouring calls."""
    with Sandbox() as sandbox:
        # A tool that is used has files beside it.
        for number in range(_FILES):
            sandbox.files.write(f"/mnt/data/{number}.csv", "a,b\n1,2\n")

        interpreter = CodeInterpreter(sandbox)
        interpreter.run(_CODE)
        samples = in_turn(
            plan.repetitions(1000),
            block=1,
            plain=lambda: milliseconds(lambda: sandbox.run_code(_CODE)),
            tool=lambda: milliseconds(lambda: interpreter.run(_CODE)),
        )

    extra = [tool - plain for tool, plain in zip(samples["tool"], samples["plain"], strict=True)]
    yield Figure(
        name=f"a call of the tool for models, beyond run_code, {_FILES} files, p50",
        unit="ms",
        ours=percentile(extra, 50),
        samples=len(extra),
        target=1.0,
        floor=percentile(samples["plain"], 50),
        floor_name="`run_code` by itself",
    )
