"""The scorecard: verdicts by row and column, ordinary work, the grade, and the machine.

Plain values, and their form as JSON. The grade is computed from the verdicts: weights by severity, and caps that no
number of passed rows lifts; a row that could not be tested counts neither for nor against. The successful attacks are
named; nothing else of a guest is kept, and no value names the machine or its user.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

from fumehood.scorecard.rows import ROWS, Severity
from fumehood.scorecard.scene import POLICY
from fumehood.values.sandbox import Isolation
from fumehood_jail import landlock, seccomp

Outcome = Literal["PASS", "FAIL", "N/A"]

WEIGHTS: dict[Severity, int] = {"E": 10, "L": 8, "X": 8, "A": 8, "H": 6, "P": 4, "S": 2}
# The best grade that a failure of this severity leaves.
CAPS: dict[Severity, str] = {"E": "D", "L": "D", "A": "D", "X": "C", "H": "B"}
# Rows with bounds that a server depends on, and the best grade when one could not be tested.
_UNTRIED_CAPS = {"R01": "B"}
# The lowest share of the weight for a grade.
_SHARES = (("A", 0.95), ("B", 0.85), ("C", 0.7), ("D", 0.5))
_WORST = "E"


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of all verdicts.

    Attributes:
        letter: A to E; `-` if nothing could be tested.
        score: Passed weight by applicable weight, from 0 to 1.
        passed: Rows that hold.
        failed: Ids of the rows that do not hold, by severity.
        not_applicable: Rows that could not be tested, with a reason.
    """

    letter: str
    score: float
    passed: int
    failed: dict[Severity, tuple[str, ...]]
    not_applicable: int


def grade(outcomes: Mapping[str, Outcome]) -> Grade:
    """Return the grade of verdicts, by the ids of their rows."""
    tried = [row for row in ROWS if outcomes.get(row.id) in ("PASS", "FAIL")]
    applicable = sum(WEIGHTS[row.severity] for row in tried)
    failed = [row for row in tried if outcomes[row.id] == "FAIL"]
    lost = sum(WEIGHTS[row.severity] for row in failed)
    score = 1 - lost / applicable if applicable else 0.0
    letters = [_letter(score), *(CAPS[row.severity] for row in failed if row.severity in CAPS)]
    letters += [cap for row, cap in _UNTRIED_CAPS.items() if outcomes.get(row) == "N/A"]
    return Grade(
        letter=max(letters) if applicable else "-",
        score=score,
        passed=len(tried) - len(failed),
        failed={
            severity: ids
            for severity in WEIGHTS
            if (ids := tuple(row.id for row in failed if row.severity == severity))
        },
        not_applicable=sum(outcome == "N/A" for outcome in outcomes.values()),
    )


def _letter(score: float) -> str:
    return next((letter for letter, share in _SHARES if score >= share), _WORST)


_LSMS = "/sys/kernel/security/lsm"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about the machine on which the verdicts depend.

    Attributes:
        kernel: Its release.
        architecture: Its architecture, as in uname(2).
        lsms: The security modules that are active, or why they are not known.
        landlock_abi: The version of Landlock; 0 where there is none.
        cgroups: The version of control groups that hold sandboxes, or why none do.
        user: `root` or `an ordinary user`.
        level: The level of isolation of the sandbox that was attacked.
        missing: Its layers that are not on, and why.
        policy_sha256: The compiled filter of system calls.
        version: The version of this product.
    """

    kernel: str
    architecture: str
    lsms: str
    landlock_abi: int
    cgroups: str
    user: str
    level: str
    missing: tuple[str, ...]
    policy_sha256: str
    version: str


def describe_machine(isolation: Isolation) -> MachineFacts:
    """Return the facts, for a sandbox with this isolation."""
    memory = next((layer for layer in isolation.layers if layer.name == "cgroup memory"), None)
    return MachineFacts(
        kernel=platform.release(),
        architecture=platform.machine(),
        lsms=_lsms(),
        landlock_abi=landlock.available_abi(),
        cgroups=memory.why if memory is not None else "none",
        user="root" if os.geteuid() == 0 else "an ordinary user",
        level=isolation.level,
        missing=tuple(f"{layer.name}: {layer.state}, {layer.why}" for layer in isolation.missing),
        policy_sha256=seccomp.policy_digest(seccomp.compile_policy(POLICY)),
        version=version("fumehood"),
    )


def _lsms() -> str:
    try:
        with open(_LSMS, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown: securityfs is not mounted"


# Ours first; the last is the control: an attack that does not succeed there proves nothing.
COLUMNS = ("fumehood", "bubblewrap", "subprocess")
CONTROL = "subprocess"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one row in one column.

    Attributes:
        outcome: PASS when no attack succeeded, although it does without a sandbox; FAIL when one did; N/A
            when it could not be tested.
        reason: The successful attack, or why it could not be tested.
        remark: The outcome with an option of ours; it does not improve the verdict.
    """

    outcome: Outcome
    reason: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """All verdicts of one machine.

    Attributes:
        machine: The machine.
        verdicts: The verdicts by column, then by the id of the row.
        work: By column: each piece of ordinary work, and "ok" or its error.
        absent: Columns that could not be tested, and why.
        seconds: The duration of the run.
    """

    machine: MachineFacts
    verdicts: Mapping[str, Mapping[str, Verdict]]
    work: Mapping[str, Mapping[str, str]]
    absent: Mapping[str, str]
    seconds: float

    def grade(self, column: str = "fumehood") -> Grade:
        """Return the grade of a column."""
        return grade({row: verdict.outcome for row, verdict in self.verdicts[column].items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON."""
        return {
            "machine": asdict(self.machine),
            "grade": {column: asdict(self.grade(column)) for column in self.verdicts},
            "rows": [
                {
                    "id": row.id,
                    "severity": row.severity,
                    "words": row.words,
                    "verdicts": {
                        column: asdict(verdicts[row.id])
                        for column, verdicts in self.verdicts.items()
                        if row.id in verdicts
                    },
                }
                for row in ROWS
                if row.harmless
            ],
            "work": {column: dict(done) for column, done in self.work.items()},
            "absent": dict(self.absent),
            "seconds": round(self.seconds, 1),
        }
