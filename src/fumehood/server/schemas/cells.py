"""Models of the answers about executions in a sandbox."""

from __future__ import annotations

from fumehood.server.schemas.base import model_of
from fumehood.server.schemas.executions import ExecutionAnswer
from fumehood.values.looking import Cell, CellPage

CellAnswer = model_of(Cell, other={"execution": ExecutionAnswer | None})
CellPageAnswer = model_of(CellPage, other={"items": list[CellAnswer]})  # type: ignore[valid-type]
