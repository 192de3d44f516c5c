"""`/exec/programmatic`: runs that wait for tools, continued by tokens that are valid once, for one key.

Runs in the server process, on its loop; a restart of the server ends waiting runs. How many runs may wait is bounded,
for each key and in total, and so is how long.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.cancellation import complete, is_cancelled
from fumehood.dialects.librechat.answers import NotThereError, caller_of
from fumehood.dialects.librechat.tool_bodies import Continuation, ToolRunCall, read_programmatic
from fumehood.dialects.librechat.tool_run import WAIT_SECONDS, Calls, Ended, ToolRun
from fumehood.errors import FumehoodError, OverloadedError, ServerEndingError
from fumehood.server.drain import RETRY_SECONDS
from fumehood.server.json_bodies import read_object
from fumehood.server.principal import Principal
from fumehood.server.services import Services
from fumehood.server.streaming import unless_gone

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

            if isinstance(step, Ended):
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

    def _suspended(self, run: ToolRun, step: Calls) -> dict[str, object]:
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
