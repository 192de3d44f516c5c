"""`/exec/programmatic`: runs of code that calls tools, each of which waits while a client runs the tools.

A run is continued by a token that is valid once, for one key; a restart of the server ends waiting runs. How many may
wait is bounded, for each key and in total, and so is how long. The output of a run's broker comes from a guest, with
the rights of the user's code: lines of bounded size, parsed into values that a response can hold whatever is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.bounds import MIB
from fumehood.cancellation import complete, is_cancelled
from fumehood.dialects.librechat import guest_programs
from fumehood.dialects.librechat.answers import NotThereError, caller_of
from fumehood.dialects.librechat.bodies import Continuation, ToolRunCall, read_programmatic
from fumehood.dialects.librechat.exec_code import OUT_OF_TIME, RUN_ENVS
from fumehood.dialects.librechat.stored_files import Shelf, new_session_id
from fumehood.dialects.librechat.workspace import RunOutputs, Workspace
from fumehood.errors import FumehoodError, InvalidArgumentError, OverloadedError, ServerEndingError
from fumehood.server.drain import RETRY_SECONDS
from fumehood.server.json_bodies import read_object
from fumehood.server.principal import Principal
from fumehood.server.programs import ProgramSandbox, limits_within, open_workbench, pieces_of_bytes
from fumehood.server.responses import unless_gone
from fumehood.server.services import Services
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.json_values import check_values
from fumehood.values.requests import ProcessEvent, ProcessOutput, ProcessSpec, SendStdin

_MAX_DEPTH = 100
_MOST_DIGITS = 10**100


class BrokerLines:
    """Cuts received pieces into lines; nothing is searched twice, however small the pieces are."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    @property
    def held_bytes(self) -> int:
        """The number of bytes in lines that were not taken."""
        return len(self._held)

    def add(self, piece: bytes) -> None:
        """Adds a received piece."""
        self._held += piece

    def take(self) -> bytes | None:
        """Returns the next line without its end, or None while it is incomplete."""
        end = self._held.find(b"\n", self._searched)

        if end < 0:
            self._searched = len(self._held)
            return None

        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        return line


def read_line(line: bytes) -> Mapping[str, Any] | None:
    """Returns the object of a line, or None if the line has no object that can be encoded."""
    try:
        check_values(line)
        said = _repeatable(json.loads(line.decode()), 0)
    except (ValueError, RecursionError, InvalidArgumentError):
        return None

    return said if isinstance(said, dict) else None


def _repeatable(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")

    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case bool() | None:
            return value
        case int():
            return value if -_MOST_DIGITS < value < _MOST_DIGITS else None
        case list():
            return [_repeatable(item, depth + 1) for item in value]
        case _:
            return {_repeatable(name, depth): _repeatable(item, depth + 1) for name, item in value.items()}


WAIT_SECONDS = 300.0
_RUN_SECONDS = 15.0
_MAX_ROUNDS = 100
_LINE_BYTES = 15 * MIB
_MAX_CALLS = 500
_CODES = 256
_NO_RESULT = {"result": None, "is_error": True, "error_message": "no result was sent for this call"}
_BROKEN = "Execution failed or timed out"


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """The outcome of a step: the tool calls whose results the code waits for."""

    calls: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The outcome of a step: the code has ended, and these are the fields of the response."""

    words: Mapping[str, Any]


class ToolRun:
    """A run, from its start until `close`.

    Attributes:
        session_id: The storage session of its files.
        owner: The key that owns the run.
    """

    def __init__(self, services: Services, principal: Principal, call: ToolRunCall) -> None:
        self.session_id = new_session_id()
        self.owner = principal.key_id
        self._services = services
        self._principal = principal
        self._call = call
        self._workspace = Workspace(Shelf(services, principal.key_id), self.session_id)
        self._limits = limits_within(
            principal, {"wall_seconds": call.seconds}, wall_seconds=_RUN_SECONDS, stdout_bytes=16 * MIB
        )
        self._stack = AsyncExitStack()
        self._asked: list[str] = []
        self._rounds = 0
        self._lines = BrokerLines()
        self._bench: ProgramSandbox
        self._events: AsyncGenerator[ProcessEvent, None]
        self._pid = 0

    async def start(self) -> PendingCalls | RunEnded:
        """Starts the code and returns when it waits or has ended.

        Raises:
            FumehoodError: The code could not be started.
        """
        files = await self._workspace.find(self._call.files, self._call.session_id)
        seconds = self._limits.wall_seconds + WAIT_SECONDS
        self._bench = await self._stack.enter_async_context(
            open_workbench(self._services, self._principal, self._limits, seconds)
        )
        await self._workspace.put_in(self._bench, files)
        await self._set_up()
        program = ("bash", f"{guest_programs.FOLDER}/main.sh")

        if not self._call.is_bash:
            program = ("python3", f"{guest_programs.FOLDER}/runner.py")

        process = await self._bench.backend.start_process(
            self._bench.sandbox_id,
            ProcessSpec(
                argv=("python3", f"{guest_programs.FOLDER}/broker.py", *program),
                cwd=DATA_PATH,
                envs={**RUN_ENVS, "BASH_ENV": f"{guest_programs.FOLDER}/tools.sh"},
                stdin=True,
                is_own=True,
            ),
        )
        self._pid = process.pid
        self._events = self._bench.backend.process_output(self._bench.sandbox_id, process.pid)
        await self._stack.enter_async_context(aclosing(self._events))
        return await self._next()

    async def go_on(self, results: Mapping[str, Mapping[str, Any]]) -> PendingCalls | RunEnded:
        """Passes the results of the calls to the code, and returns when it waits again or has ended."""
        backend, sandbox_id = self._bench.backend, self._bench.sandbox_id
        line = json.dumps({call_id: results.get(call_id, _NO_RESULT) for call_id in self._asked})
        # While the tools ran, its time went on; from here it has another round's.
        await backend.set_timeout(sandbox_id, self._limits.wall_seconds + 2 * WAIT_SECONDS)

        async def feed() -> None:
            async for piece in pieces_of_bytes(f"{line}\n".encode()):
                await backend.process_call(sandbox_id, SendStdin(pid=self._pid, data=piece))

        return await self._next(feed())

    async def close(self) -> None:
        """Kills the sandbox."""
        await self._stack.aclose()

    async def _set_up(self) -> None:
        call, folder = self._call, guest_programs.FOLDER
        functions = guest_programs.bash_functions(list(call.tools)) if call.is_bash else ""
        texts = {
            "broker.py": guest_programs.BROKER,
            "calling.py": guest_programs.CALLING,
            "runner.py": guest_programs.PYTHON_RUNNER,
            "call.py": guest_programs.BASH_CALL,
            "tools.sh": f"{functions}\n",
            "tools.json": json.dumps(dict(call.tools)),
            "main.sh" if call.is_bash else "main.py": call.code,
        }

        for name, text in texts.items():
            await self._bench.write(f"{folder}/{name}", text.encode("utf-8", "replace"))

    async def _next(self, before: Any = None) -> PendingCalls | RunEnded:
        """Returns the broker's next message, within the time of one round."""
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                if before is not None:
                    await before

                said = await self._line()
        except TimeoutError:
            return self._failed(OUT_OF_TIME)

        self._rounds += 1

        if said is None:
            return self._failed(_BROKEN)

        calls = self._read_calls(said)

        if calls is not None and self._rounds <= _MAX_ROUNDS:
            return calls

        return await self._ended(said) if "exit" in said else self._failed(_BROKEN)

    async def _line(self) -> Mapping[str, Any] | None:
        while (line := self._lines.take()) is None:
            event = await anext(self._events, None)

            if not isinstance(event, ProcessOutput) or event.skipped_bytes:
                return None

            if self._lines.held_bytes > _LINE_BYTES:
                return None

            if event.stream == "stdout":
                self._lines.add(event.data)

        return read_line(line)

    def _read_calls(self, said: Mapping[str, Any]) -> PendingCalls | None:
        calls = said.get("calls")

        if not isinstance(calls, list) or not 0 < len(calls) <= _MAX_CALLS:
            return None

        names = set(self._call.tools.values())
        read: list[Mapping[str, Any]] = []

        for call in calls:
            if not isinstance(call, dict) or not all(
                isinstance(call.get(key), str) for key in ("id", "name")
            ):
                return None

            if call["name"] not in names:
                return None

            given = call.get("input")
            read.append({"id": call["id"], "name": call["name"], "input": given if given is not None else {}})

        self._asked = [str(call["id"]) for call in read]
        return PendingCalls(tuple(read))

    async def _ended(self, said: Mapping[str, Any]) -> RunEnded:
        code = said["exit"] if type(said["exit"]) is int and -_CODES < said["exit"] < _CODES else 1
        stdout, stderr = str(said.get("stdout", "")), str(said.get("stderr", ""))
        self._bench.is_failed = code != 0
        outcome = RunOutputs() if code else await self._workspace.take_out(self._bench)
        words = {"stdout": stdout, "stderr": stderr, **outcome.words()}

        if code:
            return RunEnded({"status": "error", "error": f"Sandbox exited with code {code}", **words})

        return RunEnded({"status": "completed", **words})

    def _failed(self, error: str) -> RunEnded:
        self._bench.is_failed = True
        return RunEnded({"status": "error", "error": error, "stdout": "", "stderr": "", "files": []})


_MAX_WAITING = 256
_MAX_WAITING_OF_KEY = 32
_TOKEN_BYTES = 32
_REQUEST_ID_HEADER = "x-librechat-code-request-id"
_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    run: ToolRun
    expiry: asyncio.TimerHandle


class ToolRuns:
    """The runs of a server that wait for tools.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[str, _Waiting] = {}
        # Requests under way, by key and the id that their client has given them.
        self._under_way: dict[tuple[str, str], asyncio.Task[dict[str, object]]] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response:
        """Answers `POST /exec/programmatic`."""
        principal = await caller_of(self._services, request)
        call = read_programmatic(await request.body())

        if isinstance(call, ToolRunCall) and self._services.drain.begun:
            # A server that drains lets waiting runs continue, and begins none.
            raise ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=False)

        task = asyncio.ensure_future(self._advance(principal, call))
        name = (principal.key_id, request.headers.get(_REQUEST_ID_HEADER, ""))

        if name[1]:
            self._under_way[name] = task

        try:
            return JSONResponse(await unless_gone(request, task))
        except asyncio.CancelledError:
            if task.cancelled() and not is_cancelled():
                return JSONResponse({"status": "error", "error": "cancelled"})

            raise
        finally:
            # Another request may have been given the same id meanwhile.
            if self._under_way.get(name) is task:
                del self._under_way[name]

    async def cancel(self, request: Request) -> Response:
        """Answers `POST /exec/programmatic/cancel`: ends the request of that id, if this key has it under way."""
        principal = await caller_of(self._services, request)
        given = read_object(await request.body()).get("request_id")
        task = self._under_way.get((principal.key_id, str(given)))

        if task is not None:
            task.cancel()

        return JSONResponse({"cancelled": task is not None})

    async def _advance(self, principal: Principal, call: ToolRunCall | Continuation) -> dict[str, object]:
        run = (
            self._new(principal, call) if isinstance(call, ToolRunCall) else self._take(principal, call.token)
        )
        is_waiting = False

        try:
            async with self._services.queue.place(principal.key_id, self._services.settings.queue_seconds):
                step = await (run.start() if isinstance(call, ToolRunCall) else run.go_on(call.results))

            if isinstance(step, RunEnded):
                return {**step.words, "session_id": run.session_id, "storage_session_id": run.session_id}

            is_waiting = True
            return self._suspended(run, step)
        finally:
            if not is_waiting:
                await complete(self._closed(run))

    def _new(self, principal: Principal, call: ToolRunCall) -> ToolRun:
        of_key = sum(waiting.run.owner == principal.key_id for waiting in self._waiting.values())

        if len(self._waiting) >= _MAX_WAITING or of_key >= _MAX_WAITING_OF_KEY:
            raise OverloadedError(reason="too many runs wait for tools", retry_after_seconds=_RETRY_SECONDS)

        return ToolRun(self._services, principal, call)

    def _take(self, principal: Principal, token: str) -> ToolRun:
        waiting = self._waiting.get(token)

        # A token of another key stays valid for its holder, and is refused here like an unknown one.
        if waiting is None or waiting.run.owner != principal.key_id:
            raise NotThereError(
                field="continuation_token",
                value=f"{token[:4]}...",
                allowed=f"a token of the last answer, used once, within {WAIT_SECONDS:g} s",
            )

        del self._waiting[token]
        waiting.expiry.cancel()
        return waiting.run

    def _suspended(self, run: ToolRun, step: PendingCalls) -> dict[str, object]:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        expiry = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._expire, token)
        self._waiting[token] = _Waiting(run, expiry)
        return {
            "status": "tool_call_required",
            "continuation_token": token,
            "tool_calls": list(step.calls),
            "session_id": run.session_id,
            "storage_session_id": run.session_id,
        }

    def _expire(self, token: str) -> None:
        waiting = self._waiting.pop(token, None)

        if waiting is not None:
            self._in_background(self._closed(waiting.run))

    def _in_background(self, ending: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    @staticmethod
    async def _closed(run: ToolRun) -> None:
        # The sandbox can be gone already.
        with contextlib.suppress(FumehoodError):
            await run.close()
