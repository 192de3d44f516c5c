"""Computes a grade from verdicts: weights by severity, and caps that no number of passed rows lifts.

Pure arithmetic of the host process. A row that could not be tested counts neither for nor against, and is listed beside
the grade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fumehood.scorecard.rows import ROWS, Severity

Outcome = Literal["PASS", "FAIL", "N/A"]

WEIGHTS: dict[Severity, int] = {"E": 10, "L": 8, "X": 8, "A": 8, "H": 6, "P": 4, "S": 2}
# The best grade that a failure of this severity leaves.
CAPS: dict[Severity, str] = {"E": "D", "L": "D", "A": "D", "X": "C", "H": "B"}
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
        failed: Ids of those that do not, by severity.
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
