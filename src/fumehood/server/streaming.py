"""Answers that come line by line: NDJSON or server-sent events, from an iterator of the port to a client's socket.

Runs in the server process, for native routes and dialects alike. Nothing waits in a buffer to be sent, a client
that has gone ends what it followed, and one that reads too slowly never makes the server hold more than a bound:
see `heard` for executions, whose code cannot be told to wait; all other sources wait by themselves.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.errors import FumehoodError
from fumehood.events import (
    ClearOutputEvent,
    CommEvent,
    ErrorEvent,
    Event,
    ExecutionFinished,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.limits import MIB
from fumehood.serialise import as_data
from fumehood.server.drain import RETRY_SECONDS
from fumehood.server.problems import problem_data, request_id_of
from fumehood.service_errors import ServerEndingError, SlowReaderError

Form = Literal["application/x-ndjson", "text/event-stream"]
Line: TypeAlias = Mapping[str, Any]
NDJSON: Form = "application/x-ndjson"
EVENTS: Form = "text/event-stream"
_FORMS: Mapping[str, Form] = {NDJSON: NDJSON, EVENTS: EVENTS}

# More than all that an execution with the default limits may keep, so only endless updates reach it.
_MAX_WAITING_BYTES = 80 * MIB
# How long an error may take to still become the status of the answer.
_FIRST_SECONDS = 1.0
_KEEPALIVE_SECONDS = 15.0
_SEND_SECONDS = 60.0
_PIECE_BYTES = 256 * 1024
_EVENT_BYTES = 256
_NAMES: Mapping[type, str] = {
    ExecutionStarted: "started",
    StdoutEvent: "stdout",
    StderrEvent: "stderr",
    ResultEvent: "result",
    ClearOutputEvent: "clear_output",
    ErrorEvent: "error",
    InputRequestEvent: "input_request",
    CommEvent: "comm",
    ExecutionFinished: "finished",
}
# JSON leaves them as they are, and some clients end lines at them: a guest could write lines of its own.
_LINE_ENDS = tuple((character.encode(), b"\\u%04x" % ord(character)) for character in "\x85\u2028\u2029")
# nginx and its kin hold answers back unless told otherwise.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_T = TypeVar("_T")


def wanted_form(request: Request) -> Form | None:
    """Returns the stream that a request asks for by its `Accept`, or None if it asks for none."""
    found: Form | None = None
    best = 0.0

    for part in request.headers.get("accept", "").lower().split(","):
        media_type, _, parameters = part.partition(";")
        form, quality = _FORMS.get(media_type.strip()), _quality(parameters)

        if form is not None and quality > best:
            found, best = form, quality

    return found


def is_stream_wanted(request: Request) -> bool:
    """Tells whether a request asks for a stream rather than one answer."""
    return wanted_form(request) is not None


async def stream_response(request: Request, lines: AsyncGenerator[Line, None]) -> Response:
    """Returns an answer whose lines are sent as they come; NDJSON unless the request asks for events.

    Raises:
        FumehoodError: What `lines` raised before the first of them: it becomes an answer with its own status.
    """
    following = _Following(lines)

    try:
        first = await following.next(_FIRST_SECONDS)
    except BaseException:
        await following.close()
        raise

    form = wanted_form(request) or NDJSON
    return _LineStream(following, first, form, request_id_of(request), _end_of_server(request))


async def event_lines(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Line, None]:
    """Gives the events of an execution as lines; a reader who falls too far behind ends it."""
    async with aclosing(heard(events)) as bounded:
        async for event in bounded:
            yield event_data(event)


def event_data(event: Event) -> dict[str, Any]:
    """Returns an event as a line; its `type` is stable."""
    data = as_data(event)
    assert isinstance(data, dict)
    return {"type": _NAMES[type(event)], **data}


async def heard(
    events: AsyncGenerator[Event, None], max_waiting_bytes: int = _MAX_WAITING_BYTES
) -> AsyncGenerator[Event, None]:
    """Gives events as they come, and never lets more of them wait for the reader than a bound.

    Running code cannot be told to wait: a reader who falls further behind ends the execution.

    Raises:
        SlowReaderError: So much waited; what was waiting has come first.
    """
    waiting: deque[Event] = deque()
    news = asyncio.Event()
    waiting_bytes = 0

    async def listen() -> None:
        nonlocal waiting_bytes

        async with aclosing(events):
            async for event in events:
                waiting.append(event)
                waiting_bytes += _size_of(event)
                news.set()

                if waiting_bytes > max_waiting_bytes:
                    raise SlowReaderError(maximum=max_waiting_bytes)

    listener = asyncio.create_task(listen())
    listener.add_done_callback(lambda _: news.set())
    try:
        while waiting or not listener.done():
            news.clear()

            while waiting:
                event = waiting.popleft()
                waiting_bytes -= _size_of(event)
                yield event

            if not listener.done():
                await news.wait()

        await listener
    finally:
        await ended(listener)


class _LineStream(Response):
    """An answer whose lines are sent as they come."""

    def __init__(
        self,
        following: _Following,
        first: Line | None,
        form: Form,
        request_id: str,
        server_ends: asyncio.Event,
    ) -> None:
        super().__init__(headers=_HEADERS, media_type=form)
        del self.headers["content-length"]
        self._following = following
        self._first = first
        self._write = _as_event if form == EVENTS else _as_ndjson
        self._request_id = request_id
        self._server_ends = server_ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        over = asyncio.create_task(self._server_ends.wait())
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await self._follow(gone, over, send)
        finally:
            await ended(over)
            await ended(gone)
            await self._following.close()

    async def _follow(self, gone: asyncio.Task[None], over: asyncio.Task[Literal[True]], send: Send) -> None:
        line = self._first

        while not gone.done():
            if self._following.ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

            await send_bytes(self._write(line or {"type": "keepalive"}), send)

            try:
                line = await self._following.next(_KEEPALIVE_SECONDS, gone, over)

                if over.done() and not self._following.ended:
                    await send_bytes(self._write(line or {"type": "keepalive"}), send)
                    raise _cut_off()
            except FumehoodError as error:
                self._following.ended = True
                problem = {"type": "problem", "problem": problem_data(error, self._request_id)}
                await send_bytes(self._write(problem), send)


async def send_bytes(data: bytes, send: Send) -> None:
    """Sends a piece of an answer's body.

    Raises:
        TimeoutError: The client took nothing of it for a minute: it has gone, and did not say so.
    """
    # In pieces, so that the socket's own bound holds.
    for start in range(0, len(data), _PIECE_BYTES):
        async with asyncio.timeout(_SEND_SECONDS):
            piece = data[start : start + _PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T | None:
    """Returns what `work` returns; when the client goes away first, cancels it and returns None.

    Raises:
        ServerEndingError: The server ends, and has waited for it as long as it may.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(request.receive))
    over = asyncio.create_task(_end_of_server(request).wait())
    try:
        await asyncio.wait({task, gone, over}, return_when=asyncio.FIRST_COMPLETED)

        if over.done() and not task.done():
            raise _cut_off()

        return await task if task.done() else None
    finally:
        await ended(over)
        await ended(gone)
        await ended(task)


def _end_of_server(request: Request) -> asyncio.Event:
    """What is set when the time of all that is under way is over."""
    over = request.app.state.services.drain.over
    assert isinstance(over, asyncio.Event)
    return over


def _cut_off() -> FumehoodError:
    return ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=True)


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancels a task unless it is done, and returns when it has ended, however."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])

    # Read it once, or the loop would report an error as never retrieved.
    if not task.cancelled():
        task.exception()


class _Following:
    """An iterator whose next item may be waited for several times."""

    def __init__(self, lines: AsyncGenerator[Line, None]) -> None:
        self.ended = False
        self._lines = lines
        self._pull: asyncio.Task[Line | None] | None = None

    async def next(self, seconds: float, *unless: asyncio.Task[Any]) -> Line | None:
        """Returns the next line, or None when there is none so soon, none any more, or one of the tasks is done."""
        if self._pull is None:
            self._pull = asyncio.create_task(self._next())

        await asyncio.wait({self._pull, *unless}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

        if not self._pull.done():
            return None

        pull, self._pull = self._pull, None
        # An error is the end as well.
        self.ended = True
        line = pull.result()
        self.ended = line is None
        return line

    async def _next(self) -> Line | None:
        return await anext(self._lines, None)

    async def close(self) -> None:
        """Closes the iterator, which ends what it stands for."""
        if self._pull is not None:
            await ended(self._pull)

        with suppress(FumehoodError):
            await self._lines.aclose()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        # What is left of the request's body tells nothing.
        continue


def _size_of(event: Event) -> int:
    match event:
        case StdoutEvent() | StderrEvent():
            return _EVENT_BYTES + len(event.text)
        case ResultEvent():
            return _EVENT_BYTES + event.result.size_bytes
        case CommEvent():
            return _EVENT_BYTES + len(repr(event.data)) + sum(map(len, event.buffers))
        case _:
            return _EVENT_BYTES


def json_bytes(value: object) -> bytes:
    """Returns plain data as JSON that any client can read, whatever characters a guest has put into it."""
    # A guest's JSON may hold halves of characters, which UTF-8 has no bytes for.
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    for character, written in _LINE_ENDS:
        data = data.replace(character, written)

    return data


def _as_ndjson(line: Line) -> bytes:
    return json_bytes(line) + b"\n"


def _as_event(line: Line) -> bytes:
    kind = line.get("type", "message")

    if kind == "keepalive":
        return b": keepalive\n\n"

    return b"event: %s\ndata: %s\n" % (str(kind).encode(), _as_ndjson(line))


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")

        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0

    return 1.0
