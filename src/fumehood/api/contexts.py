"""`AsyncContexts`: the methods of `AsyncSandbox` that run code and manage the contexts in which it runs.

A method checks its arguments, makes one request, and passes it to the backend port. `async_sandbox.py` starts, forks
and ends sandboxes; this module must never make or end one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

from fumehood.api.answering import Answering
from fumehood.api.callbacks import (
    AsyncCommitCallback,
    AsyncErrorCallback,
    AsyncInputCallback,
    AsyncResultCallback,
    AsyncTextCallback,
)
from fumehood.api.handle import SandboxHandle, Uncopied
from fumehood.api.tools import AsyncToolCallback, Tools, ready_tools
from fumehood.errors import SandboxClosedError
from fumehood.portal import check_callbacks, notify
from fumehood.values.checks import check_text
from fumehood.values.events import (
    ErrorEvent,
    Event,
    ExecutionFinished,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseResult, JudgeRequest, checked_cases, judged
from fumehood.values.languages import Language
from fumehood.values.requests import (
    CreateContext,
    DropCheckpoint,
    ExecuteRequest,
    ListCheckpoints,
    ListContexts,
    RemoveContext,
    RestartContext,
    RollBack,
    TakeCheckpoint,
)
from fumehood.values.sandbox import CheckpointInfo, ContextInfo

Context: TypeAlias = ContextInfo | str
ContextInfos: TypeAlias = list[ContextInfo]

Checkpoint: TypeAlias = CheckpointInfo | str
CheckpointInfos: TypeAlias = list[CheckpointInfo]
CaseResults: TypeAlias = list[CaseResult]


class AsyncContexts(Uncopied):
    """The base class of `AsyncSandbox` with the methods that run code; all parts of a sandbox share one handle."""

    _sandbox_handle: SandboxHandle

    @property
    def id(self) -> str:
        """The id of the sandbox, for `connect`."""
        return self._sandbox_handle.id

    async def run_code(
        self,
        code: str,
        *,
        language: Language | str = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
        on_result: AsyncResultCallback | None = None,
        on_error: AsyncErrorCallback | None = None,
        on_input: AsyncInputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: AsyncToolCallback | None = None,
        transactional: bool = False,
        on_commit: AsyncCommitCallback | None = None,
        changes: bool = False,
    ) -> Execution:
        """Run code and wait for its end. Code that fails raises no exception: its `Execution` has an `error`.

        Callbacks run in the caller's thread. Ctrl-C, or an error in a callback, interrupts the code; its state is kept.

        Asynchronous: a callback may be a coroutine function, awaited on your loop; cancelling interrupts the code.

        Args:
            code: The code to run, as in a notebook's cell.
            language: The name of its language, as in the guide to languages.
            context: The context to run it in; the default context unless given.
            envs: Environment variables for this execution only.
            timeout: Seconds until it is interrupted; `limits.wall_seconds` unless given.
            stdin: The whole standard input, which `input()` reads too; empty unless given.
            on_stdout: Called with each piece of standard output when it arrives.
            on_stderr: The same as `on_stdout`, for standard error.
            on_result: Called with each result when it arrives.
            on_error: Called with the error, if there is one.
            on_input: Called with the prompt when the code asks for input; returns the line, or None for the end of
                input. `question.is_password` is True if the answer should not be shown. Without it, and without
                `stdin`, `input()` fails with EOFError.
            tools: Your functions that the code may call while it runs, by their names in the code. Plain functions run
                in this thread; an `async def` runs on a loop of its own, and the code awaits it.
            on_tool_call: Called before each call of a tool; if it returns False or a text, the call is denied, and the
                code sees the text.
            transactional: Whether to keep changes only if the code ends normally: after an error, a timeout, a kill or
                a lack of memory, variables and files are restored; see `execution.transaction`.
            on_commit: For transactional code: called with its changes, which are undone unless it returns True. The
                context waits meanwhile: the callback must not run code in it.
            changes: Whether to report in `execution.changes` which variables and files the code changed.
        """
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result, on_error=on_error)
        check_callbacks(on_input=on_input, on_tool_call=on_tool_call, on_commit=on_commit)
        answering = Answering(ready_tools(tools), on_tool_call, on_input, on_commit)
        request = ExecuteRequest(
            code=code,
            language=language,
            context_id=_context_id(context),
            envs={} if envs is None else envs,
            wall_seconds=timeout,
            stdin=stdin,
            transactional=transactional,
            tell_changes=changes,
            **answering.asked,
        )

        if not any((on_stdout, on_stderr, on_result, on_error, on_input, tools, on_commit)):
            return await self._sandbox_handle.backend.run(self.id, request)

        async with aclosing(answering.answered(self._sandbox_handle.backend, self.id, request)) as events:
            async for event in events:
                match event:
                    case StdoutEvent():
                        await notify(on_stdout, event.text)
                    case StderrEvent():
                        await notify(on_stderr, event.text)
                    case ResultEvent():
                        await notify(on_result, event.result)
                    case ErrorEvent():
                        await notify(on_error, event.error)
                    case ExecutionFinished():
                        return event.execution

        # The port promises ExecutionFinished or an exception; a backend that breaks the promise is gone.
        raise SandboxClosedError(sandbox_id=self.id, reason="died", outcome_unknown=True)

    async def stream_code(
        self,
        code: str,
        *,
        language: Language | str = "python",
        context: Context | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | None = None,
        on_input: AsyncInputCallback | None = None,
        tools: Tools | None = None,
        on_tool_call: AsyncToolCallback | None = None,
        transactional: bool = False,
        on_commit: AsyncCommitCallback | None = None,
        changes: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Run code and yield events as they happen; the last event is `ExecutionFinished`.

        Leaving the loop early interrupts the code. The arguments are those of `run_code`.
        """
        check_callbacks(on_input=on_input, on_tool_call=on_tool_call, on_commit=on_commit)
        answering = Answering(ready_tools(tools), on_tool_call, on_input, on_commit)
        request = ExecuteRequest(
            code=code,
            language=language,
            context_id=_context_id(context),
            envs={} if envs is None else envs,
            wall_seconds=timeout,
            stdin=stdin,
            transactional=transactional,
            tell_changes=changes,
            **answering.asked,
        )

        async with aclosing(answering.answered(self._sandbox_handle.backend, self.id, request)) as events:
            async for event in events:
                yield event

    async def interrupt(self, context: Context | None = None) -> bool:
        """Interrupt the running code of a context, from another thread or a callback; False if no code runs.

        Code that does not stop within `limits.grace_seconds` is killed and its context replaced; the execution's
        `error` and `state_lost` show whether that happened.
        """
        return await self._sandbox_handle.backend.interrupt(self.id, _context_id(context))

    async def create_code_context(
        self, *, cwd: str | None = None, language: Language | str = "python"
    ) -> ContextInfo:
        """Make a context: another live namespace, with a process of its own, over the same files."""
        call = CreateContext(cwd=cwd, language=language)
        return (await self._sandbox_handle.backend.context_call(self.id, call))[0]

    async def list_code_contexts(self) -> ContextInfos:
        """List the contexts, the default one first."""
        return [*await self._sandbox_handle.backend.context_call(self.id, ListContexts())]

    async def restart_code_context(self, context: Context) -> ContextInfo:
        """Replace a context by a fresh one of the same id; code that runs in it is killed."""
        call = RestartContext(context_id=_context_id(context) or "")
        return (await self._sandbox_handle.backend.context_call(self.id, call))[0]

    async def remove_code_context(self, context: Context) -> None:
        """Kill a context; the default context is created afresh when it is used again."""
        await self._sandbox_handle.backend.context_call(
            self.id, RemoveContext(context_id=_context_id(context) or "")
        )

    async def get_record(self, context: Context | None = None) -> Record:
        """Return the executions of a context, the default one unless given, with their results.

        Silent executions are not in it. The records of a sandbox take 16 MiB at most; the oldest outputs are dropped
        first, then the oldest cells, and both are counted.
        """
        return await self._sandbox_handle.backend.record(self.id, _context_id(context))

    async def to_notebook(
        self, path: str | os.PathLike[str] | None = None, context: Context | None = None
    ) -> str:
        """Write the record of a context as a notebook, a script or a report, and return its text.

        Args:
            path: The file, which is replaced. Its suffix determines the format: `.ipynb` (nbformat 4.5, with all
                outputs), `.py` (the cells), `.html` (a standalone page, in which no content of the sandbox can run).
                None: the text of the notebook is returned, and no file is written.
            context: The context; the default one unless given.
        """
        # Imported late: only notebooks need the writer.
        from fumehood.notebook.record_file import check_form, write_record

        check_form(path)
        # In a thread: a large record would block the loop.
        return await asyncio.to_thread(write_record, await self.get_record(context), path)

    async def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Save the present state of a context and of the files, for a later `rollback`.

        Every live object of the context is kept as it is: variables, modules, suspended generators, open files, random
        states. It takes a few milliseconds, and memory only for later changes. `left_behind` lists the parts that
        cannot be kept (other threads, child processes, sockets). At most 16 checkpoints are kept; then the oldest is
        dropped.

        Args:
            name: A name of yours; `rollback` takes it as well. A name that is given again is the new one's: the older
                checkpoint keeps its id.
            context: The context whose state is kept; None for the default one. Not every language has checkpoints.
            strict: Whether to refuse if a part cannot be kept.

        Raises:
            CheckpointError: The checkpoint cannot be made; the sandbox is unchanged.
        """
        call = TakeCheckpoint(context_id=_context_id(context), name=name, strict=strict)
        return (await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call))[0]

    async def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint: the context's state and the files are restored; the checkpoint is kept.

        Other contexts and running commands continue.

        Args:
            checkpoint: The result of `checkpoint`, its id, or its name, which is the newest's if several have it.

        Raises:
            CheckpointNotFoundError: No checkpoint has this id or name; a fork has none of its parent's.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended the checkpoint; the sandbox is
                unchanged.
            CheckpointError: The state cannot be restored, for example for lack of disk space; the sandbox is unchanged.
        """
        call = RollBack(checkpoint_id=_checkpoint_id(checkpoint))
        return (await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call))[0]

    async def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints, the oldest first."""
        return [
            *await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, ListCheckpoints())
        ]

    async def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint, and free its memory."""
        call = DropCheckpoint(checkpoint_id=_checkpoint_id(checkpoint))
        await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call)

    async def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        language: Language = "python",
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program once for each case, and compare its output with the expected output.

        The program's top-level imports are made once, or it is compiled once; each case is a fork of that process, with
        its own memory, standard input and limits, so that a thousand cases take seconds. The program does not see
        variables of the sandbox. It sees the files, which are restored afterwards. The expected output never enters the
        sandbox.

        Args:
            code: The program; one in Python runs as `__main__`.
            cases: For each case, its input and its expected output; lines are compared without trailing white space,
                and output beyond `limits.stdout_bytes` is not accepted.
            language: The language of the program.
            timeout: The time limit of each run, in seconds.
            memory_bytes: The memory of each run beyond interpreter and imports; for a language other than Python, its
                whole memory.
            concurrency: How many runs may be active at once; as many as there are processors unless given.

        Raises:
            CheckpointError: The program could not be prepared.
            LanguageUnavailableError: The template lacks the language.
        """
        pairs = checked_cases(cases)
        request = JudgeRequest(
            code=code,
            stdins=tuple(stdin for stdin, _ in pairs),
            wall_seconds=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
            language=language,
        )
        runs = await self._sandbox_handle.backend.judge(self._sandbox_handle.id, request)
        return [judged(run, expected) for run, (_, expected) in zip(runs, pairs, strict=True)]


def _checkpoint_id(checkpoint: Checkpoint) -> str:
    return checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint


def _context_id(context: Context | None) -> str | None:
    context_id = context.id if isinstance(context, ContextInfo) else context

    if context_id is not None:
        check_text("context", context_id, max_bytes=255)

    return context_id
