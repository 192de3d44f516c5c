"""`/run_jupyter`: cells, one after the other, in one live context of a sandbox of its own.

A cell that raises, or exceeds its time, does not keep the later ones from running.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from fumehood.bounds import MIB, SLOW_READER_BYTES
from fumehood.cancellation import complete
from fumehood.dialects.fusion.bodies import RunJupyterCall, memory_bytes
from fumehood.dialects.fusion.run_code import fetched
from fumehood.errors import FumehoodError
from fumehood.port.backend import Backend
from fumehood.server.principal import Principal
from fumehood.server.programs import ProgramSandbox, limits_within
from fumehood.server.services import Services
from fumehood.values.execution import Execution
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.results import Result

_AROUND_SECONDS = 120.0
_LEAST_SECONDS = 0.05
_RESULT_BYTES = 256


async def run_jupyter(services: Services, principal: Principal, call: RunJupyterCall) -> dict[str, Any]:
    """Runs cells and returns the answer's body.

    Raises:
        FumehoodError: The cells could not be run.
    """
    backend = services.backend_for(principal)
    call = _within(principal, call)
    spec = SandboxSpec(
        limits=limits_within(principal, {"memory_bytes": memory_bytes(call)}),
        timeout_seconds=call.total_seconds + _AROUND_SECONDS,
    )

    async with services.queue.place(principal.key_id, services.settings.queue_seconds):
        info = await backend.create(spec)
        try:
            bench = ProgramSandbox(backend, info)

            for path, content in call.files.items():
                await bench.write(path, content)

            begun = time.monotonic()
            cells, is_over = await run_cells(backend, info.id, call)
            seconds = time.monotonic() - begun
            files = await fetched(bench, HOME_PATH, call.fetch_files)
        finally:
            await complete(backend.kill(info.id, wait=False))

    return {
        "status": "Failed" if is_over else "Success",
        "message": "",
        "driver": {
            "status": "TimeLimitExceeded" if is_over else "Finished",
            "execution_time": seconds,
            "return_code": None if is_over else 0,
            "stdout": "",
            "stderr": "",
        },
        "cells": cells,
        "executor_pod_name": None,
        "files": files,
    }


def jupyter_error_answer(error: FumehoodError) -> dict[str, Any]:
    """Returns the answer for an error outside of the cells."""
    return {
        "status": "SandboxError",
        "message": error.message,
        "driver": None,
        "cells": [],
        "executor_pod_name": None,
        "files": {},
    }


def _within(principal: Principal, call: RunJupyterCall) -> RunJupyterCall:
    """Returns the call with a time limit for its cells within the caller's bounds; a chosen limit is not cut."""
    policy = principal.policy

    longest = policy.max_limits.get("wall_seconds")

    if longest is None:
        return call

    if call.cell_seconds:
        policy.check_limit("wall_seconds", call.cell_seconds)

    return call.model_copy(update={"cell_seconds": call.cell_seconds or longest})


async def run_cells(
    backend: Backend, sandbox_id: str, call: RunJupyterCall
) -> tuple[list[dict[str, Any]], bool]:
    """Returns the cells that ran, and whether the total time was over before the last had ended.

    A cell whose output does not fit beside that of the others has an error in place of it.
    """
    ends = time.monotonic() + call.total_seconds
    room_bytes = SLOW_READER_BYTES
    cells: list[dict[str, Any]] = []

    for code in call.cells:
        left = ends - time.monotonic()

        if left <= 0:
            return cells, True

        seconds = min(left, call.cell_seconds) if call.cell_seconds else left
        request = ExecuteRequest(code=code, wall_seconds=max(_LEAST_SECONDS, seconds))
        execution = await backend.run(sandbox_id, request)
        size_bytes = _size_of(execution)
        fits = size_bytes <= room_bytes
        room_bytes -= size_bytes if fits else 0
        cells.append(_cell(execution) if fits else _left_out(size_bytes))

        if execution.error is not None and execution.error.kind == "time_limit" and seconds == left:
            return cells, True

    return cells, False


def _cell(execution: Execution) -> dict[str, Any]:
    error = execution.error
    return {
        "stdout": "".join(execution.logs.stdout),
        "stderr": "".join(execution.logs.stderr),
        "display": [_display(result) for result in execution.results],
        "error": []
        if error is None
        else [{"ename": error.name, "evalue": error.value, "traceback": error.traceback.splitlines()}],
    }


def _left_out(size_bytes: int) -> dict[str, Any]:
    value = (
        f"the cell gave {size_bytes / MIB:.1f} MiB; all cells of a call keep {SLOW_READER_BYTES // MIB} MiB"
    )
    return {
        "stdout": "",
        "stderr": "",
        "display": [],
        "error": [{"ename": "OutputLimitExceeded", "evalue": value, "traceback": []}],
    }


def _size_of(execution: Execution) -> int:
    size_bytes = sum(len(entry.text) for entry in execution.logs.entries)
    size_bytes += sum(_RESULT_BYTES + result.size_bytes for result in execution.results)

    if (error := execution.error) is not None:
        size_bytes += len(error.name) + len(error.value) + len(error.traceback)

    return size_bytes


def _display(result: Result) -> dict[str, Any]:
    """Returns a MIME bundle as Jupyter writes it: text as text, JSON as itself, everything else as base64."""
    return {mime: _part(mime, part) for mime, part in result.parts.items()}


def _part(mime: str, part: bytes) -> str:
    if mime.startswith("text/") or mime.endswith(("+xml", "json", "javascript")):
        return part.decode("utf-8", "replace")

    return base64.b64encode(part).decode()
