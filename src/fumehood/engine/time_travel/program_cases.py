"""The cases of a judged program in a language other than Python: compiled once, then one process for each case.

Contexts of the language, one for each case that runs at the same time, start the processes, in a folder that they
share. Programs see files written by earlier cases; the judge restores the sandbox's files at the end.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import replace

from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextOwner, ContextStartError
from fumehood.engine.contexts.usage import ProcessMeter
from fumehood.values.events import Event
from fumehood.values.execution import Execution
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.languages import ProgramSteps, known_language, whole_program
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo

_COMPILE_SECONDS = 60.0
# Messages of language runtimes when the system refuses them memory: C++, Rust, Go, Java and C#, Node, R, Ruby and Lua.
# A program that prints one itself only changes the kind of its own failure.
_REFUSED_MEMORY = re.compile(
    r"std::bad_alloc|memory allocation of \d+ bytes failed|out of memory|OutOfMemory|annot allocate (?:memory|vector)"
    r"|MemoryError|NoMemoryError|[Mm]emory exhausted|not enough memory"
)
_LOOKED_AT_CHARS = 4_000


class ProgramCases:
    """The processes of one judged program.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        request: The program.
        as_run: Converts an execution to the result of a case.
    """

    def __init__(
        self, sandbox: ContextOwner, request: JudgeRequest, as_run: Callable[[Execution], CaseRun]
    ) -> None:
        self._sandbox = sandbox
        self._request = request
        self._as_run = as_run
        source = whole_program(known_language(request.language))
        folder = f"/tmp/.judge-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
        self._steps = ProgramSteps(source=source, folder=folder)
        self._contexts: list[LiveContext] = []
        self._idle: list[LiveContext] = []

    async def compile(self) -> CaseRun | None:
        """Compiles the program; returns the result of every case if it cannot be compiled.

        Raises:
            LanguageUnavailableError: The template lacks the language.
        """
        context = self._new_context(replace(self._steps, is_run=False))

        if not self._steps.source.compile:
            # For a language without a compile step this shows whether it is installed.
            await context.start()
            return None

        run = self._as_run(await self._execute(context, "", _COMPILE_SECONDS))
        return None if run.kind == "ok" else replace(run, kind="runtime_error")

    async def run(self, stdin: str) -> CaseRun | None:
        """Runs one case; returns None when no process can be made for it."""
        context = self._idle.pop() if self._idle else self._new_context(self._case_steps())
        try:
            return self._judged(self._as_run(await self._execute(context, stdin, self._request.wall_seconds)))
        except ContextStartError:
            return None
        finally:
            self._idle.append(context)

    async def close(self) -> None:
        """Kills the processes."""
        await asyncio.gather(*(context.kill() for context in self._contexts))

    def _judged(self, run: CaseRun) -> CaseRun:
        """Returns the result of a case; a failure for lack of memory is reported as such."""
        if run.kind != "runtime_error" or self._request.memory_bytes is None:
            return run

        is_refused = _REFUSED_MEMORY.search(run.stderr[-_LOOKED_AT_CHARS:])
        return replace(run, kind="memory_limit") if is_refused else run

    def _case_steps(self) -> ProgramSteps:
        return replace(self._steps, is_compiled=True, memory_bytes=self._request.memory_bytes)

    def _new_context(self, steps: ProgramSteps) -> LiveContext:
        info = ContextInfo(id="judge", language=self._request.language, cwd=HOME_PATH)
        # Several cases run at once: the usage of the whole sandbox is useless for one of them.
        context = LiveContext(self._sandbox, info, ProcessMeter(self._sandbox.meter), steps)
        self._contexts.append(context)
        return context

    async def _execute(self, context: LiveContext, stdin: str, wall_seconds: float) -> Execution:
        request = ExecuteRequest(
            code=self._request.code,
            language=self._request.language,
            silent=True,
            wall_seconds=wall_seconds,
            stdin=stdin,
        )
        return await context.execute(request, _unheard)


def _unheard(_event: Event) -> None:
    """Discards the event."""
