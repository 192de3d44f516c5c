"""Executions that go on without the request that began them, and can be followed again.

Runs in the server process. A run is a task of the server over the caller's backend, so that quotas hold and all is
counted. It ends with its code or its sandbox, on request, and at the latest with the server. Its events are kept in a
ring that any number of followers read at their own pace; the whole execution is read from the sandbox's record.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

from fumehood.bounds import MIB
from fumehood.cancellation import cancel_and_wait, consume_result, when_done
from fumehood.errors import ExecutionNotFoundError, OverloadedError
from fumehood.port.backend import Backend
from fumehood.server.principal import Principal
from fumehood.server.responses import Line, WrittenLine, event_data, json_bytes, line_of
from fumehood.values.events import ExecutionFinished, ExecutionStarted
from fumehood.values.looking import Cell, ReadCell
from fumehood.values.requests import DEFAULT_CONTEXT_ID, ExecuteRequest

RunState = Literal["waiting", "running", "ended"]
PREFIX = "run_"
_MAX_KEPT_BYTES = 4 * MIB
_MAX_RUNS = 512
_MAX_RUNS_OF_KEY = 64
# How long a run that has ended can be followed.
_KEPT_SECONDS = 600.0
_BEGIN_SECONDS = 1.0
_RETRY_SECONDS = 5.0


class DetachedRun:
    """One execution that goes on by itself.

    Args:
        key_id: The key that began it.
        sandbox_id: Its sandbox.
        request: The code.
        backend: The sandboxes of that key.
    """

    def __init__(self, key_id: str, sandbox_id: str, request: ExecuteRequest, backend: Backend) -> None:
        self.id = PREFIX + secrets.token_hex(12)
        self.key_id = key_id
        self.sandbox_id = sandbox_id
        self.execution_id: str | None = None
        self.request = request
        self._backend = backend
        self._lines: deque[bytes] = deque()
        self._size_bytes = 0
        self._last = 0
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self._work = asyncio.create_task(self._run())
        when_done(self._work, self._wake)
        consume_result(self._work)

    @property
    def state(self) -> RunState:
        """Whether it waits for its turn, runs, or has ended."""
        if self._work.done():
            return "ended"

        return "waiting" if self.execution_id is None else "running"

    def when_ended(self, act: Callable[[], None]) -> None:
        """Calls `act` when it has ended."""
        when_done(self._work, act)

    async def begin(self) -> None:
        """Returns when it runs, or after a second if it has to wait for its turn.

        Raises:
            FumehoodError: It was refused before it ran.
        """
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                await self._begun.wait()
        except TimeoutError:
            return

        if self._work.done() and self.execution_id is None:
            self._work.result()

    async def end(self) -> None:
        """Takes it out of the queue, or interrupts it."""
        await cancel_and_wait(self._work)

    def waiting_cell(self) -> Cell:
        """Returns what readers of the record see of it while it waits."""
        request = self.request
        return Cell(
            position=-1,
            id=self.id,
            context_id=request.context_id or DEFAULT_CONTEXT_ID,
            state="waiting",
            code=request.code,
            stdin=request.stdin,
        )

    async def follow(self, after: int) -> AsyncGenerator[Line, None]:
        """Yields its lines after a number, to the end; the last one has the whole execution, from the record.

        Raises:
            FumehoodError: What has ended it without an execution.
        """
        while True:
            first = self._last - len(self._lines) + 1

            if after + 1 < first:
                yield {"type": "gap", "seq": first - 1, "from": after + 1, "to": first - 1}
                after = first - 1
            elif after < self._last:
                after += 1
                yield WrittenLine("", self._lines[after - first])
            elif self._work.done():
                yield await self._finished()
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def _finished(self) -> Line:
        if self.execution_id is None or self._work.cancelled() or self._work.exception() is not None:
            # What has ended it is the reader's answer.
            if self._work.cancelled():
                raise ExecutionNotFoundError(execution_id=self.id)

            self._work.result()

        cell = await self._backend.look(self.sandbox_id, ReadCell(execution_id=self.execution_id or ""))
        assert cell.execution is not None, "it was asked for"
        line = await line_of(ExecutionFinished(execution=cell.execution), event_data)
        return _numbered(line, self._last + 1)

    async def _run(self) -> None:
        async with aclosing(self._backend.execute(self.sandbox_id, self.request)) as events:
            async for event in events:
                if isinstance(event, ExecutionStarted):
                    self.execution_id = event.execution_id
                    self._begun.set()

                if not isinstance(event, ExecutionFinished):
                    self._keep(await line_of(event, event_data))

    def _keep(self, line: Line) -> None:
        self._last += 1
        written = _numbered(line, self._last).json
        self._lines.append(written)
        self._size_bytes += len(written)

        while self._size_bytes > _MAX_KEPT_BYTES and len(self._lines) > 1:
            self._size_bytes -= len(self._lines.popleft())

        self._news.set()

    def _wake(self) -> None:
        self._begun.set()
        self._news.set()


class DetachedRuns:
    """The detached executions of a server."""

    def __init__(self) -> None:
        self._runs: dict[str, DetachedRun] = {}
        self._forgetting: set[asyncio.TimerHandle] = set()

    async def begin(
        self, principal: Principal, backend: Backend, sandbox_id: str, request: ExecuteRequest
    ) -> DetachedRun:
        """Begins an execution, and returns it when it runs or waits for its turn.

        Raises:
            OverloadedError: There are too many.
            FumehoodError: It was refused before it ran.
        """
        own = sum(run.key_id == principal.key_id and run.state != "ended" for run in self._runs.values())

        if len(self._runs) >= _MAX_RUNS or own >= _MAX_RUNS_OF_KEY:
            reason = f"{own} detached executions of this key are under way, {len(self._runs)} of all are kept"
            raise OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)

        run = DetachedRun(principal.key_id, sandbox_id, request, backend)
        self._runs[run.id] = run
        run.when_ended(lambda: self._forget_later(run))

        try:
            await run.begin()
        except BaseException:
            self._runs.pop(run.id, None)
            raise

        return run

    def find(self, principal: Principal, sandbox_id: str, name: str) -> DetachedRun:
        """Returns a run of the caller by its own name, or by that of its execution.

        Raises:
            ExecutionNotFoundError: There is none.
        """
        for run in self._runs.values():
            is_it = name in (run.id, run.execution_id) and run.sandbox_id == sandbox_id

            if is_it and (principal.is_owner or run.key_id == principal.key_id):
                return run

        raise ExecutionNotFoundError(execution_id=name)

    def execution_id(self, principal: Principal, sandbox_id: str, name: str) -> str:
        """Returns the id of an execution that is named by it, or by the name of its run.

        Raises:
            ExecutionNotFoundError: There is no such run, or it waits for its turn.
        """
        if not name.startswith(PREFIX):
            return name

        found = self.find(principal, sandbox_id, name).execution_id

        if found is None:
            raise ExecutionNotFoundError(execution_id=name)

        return found

    async def close(self) -> None:
        """Ends all of them."""
        for timer in self._forgetting:
            timer.cancel()

        runs, self._runs = list(self._runs.values()), {}

        for run in runs:
            await run.end()

    def _forget_later(self, run: DetachedRun) -> None:
        def forget() -> None:
            self._forgetting.discard(timer)
            self._runs.pop(run.id, None)

        timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, forget)
        self._forgetting.add(timer)


def _numbered(line: Line, seq: int) -> WrittenLine:
    """Returns a line as JSON, with its number."""
    written: bytes | None = getattr(line, "json", None)
    body = json_bytes(line) if written is None else written
    return WrittenLine(str(line.get("type", "")), b'{"seq":%d,' % seq + body[1:])
