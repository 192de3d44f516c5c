"""Programs in a sandbox of their own: writes files, runs commands one after another, reads files, kills the sandbox.

It is for dialects whose clients send a source file in one of many languages and expect an exit code, two streams and
arguments. Each such sandbox passes the fair queue and counts as one execution of the caller; which compilers and
interpreters it has depends on its template. Output of a program is never taken for more than text.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from fumehood.bounds import BOUNDS
from fumehood.cancellation import cancel_and_wait, complete
from fumehood.errors import FileError, FumehoodError, PathExistsError
from fumehood.port.backend import Backend
from fumehood.server.allowance import Allowance
from fumehood.server.principal import Principal
from fumehood.server.services import Services
from fumehood.values.execution import Execution, ExecutionError
from fumehood.values.limits import Limits, Usage
from fumehood.values.requests import (
    CloseStdin,
    MakeDir,
    ProcessExited,
    ProcessSpec,
    ReadFile,
    SandboxSpec,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import SandboxInfo, Truncation
from fumehood.values.transcript import CommandText

_PIECE_BYTES = 256 * 1024
_KILL = 9
# The time for starting, writing files and reading them, beside that of the programs themselves.
_AROUND_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedCommand:
    """A command to run to its end.

    Attributes:
        argv: Program and arguments.
        cwd: The folder to start in.
        stdin: Its standard input; empty when None.
        envs: Environment variables in addition to those of the sandbox.
        timeout_seconds: Its time limit.
    """

    argv: tuple[str, ...]
    cwd: str
    timeout_seconds: float
    stdin: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The result of a program.

    Attributes:
        exit_code: Its exit code, 128 plus the signal's number if a signal ended it; None if it exceeded its time limit.
        stdout: Its standard output, up to the sandbox's limits.
        stderr: The same for standard error.
        seconds: How long it took.
        truncated: How much output was cut off.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    truncated: Truncation = field(default_factory=Truncation)

    @property
    def is_timed_out(self) -> bool:
        """True when it was killed because its time was over."""
        return self.exit_code is None


class ProgramSandbox:
    """A sandbox in which programs run.

    Attributes:
        backend: The caller's backend.
        sandbox_id: The sandbox.
        is_failed: Whether a program in it has failed.
    """

    def __init__(self, backend: Backend, info: SandboxInfo) -> None:
        self.backend = backend
        self.sandbox_id = info.id
        self.is_failed = False
        self._info = info
        self._bytes_in = 0
        self._bytes_out = 0
        self._begun = time.monotonic()

    async def make_dir(self, path: str) -> None:
        """Makes a directory, which may exist already."""
        with contextlib.suppress(PathExistsError):
            await self.backend.file_call(self.sandbox_id, MakeDir(path=path))

    async def write(self, path: str, content: bytes) -> None:
        """Writes a file, and makes its parent folders."""
        self._bytes_in += len(content)
        await self.backend.write(self.sandbox_id, path, pieces_of_bytes(content))

    async def read(self, path: str, max_bytes: int) -> bytes | None:
        """Returns the content of a file; None if it cannot be read, or is larger than `max_bytes`."""
        content = bytearray()
        request = ReadFile(path=path, length_bytes=max_bytes + 1)
        try:
            async with aclosing(self.backend.read(self.sandbox_id, request)) as pieces:
                async for piece in pieces:
                    content += piece
        except FileError:
            return None

        return bytes(content) if len(content) <= max_bytes else None

    async def run(self, program: BoundedCommand) -> ProgramRun:
        """Runs a program to its end.

        Raises:
            CommandStartError: The program does not exist in the sandbox.
        """
        spec = ProcessSpec(
            argv=program.argv,
            cwd=program.cwd,
            envs=program.envs,
            stdin=bool(program.stdin),
            timeout_seconds=program.timeout_seconds,
            is_own=True,
        )
        begun = time.monotonic()
        process = await self.backend.start_process(self.sandbox_id, spec)
        feeding = asyncio.create_task(self._feed(process.pid, program.stdin))
        try:
            run = await self._follow(process.pid, begun)
        finally:
            await cancel_and_wait(feeding)

        self._bytes_in += len(program.stdin or "")
        self._bytes_out += len(run.stdout) + len(run.stderr)
        self.is_failed = self.is_failed or run.exit_code != 0
        return run

    async def kill_process(self, pid: int) -> None:
        """Kills a process, which may have ended already."""
        with contextlib.suppress(FumehoodError):
            await self.backend.process_call(self.sandbox_id, SignalProcess(pid=pid, signal=_KILL))

    def execution(self) -> Execution:
        """Returns all runs as one execution without its CPU time, to count the caller's usage."""
        usage = Usage(
            wall_seconds=time.monotonic() - self._begun,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )
        error = ExecutionError(kind="exception", name="ExitCode", value="") if self.is_failed else None
        return Execution(id=secrets.token_hex(8), context_id="", usage=usage, error=error)

    async def _follow(self, pid: int, begun: float) -> ProgramRun:
        text = CommandText()
        ended: ProcessExited | None = None

        async with aclosing(self.backend.process_output(self.sandbox_id, pid)) as events:
            async for event in events:
                if isinstance(event, ProcessExited):
                    ended = event
                else:
                    text.add(event)

        is_over = ended is None or ended.timed_out
        truncated = Truncation() if ended is None else ended.truncated
        return ProgramRun(
            exit_code=None if is_over or ended is None else ended.exit_code,
            stdout=text.kept("stdout", truncated.stdout_bytes),
            stderr=text.kept("stderr", truncated.stderr_bytes),
            seconds=time.monotonic() - begun,
            truncated=truncated,
        )

    async def _feed(self, pid: int, text: str | None) -> None:
        if not text:
            return

        # The program may end, or close its standard input, before it has read all.
        with contextlib.suppress(FumehoodError):
            async for piece in pieces_of_bytes(text.encode("utf-8", "replace")):
                await self.backend.process_call(self.sandbox_id, SendStdin(pid=pid, data=piece))

            await self.backend.process_call(self.sandbox_id, CloseStdin(pid=pid))


async def pieces_of_bytes(content: bytes) -> AsyncIterator[bytes]:
    """Yields `content` in pieces of a bounded size."""
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


@asynccontextmanager
async def workbench(
    services: Services,
    principal: Principal,
    limits: Limits,
    *,
    programs_seconds: float,
    queue_seconds: float | None = None,
    template: str = "default",
) -> AsyncGenerator[ProgramSandbox, None]:
    """Holds a place in the queue and a fresh sandbox while the block runs programs in it.

    Args:
        services: The services of the server.
        principal: The caller that owns the programs.
        limits: The limits of the sandbox.
        programs_seconds: How many seconds its programs may take together.
        queue_seconds: How many seconds to wait for a place; None: the value of the server's settings.
        template: The template of the sandbox.

    Raises:
        OverloadedError: The queue is full; QueueTimeoutError, the wait was too long.
        QuotaError: The caller may not run more.
    """
    patience = services.settings.queue_seconds if queue_seconds is None else queue_seconds

    async with services.queue.place(principal.key_id, patience):
        async with open_workbench(services, principal, limits, programs_seconds, template) as bench:
            yield bench


@asynccontextmanager
async def open_workbench(
    services: Services,
    principal: Principal,
    limits: Limits,
    programs_seconds: float,
    template: str = "default",
) -> AsyncGenerator[ProgramSandbox, None]:
    """Does what `workbench` does without waiting for a place.

    It is for a caller that has a place, or whose programs mostly wait for human input.
    """
    allowance = Allowance(principal, services.spending, services.backend, services.settings)
    # All its programs together are one execution.
    backend = services.backend_within(replace(allowance, is_counted=True))
    spec = SandboxSpec(template=template, limits=limits, timeout_seconds=programs_seconds + _AROUND_SECONDS)

    with allowance.execution():
        bench = ProgramSandbox(backend, await backend.create(spec))
        try:
            yield bench
        finally:
            # A caller that is cancelled twice does not keep the sandbox alive.
            await complete(_end(bench, allowance))


async def _end(bench: ProgramSandbox, allowance: Allowance) -> None:
    try:
        # The CPU time is that of the sandbox, which is charged when it is killed.
        allowance.count(bench.execution(), bench.sandbox_id)
    finally:
        await bench.backend.kill(bench.sandbox_id, wait=False)


def limits_within(
    principal: Principal, chosen: Mapping[str, float | None] | None = None, **wanted: float
) -> Limits:
    """Returns the default limits, replaced by the requested ones, each within its range and the caller's bounds.

    Args:
        principal: The caller.
        chosen: The caller's values, which are never cut; None means that the limit was not given.
        wanted: The limits that the dialect needs by itself.

    Raises:
        LimitForbiddenError: A requested limit is above the caller's bound.
    """
    for name, value in (chosen or {}).items():
        if value is not None:
            principal.policy.check_limit(name, value)
            wanted[name] = value

    maxima = principal.policy.max_limits
    ordinary = Limits()
    fitted: dict[str, float] = {}

    for name in {*wanted, *maxima}:
        value = wanted.get(name, getattr(ordinary, name))
        least = min(math.inf if value is None else value, maxima.get(name, math.inf), BOUNDS[name].high)
        least = max(least, BOUNDS[name].low)
        fitted[name] = int(least) if BOUNDS[name].whole else least

    return Limits(**fitted)  # type: ignore[arg-type]  # whole where it must be
