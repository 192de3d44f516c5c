"""Models of kept records: ended sandboxes, and the lines of a replay. Used in the server process."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fumehood.notebook.comparison import CellComparison, Difference
from fumehood.server.schemas.base import Body, Name, model_of
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.server.schemas.sandboxes import SandboxAnswer
from fumehood.values.kept_records import EndedSandbox, RecordList

EndedSandboxAnswer = model_of(EndedSandbox, other={"sandbox": SandboxAnswer})
RecordListAnswer = model_of(RecordList, other={"items": list[EndedSandboxAnswer]})  # type: ignore[valid-type]
_DifferenceAnswer = model_of(Difference)


class NewReplay(Body):
    """How a record is run again."""

    context_id: Name = Field("default", description="The context whose record it is.")
    template: Name | None = Field(None, description="What the new sandbox starts from; null: as before.")
    deterministic: bool = Field(
        False, description="Fix the seeds, Python's use of the system's randomness, and the time of day."
    )


class ReplayedLine(BaseModel):
    """The last line of a replay."""

    type: Literal["replayed"] = "replayed"
    cells: int = Field(description="Cells of the record.")
    same: int = Field(description="Cells that are known to have done the same.")
    first_difference: int | None = Field(description="The number of the first cell that differs, or null.")
    dropped_cells: int = Field(description="Cells that the record no longer had.")
    not_fixed: list[str] = Field(description="Sources of differences that a replay does not fix.")


REPLAY_LINES: tuple[type[BaseModel], ...] = (
    model_of(CellComparison, kind="cell", other={"differences": list[_DifferenceAnswer]}),  # type: ignore[valid-type]
    ReplayedLine,
    ProblemLine,
    KeepaliveLine,
)
