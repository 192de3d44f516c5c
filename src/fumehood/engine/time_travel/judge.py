"""The judge: runs one program once for each input, each time in a process that has imported everything.

For Python a separate context imports what the program imports and compiles it, once; a checkpoint of that is made, and
each case is a fork of the checkpoint: it has its own memory, standard input and limits, and is killed with all
processes that it has started. A program in another language is compiled once, and each case is a process of it
(`program_cases`). At the end the files of the sandbox are restored. If a program damages what its cases need, this is
reported as their verdict, and must not raise an error of the judge.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Literal

from fumehood.cancellation import cancel_and_wait, finish
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextOwner, ContextProcess, ContextStartError
from fumehood.engine.contexts.runner import has_exited
from fumehood.engine.contexts.usage import ProcessMeter
from fumehood.engine.time_travel.checkpoints import HeldCheckpoint, LiveCheckpoints
from fumehood.engine.time_travel.program_cases import ProgramCases
from fumehood.errors import CheckpointError
from fumehood.values.events import Event
from fumehood.values.execution import Execution
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.languages import PYTHON
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo

_PREPARE_SECONDS = 60.0
# Runs once: imports what the program imports at its top level, and compiles it. A failure here is repeated, and
# reported, in each case.
_PREPARE = """
def _judge(source):
    import ast, atexit, builtins, linecache, resource, sys, threading, traceback, types
    from _sitebuiltins import Quitter

    def run(program, memory_bytes):
        if memory_bytes:
            with open("/proc/self/status") as file:
                held = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))

            resource.setrlimit(resource.RLIMIT_DATA, (held + memory_bytes,) * 2)

        # What is pickled, and what looks names up, asks for the module.
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__, main.__builtins__ = "program.py", builtins
        builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")
        sys.excepthook = traceback.print_exception
        try:
            try:
                exec(program or compile(source, "program.py", "exec", dont_inherit=True), main.__dict__)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                # As the interpreter does it, without the frame of this function.
                sys.excepthook(type(error), error, error.__traceback__.tb_next)
                end(main.__dict__)
                raise
        except SystemExit as ended:
            if not isinstance(ended.code, (int, type(None))):
                print(ended.code, file=sys.stderr)

            end(main.__dict__)

            if ended.code not in (None, 0):
                raise
        else:
            end(main.__dict__)

    def end(names):
        # As the interpreter does it: threads that are no daemons are waited for, then comes what was registered, and
        # then what is still to be written, also by what ends with the last name for it.
        for call in reversed(getattr(threading, "_threading_atexits", ())):
            call()

        while True:
            others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]

            if not others:
                break

            others[0].join()

        atexit._run_exitfuncs()

        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass

        # Daemons would miss the names; the interpreter stops them before.
        while names and threading.active_count() == 1:
            names.popitem()

    # What ends here is no session of IPython.
    atexit.unregister(get_ipython().atexit_operations)
    # Where tracebacks look for its lines.
    lines = [line + "\\n" for line in source.split("\\n")]
    linecache.cache["program.py"] = len(source), None, lines, "program.py"
    try:
        program = compile(source, "program.py", "exec", dont_inherit=True)
        tree = ast.parse(source, "program.py")
    except Exception:
        return lambda memory_bytes: run(None, memory_bytes)

    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            try:
                exec(compile(ast.Module([node], []), "program.py", "exec"), {{"__name__": "__main__"}})
            except BaseException:
                pass

    return lambda memory_bytes: run(program, memory_bytes)

_judge = _judge({source!r})
"""
_NOT_RUN = CaseRun(
    stdout="",
    error="CaseNotRun: no process could be made for it: the program has killed or stopped the one that its cases are "
    "forked from, or memory or processes ran out",
    kind="runtime_error",
)


class _Cases:
    """The cases of one request: pending ones, and the results of the others.

    Args:
        stdins: Their standard inputs.
        workers: The number of tasks that take cases, and retry a case that one of them puts back.
    """

    def __init__(self, stdins: Sequence[str], workers: int) -> None:
        self.waiting = deque(enumerate(stdins))
        self.workers = workers
        self.runs: dict[int, CaseRun] = {}


class Judge:
    """Judges programs in one sandbox.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        checkpoints: Its checkpoints.
    """

    def __init__(self, sandbox: ContextOwner, checkpoints: LiveCheckpoints) -> None:
        self._sandbox = sandbox
        self._checkpoints = checkpoints

    async def run(self, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Runs all cases; returns their results in order.

        Raises:
            CheckpointError: The program could not be prepared.
            LanguageUnavailableError: The template lacks its language.
        """
        kept = await self._prepare(request.code if request.language == PYTHON.name else "")
        programs = (
            None if request.language == PYTHON.name else ProgramCases(self._sandbox, request, _case_run)
        )
        workers: list[asyncio.Task[None]] = []
        try:
            if programs is not None and (failed := await programs.compile()) is not None:
                return (failed,) * len(request.stdins)

            return await self._run_all(kept, request, programs, workers)
        finally:
            await finish(self._tidy_up(workers, kept, programs))

    async def _run_all(
        self,
        kept: HeldCheckpoint,
        request: JudgeRequest,
        programs: ProgramCases | None,
        workers: list[asyncio.Task[None]],
    ) -> tuple[CaseRun, ...]:
        """Runs the cases; adds the tasks that run them to `workers`."""
        count = min(request.concurrency or self._processors(), len(request.stdins))
        cases = _Cases(request.stdins, count)
        workers += [asyncio.ensure_future(self._work(kept, request, cases, programs)) for _ in range(count)]
        await asyncio.gather(*workers)
        return tuple(cases.runs[number] for number in range(len(request.stdins)))

    def _processors(self) -> int:
        return max(1, round(self._sandbox.limits.cpu_cores or os.cpu_count() or 1))

    async def _prepare(self, source: str) -> HeldCheckpoint:
        """Makes the checkpoint of a Python program; it includes the files."""
        context = LiveContext(self._sandbox, ContextInfo(id="judge", language="python", cwd=HOME_PATH))
        code = _PREPARE.format(source=source.removeprefix("\ufeff"))
        try:
            asked = ExecuteRequest(code=code, silent=True, wall_seconds=_PREPARE_SECONDS)
            execution = await context.execute(asked, _unheard)

            if execution.error is not None:
                reason = "the program cannot be prepared"
                raise CheckpointError(reason=f"{reason}: {execution.error.value}", logged=reason)

            async with context.turn() as process:
                taking = self._take(context, process)
                return await context.finish(taking, self._checkpoints.forget)
        finally:
            await context.kill()

    async def _take(self, context: LiveContext, process: ContextProcess) -> HeldCheckpoint:
        """Makes the checkpoint and ends its context in one task, so that a cancellation in between loses nothing."""
        kept = await self._checkpoints.take_within_turn(context, process)
        await context.kill()
        return kept

    async def _work(
        self, kept: HeldCheckpoint, request: JudgeRequest, cases: _Cases, programs: ProgramCases | None
    ) -> None:
        while cases.waiting:
            number, stdin = cases.waiting.popleft()
            is_alone = cases.workers == 1
            run = await (self._run_case(kept, request, stdin) if programs is None else programs.run(stdin))

            if run is not None:
                cases.runs[number] = run
            elif is_alone:
                cases.runs[number] = _NOT_RUN
                # Otherwise each remaining case would wait for the time-out of a stopped checkpoint.
                kept.line.close()
            else:
                # There may be room for fewer at once.
                cases.waiting.appendleft((number, stdin))

                if cases.workers > 1:
                    break

        cases.workers -= 1

    async def _run_case(self, kept: HeldCheckpoint, request: JudgeRequest, stdin: str) -> CaseRun | None:
        """Runs a case; returns None when no process can be made for it."""
        info = ContextInfo(id="judge", language="python", cwd=HOME_PATH)
        # Several cases run at once: the usage of the whole sandbox is useless for one of them.
        context = LiveContext(self._sandbox, info, ProcessMeter(self._sandbox.meter))
        asked = ExecuteRequest(
            code=f"_judge({request.memory_bytes or 0})",
            silent=True,
            wall_seconds=request.wall_seconds,
            stdin=stdin,
        )
        try:
            async with context.turn_alone():
                if not await context.revive_within_turn(kept.line, kept.conversation, _files_stay):
                    return None

                return _case_run(await context.execute_within_turn(asked, _unheard))
        except ContextStartError:
            return None
        finally:
            await context.kill()

    async def _tidy_up(
        self, workers: list[asyncio.Task[None]], kept: HeldCheckpoint, programs: ProgramCases | None
    ) -> None:
        await cancel_and_wait(*workers)

        if programs is not None:
            await programs.close()

        try:
            await self._checkpoints.put_files_back(kept)
        finally:
            await self._checkpoints.forget(kept)


async def _files_stay(_pid: int) -> None:
    """Restores nothing: the cases share the files until all are done."""


def _unheard(_event: Event) -> None:
    """Discards the event."""


def _case_run(execution: Execution) -> CaseRun:
    error = execution.error

    if error is not None and has_exited(error, status=0):
        error = None  # by `os._exit(0)`

    return CaseRun(
        stdout="".join(execution.logs.stdout),
        stderr="".join(execution.logs.stderr),
        error="" if error is None else f"{error.name}: {error.value}",
        kind="ok" if error is None else _kind(error.kind, error.name),
        usage=execution.usage,
        truncated=execution.truncated,
    )


def _kind(kind: str, name: str) -> Literal["time_limit", "memory_limit", "runtime_error"]:
    if kind in ("time_limit", "cpu_limit"):
        return "time_limit"

    return "memory_limit" if kind == "out_of_memory" or name == "MemoryError" else "runtime_error"
