"""What the cells of one call may give together."""

from __future__ import annotations

import asyncio
from typing import Any

from fumehood.dialects.fusion.bodies import RunJupyterCall
from fumehood.dialects.fusion.notebook import run_cells
from fumehood.values.execution import Execution, LogEntry, Logs
from fumehood.values.requests import ExecuteRequest
from fumehood.values.results import Result

MIB = 1 << 20


class _Backend:
    """Gives as many MiB as the code says, half of it printed and half of it shown."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        self.ran.append(request.code)
        half = int(request.code) * MIB // 2
        logs = Logs(entries=(LogEntry(stream="stdout", text="x" * half, at_seconds=0.0),))
        results = (Result(parts={"text/plain": b"y" * half}),)
        return Execution(id="e", context_id="c", logs=logs, results=results)


def test_cells_beyond_the_bound_run_and_give_an_error() -> None:
    """What fits is kept, whatever came before it."""
    backend: Any = _Backend()
    call = RunJupyterCall(cells=["30", "40", "20", "2", "40"])
    cells, is_over = asyncio.run(run_cells(backend, "s", call))

    assert backend.ran == ["30", "40", "20", "2", "40"]
    assert not is_over
    assert [len(cell["stdout"]) // MIB for cell in cells] == [15, 20, 0, 1, 0]
    assert [len(cell["display"]) for cell in cells] == [1, 1, 0, 1, 0]
    (error,) = cells[2]["error"]
    assert error["ename"] == "OutputLimitExceeded"
    assert "20.0 MiB" in error["evalue"]
    assert [bool(cell["error"]) for cell in cells] == [False, False, True, False, True]
