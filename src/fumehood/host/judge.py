"""The judge: runs one program once for each input, each time in a process of its own that has imported everything.

Runs in the host process, on the engine's loop. A context of its own imports what the program imports and compiles
it, once; a checkpoint of that is made, and each case is a fork of the checkpoint: own memory, own standard input,
own limits, killed with all that it has started. The files of the sandbox are as before when all is done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any, Literal, cast

from fumehood.backends.requests import ExecuteRequest
from fumehood.checkpoint_errors import CheckpointError, CheckpointLostError
from fumehood.events import Event
from fumehood.execution import Execution
from fumehood.host.context_link import Running
from fumehood.host.context_process import ContextHost, ContextProcess
from fumehood.host.live_checkpoints import Kept, LiveCheckpoints
from fumehood.host.live_context import LiveContext
from fumehood.host.measuring import Meter, Reading
from fumehood.judging import CaseRun, JudgeRequest
from fumehood.limits import Usage
from fumehood.models import ContextInfo

_HOME = "/home/user"
_PREPARE_SECONDS = 60.0
# Runs once: imports what the program imports at its top, and compiles it. What fails here fails again, in each case.
_PREPARE = """
def _judge(source):
    import ast, resource, sys, traceback

    def run(program, memory_bytes):
        if memory_bytes:
            with open("/proc/self/status") as file:
                held = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))

            resource.setrlimit(resource.RLIMIT_DATA, (held + memory_bytes,) * 2)

        names = {{"__name__": "__main__", "__file__": "program.py", "__builtins__": __builtins__}}
        try:
            exec(program or compile(source, "program.py", "exec"), names)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # As the interpreter does it, without the frame of this function.
            traceback.print_exception(type(error), error, error.__traceback__.tb_next)
            raise

    try:
        tree = ast.parse(source, "program.py")
    except SyntaxError:
        return lambda memory_bytes: run(None, memory_bytes)

    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            try:
                exec(compile(ast.Module([node], []), "program.py", "exec"), {{"__name__": "__main__"}})
            except BaseException:
                pass

    program = compile(tree, "program.py", "exec")
    return lambda memory_bytes: run(program, memory_bytes)

_judge = _judge({source!r})
"""


class Judge:
    """Judges programs in one sandbox.

    Args:
        host: The sandbox.
        checkpoints: Its checkpoints.
    """

    def __init__(self, host: ContextHost, checkpoints: LiveCheckpoints) -> None:
        self._host = host
        self._checkpoints = checkpoints

    async def run(self, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Runs all cases; returns what each did, in their order.

        Raises:
            CheckpointError: The program could not be prepared.
        """
        kept = await self._prepare(request)
        runs: dict[int, CaseRun] = {}
        cases = iter(enumerate(request.stdins))
        count = min(request.concurrency or self._processors(), len(request.stdins))
        workers = [asyncio.ensure_future(self._work(kept, request, cases, runs)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._tidy_up(workers, kept)))

        return tuple(runs[number] for number in range(len(request.stdins)))

    def _processors(self) -> int:
        return max(1, round(self._host.limits.cpu_cores or os.cpu_count() or 1))

    async def _prepare(self, request: JudgeRequest) -> Kept:
        context = LiveContext(self._host, ContextInfo(id="judge", language="python", cwd=_HOME))
        code = _PREPARE.format(source=request.code)
        try:
            asked = ExecuteRequest(code=code, silent=True, wall_seconds=_PREPARE_SECONDS)
            execution = await context.execute(asked, _unheard)

            if execution.error is not None:
                raise CheckpointError(reason=f"the program cannot be prepared: {execution.error.value}")

            async with context.turn() as process:
                taking = self._take(context, process)
                return await context.finish(taking, self._checkpoints.forget)
        finally:
            await context.kill()

    async def _take(self, context: LiveContext, process: ContextProcess) -> Kept:
        """Makes the checkpoint and ends its context, in one: whoever gives up in between would lose the former."""
        kept = await self._checkpoints.take_within_turn(context, process)
        await context.kill()
        return kept

    async def _work(
        self,
        kept: Kept,
        request: JudgeRequest,
        cases: Iterator[tuple[int, str]],
        runs: dict[int, CaseRun],
    ) -> None:
        for number, stdin in cases:
            runs[number] = await self._run_case(kept, request, stdin)

    async def _run_case(self, kept: Kept, request: JudgeRequest, stdin: str) -> CaseRun:
        host = cast("ContextHost", _CaseHost(self._host))
        context = LiveContext(host, ContextInfo(id="judge", language="python", cwd=_HOME))

        asked = ExecuteRequest(
            code=f"_judge({request.memory_bytes or 0})",
            silent=True,
            wall_seconds=request.wall_seconds,
            stdin=stdin,
        )
        try:
            async with context.turn_alone():
                if not await context.revive_within_turn(kept.line, kept.conversation, _files_stay):
                    raise CheckpointLostError(checkpoint_id="judge")

            return _case_run(await context.execute(asked, _unheard))
        finally:
            await context.kill()

    async def _tidy_up(self, workers: list[asyncio.Task[None]], kept: Kept) -> None:
        for worker in workers:
            worker.cancel()

        await asyncio.gather(*workers, return_exceptions=True)
        try:
            await self._checkpoints.put_files_back(kept)
        finally:
            await self._checkpoints.forget(kept)


class _CaseHost:
    """The sandbox of a case: as the whole one, but for what is counted."""

    def __init__(self, host: ContextHost) -> None:
        self._host = host
        self.meter = _OwnMeter(host.meter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


class _OwnMeter:
    """Several cases run at once: each is measured by what its own process says, as the whole sandbox cannot tell."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def open(self) -> None:
        """Opens nothing."""

    def begin(self) -> Reading:
        """Reads the clock alone."""
        return self._meter.begin_alone()

    async def cpu_seconds_since(self, reading: Reading) -> float:
        """What the sandbox has used: an upper bound."""
        return await self._meter.cpu_seconds_since(reading)

    def end(
        self, reading: Reading, running: Running, request: ExecuteRequest, reply: dict[str, Any] | None
    ) -> Usage:
        """Computes what the process says."""
        return self._meter.end_alone(reading, running, request, reply)


async def _files_stay(_pid: int) -> None:
    """Cases share the files, until all are done."""


def _unheard(_event: Event) -> None:
    """Nobody follows."""


def _case_run(execution: Execution) -> CaseRun:
    error = execution.error
    return CaseRun(
        stdout="".join(execution.logs.stdout),
        stderr="".join(execution.logs.stderr),
        error="" if error is None else f"{error.name}: {error.value}",
        kind="ok" if error is None else _kind(error.kind, error.name),
        usage=execution.usage,
    )


def _kind(kind: str, name: str) -> Literal["time_limit", "memory_limit", "runtime_error"]:
    if kind in ("time_limit", "cpu_limit"):
        return "time_limit"

    return "memory_limit" if kind == "out_of_memory" or name == "MemoryError" else "runtime_error"
