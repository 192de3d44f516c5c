"""The scorecard: verdicts by row and column, ordinary work, the grade, and the machine.

Plain values of the host process, and their form as JSON. The successful attacks are named; nothing else of a guest is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fumehood.scorecard.grading import Grade, Outcome, grade
from fumehood.scorecard.machine import Machine
from fumehood.scorecard.rows import ROWS

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
        verdicts: By column, then by the id of the row.
        work: By column: each piece of ordinary work, and "ok" or its error.
        absent: Columns that could not be tested, and why.
        seconds: How long it took.
    """

    machine: Machine
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
