"""Executions that continue without the request that began them, and can be followed again.

A run is a task of the server over the caller's backend, so that quotas and usage accounting apply. It ends with its
code or its sandbox, on request, and at the latest with the server. Its events are kept in a ring that any number of
followers read at their own pace; the whole execution is read from the sandbox's record. The size of kept lines is
bounded for each key and in total; beyond the total, the key with the most loses lines, so that no key can displace the
lines of another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

from fumehood.bounds import MIB
from fumehood.cancellation import cancel_and_wait, consume_result, when_done
from fumehood.errors import ExecutionNotFoundError, FumehoodError, OverloadedError
from fumehood.port.backend import Backend
from fumehood.server.principal import Principal
from fumehood.server.responses import Line, WrittenLine, event_data, line_of
from fumehood.values.events import ExecutionFinished, ExecutionStarted
from fumehood.values.json_text import json_bytes
from fumehood.values.looking import Cell, ReadCell
from fumehood.values.requests import DEFAULT_CONTEXT_ID, ExecuteRequest

RunState = Literal["waiting", "running", "ended"]
PREFIX = "run_"
_MAX_KEPT_BYTES = 4 * MIB
_MAX_KEPT_BYTES_OF_ALL = 128 * MIB
_MAX_RUNS = 4096
_MAX_RUNS_OF_KEY = 64
# The bound on code and input that wait for their turn.
_MAX_WAITING_BYTES_OF_KEY = 16 * MIB
# How long a run that has ended can be followed.
_KEPT_SECONDS = 600.0
_BEGIN_SECONDS = 1.0
_RETRY_SECONDS = 5.0


class DetachedRun:
    """One execution that continues without the request that began it.

    Args:
        key_id: The key that began it.
        sandbox_id: Its sandbox.
        request: The code.
        backend: The sandboxes of that key.
        count_kept: Called with each change of `kept_bytes`.

    Attributes:
        kept_bytes: How many bytes of lines it keeps.
    """

    def __init__(
        self,
        key_id: str,
        sandbox_id: str,
        request: ExecuteRequest,
        backend: Backend,
        count_kept: Callable[[int], None],
    ) -> None:
        self.id = PREFIX + secrets.token_hex(12)
        self.key_id = key_id
        self.sandbox_id = sandbox_id
        self.execution_id: str | None = None
        self.kept_bytes = 0
        # Set while it waits.
        self._request: ExecuteRequest | None = request
        self._backend = backend
        self._count_kept = count_kept
        self._lines: deque[bytes] = deque()
        self._last = 0
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self._work = asyncio.create_task(self._run(request))
        when_done(self._work, self._wake)
        consume_result(self._work)

    @property
    def state(self) -> RunState:
        """Whether it waits for its turn, runs, or has ended."""
        if self._work.done():
            return "ended"

        return "waiting" if self.execution_id is None else "running"

    @property
    def waiting_bytes(self) -> int:
        """The size of its code and input while it waits for its turn, in bytes; 0 once it runs."""
        request = self._request
        return 0 if request is None else len(request.code) + len(request.stdin or "")

    def when_ended(self, act: Callable[[], None]) -> None:
        """Calls `act` when the execution has ended."""
        when_done(self._work, act)

    async def begin(self) -> None:
        """Returns when the execution runs, or after a second if it has to wait for its turn.

        Raises:
            FumehoodError: The execution was refused before it ran.
        """
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                await self._begun.wait()
        except TimeoutError:
            return

        if self._work.done() and self.execution_id is None:
            self._work.result()

    async def end(self) -> None:
        """Removes the execution from the queue, or interrupts it."""
        await cancel_and_wait(self._work)

    def waiting_cell(self) -> Cell:
        """Returns the run as a waiting cell, for readers of the record."""
        request = self._request
        assert request is not None, "it waits"
        return Cell(
            position=-1,
            id=self.id,
            context_id=request.context_id or DEFAULT_CONTEXT_ID,
            state="waiting",
            code=request.code,
            stdin=request.stdin,
        )

    def drop(self, size_bytes: int) -> int:
        """Drops its oldest lines, at least `size_bytes` of them if it has as many; returns the dropped bytes.

        The caller counts them. Followers that have not read them get a gap.
        """
        before = self.kept_bytes

        while self._lines and before - self.kept_bytes < size_bytes:
            self.kept_bytes -= len(self._lines.popleft())

        return before - self.kept_bytes

    async def follow(self, after: int) -> AsyncGenerator[Line, None]:
        """Yields the lines after a number up to the end; the last line has the whole execution, from the record.

        Raises:
            FumehoodError: The error that ended the run before there was an execution.
        """
        while True:
            first = self._last - len(self._lines) + 1

            if after + 1 < first:
                yield _gap(after + 1, first - 1)
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
            # Raises the error that has ended it.
            if self._work.cancelled():
                raise ExecutionNotFoundError(execution_id=self.id)

            self._work.result()

        cell = await self._backend.look(self.sandbox_id, ReadCell(execution_id=self.execution_id or ""))
        assert cell.execution is not None, "it was asked for"
        line = await line_of(ExecutionFinished(execution=cell.execution), event_data)
        return _numbered(line, self._last + 1)

    async def _run(self, request: ExecuteRequest) -> None:
        async with aclosing(self._backend.execute(self.sandbox_id, request)) as events:
            async for event in events:
                if isinstance(event, ExecutionStarted):
                    self.execution_id = event.execution_id
                    self._request = None
                    self._begun.set()

                if not isinstance(event, ExecutionFinished):
                    self._keep(await line_of(event, event_data))

    def _keep(self, line: Line) -> None:
        self._last += 1
        written = _numbered(line, self._last).json

        if len(written) > _MAX_KEPT_BYTES:
            written = json_bytes(_gap(self._last, self._last))

        self._lines.append(written)
        self.kept_bytes += len(written)
        dropped = self.drop(self.kept_bytes - _MAX_KEPT_BYTES)
        self._news.set()
        self._count_kept(len(written) - dropped)

    def _wake(self) -> None:
        self._request = None
        self._begun.set()
        self._news.set()


class DetachedRuns:
    """The detached executions of a server."""

    def __init__(self) -> None:
        # The oldest first.
        self._runs: dict[str, DetachedRun] = {}
        self._forgetting: dict[str, asyncio.TimerHandle] = {}
        self._kept_bytes = 0

    async def begin(
        self, principal: Principal, backend: Backend, sandbox_id: str, request: ExecuteRequest
    ) -> DetachedRun:
        """Begins an execution, and returns it when it runs or waits for its turn.

        If there are too many runs, the oldest ended one is forgotten: of the same key, or of the key with the most
        runs.

        Raises:
            OverloadedError: Too many detached executions are under way.
            FumehoodError: The execution was refused before it ran.
        """
        self._make_room(principal.key_id)
        run = DetachedRun(principal.key_id, sandbox_id, request, backend, self._count_kept)
        self._runs[run.id] = run
        run.when_ended(lambda: self._forget_later(run))

        try:
            await run.begin()
        except FumehoodError:
            self._forget(run)
            raise

        return run

    def _make_room(self, key_id: str) -> None:
        """Forgets runs that have ended until there is room for one more of a key."""
        own = [run for run in self._runs.values() if run.key_id == key_id]
        waiting_bytes = sum(run.waiting_bytes for run in own)

        if waiting_bytes > _MAX_WAITING_BYTES_OF_KEY:
            raise _full(f"{waiting_bytes} bytes of code of this key wait for their turn")

        if len(own) >= _MAX_RUNS_OF_KEY and not self._forget_ended(own):
            raise _full(f"{len(own)} detached executions of this key are under way")

        if len(self._runs) < _MAX_RUNS:
            return

        kept = Counter(run.key_id for run in self._runs.values() if run.state == "ended")
        most = {name for name, _ in kept.most_common(1)}

        if not self._forget_ended([run for run in self._runs.values() if run.key_id in most]):
            raise _full(f"{len(self._runs)} detached executions are under way")

    def _forget_ended(self, runs: list[DetachedRun]) -> bool:
        """Forgets the oldest ended one of these runs; False if none has ended."""
        for run in runs:
            if run.state == "ended":
                self._forget(run)
                return True

        return False

    def find(self, principal: Principal, sandbox_id: str, name: str) -> DetachedRun:
        """Returns a run of the caller by its own id, or by the id of its execution.

        Raises:
            ExecutionNotFoundError: The caller has no such run.
        """
        for run in self._runs.values():
            is_it = name in (run.id, run.execution_id) and run.sandbox_id == sandbox_id

            if is_it and (principal.is_owner or run.key_id == principal.key_id):
                return run

        raise ExecutionNotFoundError(execution_id=name)

    def execution_id(self, principal: Principal, sandbox_id: str, name: str) -> str:
        """Returns the id of an execution, given that id or the id of its detached run.

        Raises:
            ExecutionNotFoundError: The run does not exist, or is still waiting for its turn.
        """
        if not name.startswith(PREFIX):
            return name

        found = self.find(principal, sandbox_id, name).execution_id

        if found is None:
            raise ExecutionNotFoundError(execution_id=name)

        return found

    async def close(self) -> None:
        """Ends all detached executions."""
        runs = list(self._runs.values())

        for run in runs:
            await run.end()

        for run in runs:
            self._forget(run)

    def _forget_later(self, run: DetachedRun) -> None:
        if run.id in self._runs:
            loop = asyncio.get_running_loop()
            self._forgetting[run.id] = loop.call_later(_KEPT_SECONDS, self._forget, run)

    def _forget(self, run: DetachedRun) -> None:
        timer = self._forgetting.pop(run.id, None)

        if timer is not None:
            timer.cancel()

        self._runs.pop(run.id, None)
        # A follower of it gets a gap, and then the end.
        self._kept_bytes -= run.drop(run.kept_bytes)

    def _count_kept(self, change_bytes: int) -> None:
        self._kept_bytes += change_bytes

        while self._kept_bytes > _MAX_KEPT_BYTES_OF_ALL:
            self._kept_bytes -= self._shorten()

    def _shorten(self) -> int:
        """Drops lines of the key that keeps most: all lines of its oldest ended run, else half of its largest run."""
        kept: Counter[str] = Counter()

        for run in self._runs.values():
            kept[run.key_id] += run.kept_bytes

        ((most, _),) = kept.most_common(1)
        own = [run for run in self._runs.values() if run.key_id == most and run.kept_bytes]

        for run in own:
            if run.state == "ended":
                return run.drop(run.kept_bytes)

        largest = max(own, key=lambda run: run.kept_bytes)
        return largest.drop((largest.kept_bytes + 1) // 2)


def _full(reason: str) -> OverloadedError:
    return OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)


def _gap(first: int, last: int) -> Line:
    """Returns the line that replaces dropped lines, and numbers the first and the last of them."""
    return {"type": "gap", "seq": last, "from": first, "to": last}


def _numbered(line: Line, seq: int) -> WrittenLine:
    """Returns a line as JSON, with its number."""
    written: bytes | None = getattr(line, "json", None)
    body = json_bytes(line) if written is None else written
    return WrittenLine(str(line.get("type", "")), b'{"seq":%d,' % seq + body[1:])
