"""The demonstration of time travel: data with gaps and spikes, several ways to clean it from one point, the best kept.

Runs in the user's terminal, with the public names only. Nothing in it is simulated: the data is made in the sandbox,
the scores are computed there, rollbacks and crashes are real; if a step has another result, the demonstration prints it
and fails. Output of the guest is escaped before it is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fumehood.api.explore import explore
from fumehood.api.sandbox import Sandbox
from fumehood.errors import SandboxError
from fumehood.text import visible_line

_T = TypeVar("_T")
Say = Callable[[str], None]

_LOAD = """
import csv, math, random, statistics
dice = random.Random(7)
truth = [20 + 5 * math.sin(hour / 24 * 2 * math.pi) for hour in range(20_000)]
readings = [value + dice.gauss(0, 0.3) for value in truth]
for place in dice.sample(range(20_000), 1_500): readings[place] = None
for place in dice.sample(range(20_000), 300): readings[place] = 85.0
with open('readings.csv', 'w', newline='') as file:
    csv.writer(file).writerows(enumerate(readings))
def error():
    return statistics.fmean(abs(one - other) for one, other in zip(readings, truth))
f'{len(readings):,} readings, {readings.count(None):,} missing, {readings.count(85.0):,} spikes'
"""
_SAVE = """
with open('readings.csv', 'w', newline='') as file:
    csv.writer(file).writerows(enumerate(readings))
round(error(), 4)
"""
_STRATEGIES = {
    "mean": """
mean = statistics.fmean(value for value in readings if value is not None)
readings = [mean if value is None else value for value in readings]
""",
    "hold last": """
for place, value in enumerate(readings):
    if value is None: readings[place] = readings[place - 1]
""",
    "median": """
def near(place):
    return [value for value in readings[max(0, place - 3):place + 4] if value is not None]
readings = [value if value is not None and value < 50 else statistics.median(near(place))
            for place, value in enumerate(readings)]
""",
}
_SPOIL = "readings.clear(); import os; os.remove('readings.csv'); raise ValueError('that was the wrong file')"
_CRASH = "import os; os.kill(os.getpid(), 9)"
_SMOOTH = """
readings = [statistics.fmean(readings[max(0, place - {width}):place + {width} + 1]) for place in range(len(readings))]
"""
_WIDTHS = (1, 2, 4)
_LOOK = """
import os
f'{len(readings):,} readings, file of {os.path.getsize("readings.csv"):,} bytes, error {error():.4f}'
"""


@dataclass(slots=True)
class _State:
    """A node of the tree that is drawn at the end."""

    name: str
    note: str = ""
    below: list[_State] = field(default_factory=list)


class TimeTravelShow:
    """One run of the demonstration.

    Args:
        say: Prints a line.
        pause_seconds: The pause after each step, for reading.
    """

    def __init__(self, say: Say, pause_seconds: float = 0.0) -> None:
        self._say = say
        self._pause_seconds = pause_seconds
        self._steps: list[tuple[str, float]] = []

    def run(self) -> None:
        """Runs all steps.

        Raises:
            SandboxError: A step had another result.
        """
        with self._timed("a sandbox", Sandbox) as sandbox:
            self._tell(f"load       {self._cell(sandbox, 'load the data', _LOAD)}")
            self._timed("checkpoint", lambda: sandbox.checkpoint("loaded"))
            self._tell(
                "checkpoint \N{LEFT DOUBLE QUOTATION MARK}loaded\N{RIGHT DOUBLE QUOTATION MARK}: variables and files"
            )
            root = _State("loaded")
            best = self._try_all(sandbox, root)
            kept = self._keep(sandbox, best, root)
            self._undo(sandbox, kept)
            self._bring_back(sandbox, best, kept)
            self._explore(sandbox, kept)
            self._draw(root)
            self._tabulate()

    # -- steps

    def _try_all(self, sandbox: Sandbox, root: _State) -> str:
        errors = {}

        for name, code in _STRATEGIES.items():
            self._timed("rollback", lambda: sandbox.rollback("loaded"))
            errors[name] = float(self._cell(sandbox, f"clean: {name}", code + _SAVE))
            self._timed("checkpoint", partial(sandbox.checkpoint, name))
            root.below.append(_State(name, f"error {errors[name]:.4f}"))
            self._tell(f"try        {name}: error {errors[name]:.4f}")

        return min(errors, key=lambda name: errors[name])

    def _keep(self, sandbox: Sandbox, best: str, root: _State) -> _State:
        self._timed("rollback", lambda: sandbox.rollback(best))
        kept = next(state for state in root.below if state.name == best)
        kept.note += ", kept"
        self._tell(f"keep       {best}: {self._cell(sandbox, 'look', _LOOK)}")
        return kept

    def _undo(self, sandbox: Sandbox, kept: _State) -> None:
        before = self._cell(sandbox, "look", _LOOK)
        execution = self._timed(
            "a transaction that fails", lambda: sandbox.run_code(_SPOIL, transactional=True)
        )
        transaction = execution.transaction
        self._expect(
            transaction is not None and transaction.outcome == "rolled_back", "the transaction was not undone"
        )
        self._expect(self._cell(sandbox, "look", _LOOK) == before, "something is left of the transaction")
        said = "" if execution.error is None else visible_line(execution.error.value)
        kept.below.append(_State("a transaction", "undone"))
        self._tell(f"undo       code that deleted everything and said {said!r}: as if it had never run")

    def _bring_back(self, sandbox: Sandbox, best: str, kept: _State) -> None:
        before = self._cell(sandbox, "look", _LOOK)
        execution = self._timed("a crash", lambda: sandbox.run_code(_CRASH))
        self._expect(execution.state_lost, "the context did not crash")
        kept.below.append(_State("a crash", "killed with SIGKILL, brought back"))
        self._timed("rollback", lambda: sandbox.rollback(best))
        self._expect(self._cell(sandbox, "look", _LOOK) == before, "the crashed context did not come back")
        self._tell("crash      the context was killed, and is back with all it held")

    def _explore(self, sandbox: Sandbox, kept: _State) -> None:
        ways = {_SMOOTH.format(width=width) + _SAVE: f"smooth by {2 * width + 1}" for width in _WIDTHS}
        errors: dict[str, float] = {}
        before = self._cell(sandbox, "look", _LOOK)

        with self._timed("three forks, side by side", lambda: explore(sandbox, ways)) as branches:
            self._expect(self._cell(sandbox, "look", _LOOK) == before, "a fork has changed its parent")

            for branch in branches:
                errors[branch.code] = float(branch.execution.text or "nan")
                self._tell(f"fork       {ways[branch.code]}: error {errors[branch.code]:.4f}")

            best = min(branches, key=lambda branch: errors[branch.code])
            self._timed("adopt", lambda: branches.keep(best))

        for code, error in errors.items():
            note = f"error {error:.4f}, a fork{', kept' if code == best.code else ''}"
            kept.below.append(_State(ways[code], note))

        self._tell(f"adopt      {ways[best.code]}: {self._cell(sandbox, 'look', _LOOK)}")

    # -- helpers

    def _cell(self, sandbox: Sandbox, step: str, code: str) -> str:
        execution = self._timed(step, lambda: sandbox.run_code(code))

        if execution.error is not None:
            raise SandboxError(f"the show stopped at {step!r}: {visible_line(execution.error.value)}")

        return visible_line((execution.text or "").strip("'"))

    def _timed(self, step: str, work: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        done = work()
        self._steps.append((step, time.perf_counter() - started))
        return done

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise SandboxError(f"the show failed: {otherwise}")

    def _tell(self, line: str) -> None:
        self._say(line)
        time.sleep(self._pause_seconds)

    def _draw(self, root: _State) -> None:
        self._say("")

        for line in _tree(root):
            self._say(f"  {line}")

        time.sleep(self._pause_seconds)

    def _tabulate(self) -> None:
        steps: dict[str, list[float]] = {}

        for step, seconds in self._steps:
            steps.setdefault(step, []).append(seconds * 1000)

        width = max(map(len, steps))
        self._say(f"\n  {'step'.ljust(width)}  times  milliseconds, each at most")

        for step, times in steps.items():
            self._say(f"  {step.ljust(width)}  {len(times):5}  {max(times):12.1f}")


def _tree(state: _State) -> list[str]:
    """Draws a state and its results."""
    lines = [f"{state.name}  {state.note}".rstrip()]

    for position, child in enumerate(state.below):
        is_last = position == len(state.below) - 1
        first, *rest = _tree(child)
        lines.append(f"{'└──' if is_last else '├──'} {first}")
        lines.extend(f"{'   ' if is_last else '│  '} {line}" for line in rest)

    return lines
