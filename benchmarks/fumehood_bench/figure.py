"""One line of the table: what was measured, against what, what was promised, and whether it held.

Pure values, no measuring here. The invariant: a figure without samples is never a pass.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value beside its reference, its target and its floor.

    Attributes:
        name: What was measured.
        unit: Unit of `ours`, `reference` and `floor`.
        ours: Our value.
        samples: How many measurements stand behind `ours`.
        reference: The reference's value from the same run; None where the target is absolute.
        reference_name: What the reference is.
        target: The most that `ours / reference` may be, or `ours` itself where there is no reference; None where
            the value is only told.
        at_least: Whether `target` is the least instead of the most.
        floor: What the kernel charges for the barest form of the same thing; None where there is no such
            form.
        floor_name: What the floor is.
        note: What a reader must know to judge the number.
    """

    name: str
    unit: str
    ours: float
    samples: int
    target: float | None
    reference: float | None = None
    reference_name: str = ""
    floor: float | None = None
    floor_name: str = ""
    note: str = ""
    at_least: bool = False

    @property
    def achieved(self) -> float:
        """The number that is compared with the target."""
        return self.ours if self.reference is None else self.ours / self.reference

    @property
    def passed(self) -> bool:
        """Whether the target was met."""
        if self.samples == 0:
            return False

        if self.target is None:
            return True

        return self.achieved >= self.target if self.at_least else self.achieved <= self.target

    @property
    def above_floor(self) -> float | None:
        """How many times the floor `ours` is."""
        return self.ours / self.floor if self.floor else None

    def to_json(self) -> dict[str, object]:
        """All fields, and what follows from them."""
        return asdict(self) | {
            "achieved": self.achieved,
            "passed": self.passed,
            "above_floor": self.above_floor,
        }


def from_json(fields: dict[str, object]) -> Figure:
    """Rebuilds a figure that came out of a measuring process."""
    derived = {"achieved", "passed", "above_floor"}
    return Figure(**{name: value for name, value in fields.items() if name not in derived})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        quick: Fewer repetitions: good for seeing that everything runs, too few for a p99.
    """

    quick: bool = False

    def repetitions(self, full: int) -> int:
        """The number of repetitions for a measurement that takes `full` of them in a proper run."""
        return max(10, full // 10) if self.quick else full
