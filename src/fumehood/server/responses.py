"""Responses of any length: sent line by line as NDJSON or server-sent events, or serialised off the loop.

Native routes and dialects alike use them. Lines are sent at once, a client that disconnects ends its iterator, and a
client that reads too slowly never makes the server hold more than a bound: the iterator is not advanced while lines
wait, except for executions, which hold a place until they end. The JSON of a large value is written in the thread for
answers, where it takes turns with the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.bounds import SLOW_READER_BYTES
from fumehood.cancellation import cancel_and_wait, first_of, when_done
from fumehood.errors import FumehoodError, ServerEndingError, SlowReaderError
from fumehood.off_loop import SMALL_BYTES, json_in_pieces, off_loop
from fumehood.server.admission import until_right_is_lost
from fumehood.server.drain import RETRY_SECONDS
from fumehood.server.problems import problem_data, request_id_of
from fumehood.values import carried
from fumehood.values.events import (
    ClearOutputEvent,
    CommEvent,
    CommitRequestEvent,
    ErrorEvent,
    Event,
    ExecutionFinished,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
    ToolCallEvent,
    event_bytes,
)
from fumehood.values.execution import Execution
from fumehood.values.json_text import json_bytes, readable_json
from fumehood.values.plain_data import as_data
from fumehood.values.results import held_bytes
from fumehood.values.stateless import StatelessReply

Form = Literal["application/x-ndjson", "text/event-stream"]
Line: TypeAlias = Mapping[str, Any]
UntilRefused: TypeAlias = Callable[[Request], Coroutine[Any, Any, FumehoodError]]
NDJSON: Form = "application/x-ndjson"
EVENTS: Form = "text/event-stream"
# For metrics and logs only, since the client has left; nginx uses the same number.
GONE = 499
_FORMS: Mapping[str, Form] = {NDJSON: NDJSON, EVENTS: EVENTS}

# How long the first line is awaited, so that an error can still become the status of the response.
_FIRST_SECONDS = 1.0
_KEEPALIVE_SECONDS = 15.0
_SEND_SECONDS = 60.0
_PIECE_BYTES = 256 * 1024
_NAMES: Mapping[type, str] = {
    ExecutionStarted: "started",
    StdoutEvent: "stdout",
    StderrEvent: "stderr",
    ResultEvent: "result",
    ClearOutputEvent: "clear_output",
    ErrorEvent: "error",
    InputRequestEvent: "input_request",
    ToolCallEvent: "tool_call",
    CommEvent: "comm",
    CommitRequestEvent: "commit_request",
    ExecutionFinished: "finished",
}
# nginx and similar proxies buffer responses unless this forbids it.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_T = TypeVar("_T")


def wanted_form(request: Request) -> Form | None:
    """Returns the stream that a request asks for by its `Accept`, or None if it does not ask for a stream."""
    found: Form | None = None
    best = 0.0

    for part in request.headers.get("accept", "").lower().split(","):
        media_type, _, parameters = part.partition(";")
        form, quality = _FORMS.get(media_type.strip()), _quality(parameters)

        if form is not None and quality > best:
            found, best = form, quality

    return found


def is_stream_wanted(request: Request) -> bool:
    """Returns whether a request asks for a stream rather than one answer."""
    return wanted_form(request) is not None


async def stream_response(
    request: Request,
    lines: AsyncGenerator[Line, None],
    max_waiting_bytes: int | None = None,
    *,
    until_refused: UntilRefused | None = None,
) -> Response:
    """Returns a response whose lines are sent as they come; NDJSON unless the request asks for events.

    Args:
        request: The request.
        lines: The lines; closed at the end, or when the client has gone.
        max_waiting_bytes: How many bytes may wait for a slow reader, if `lines` cannot be paused; a reader that falls
            further behind gets an error as its last line. None: `lines` waits.
        until_refused: Waits until the caller may no longer read; returns the error that becomes the last line. None:
            uses the check of the request's authenticator.

    Raises:
        FumehoodError: The error that `lines` raised before its first line: it becomes an answer with its own status.
    """
    form = wanted_form(request) or NDJSON
    following = _Following(lines, _as_event if form == EVENTS else _as_ndjson, max_waiting_bytes)

    try:
        await following.news(_FIRST_SECONDS)

        if following.is_over and not following.has_news and (error := following.error()) is not None:
            raise error
    except BaseException:
        await following.close()
        raise

    return _LineStream(following, form, request, until_refused or _until_refused)


async def _until_refused(_: Request) -> FumehoodError:
    return await until_right_is_lost()


def event_data(event: Event) -> dict[str, Any]:
    """Returns an event as a line; its `type` is stable."""
    data = as_data(event)
    assert isinstance(data, dict)
    return {"type": _NAMES[type(event)], **data}


class _LineStream(Response):
    """A response whose lines are sent as they come."""

    def __init__(
        self, following: _Following, form: Form, request: Request, until_refused: UntilRefused
    ) -> None:
        super().__init__(headers=_HEADERS, media_type=form)
        del self.headers["content-length"]
        self._following = following
        self._request = request
        self._until_refused = until_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        over = asyncio.create_task(_end_of_server(self._request).wait())
        refused = asyncio.create_task(self._until_refused(self._request))
        ends = (gone, over, refused)

        for task in ends:
            when_done(task, self._following.wake)

        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await self._follow(gone, over, refused, send)
        finally:
            await cancel_and_wait(*ends)
            await self._following.close()

    async def _follow(
        self,
        gone: asyncio.Task[None],
        over: asyncio.Task[Literal[True]],
        refused: asyncio.Task[FumehoodError],
        send: Send,
    ) -> None:
        following = self._following

        while not gone.done():
            if refused.done():
                # Waiting lines are dropped: their caller may not read them any longer.
                await self._end(refused.result(), send)
                return

            data = following.take()

            if data or not following.is_over:
                await send_bytes(data or following.write({"type": "keepalive"}), send)

            if following.is_over and not following.has_news:
                await self._end(following.error(), send)
                return

            if over.done():
                await self._end(_cut_off(), send)
                return

            if not following.has_news:
                await following.news(_KEEPALIVE_SECONDS)

    async def _end(self, error: FumehoodError | None, send: Send) -> None:
        if error is not None:
            problem = {"type": "problem", "problem": problem_data(error, request_id_of(self._request))}
            await send_bytes(self._following.write(problem), send)

        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_bytes(data: bytes, send: Send) -> None:
    """Sends a piece of a response's body.

    Raises:
        TimeoutError: The client read nothing for a minute, so it is taken for disconnected.
    """
    # In pieces, so that the socket's own bound holds.
    for start in range(0, len(data), _PIECE_BYTES):
        async with asyncio.timeout(_SEND_SECONDS):
            piece = data[start : start + _PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def send_unless_gone(sending: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Sends a response; cancels the sending when the client disconnects first.

    Sending to a disconnected client raises no error: without this, an endless iterator would be read for no client.

    Raises:
        FumehoodError: The caller's credential is not valid any more, so that sending was cancelled too.
    """
    task = asyncio.create_task(sending)
    gone = asyncio.create_task(_until_gone(receive))
    lost = asyncio.create_task(until_right_is_lost())
    ended = await first_of(task, gone, lost)

    if task in ended:
        task.result()
    elif lost in ended:
        raise lost.result()


async def unless_gone(
    request: Request, work: Awaitable[_T], until_refused: UntilRefused | None = None
) -> _T | None:
    """Returns what `work` returns; when the client disconnects first, cancels it and returns None.

    Args:
        request: The request.
        work: The awaitable that the response waits for.
        until_refused: Returns the error to raise instead, once the caller's credential is not valid any more; None
            uses the check of the request's authenticator.

    Raises:
        ServerEndingError: The server is shutting down, and the grace time for `work` is over.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(request.receive))
    over = asyncio.create_task(_end_of_server(request).wait())
    refused = asyncio.create_task((until_refused or _until_refused)(request))
    ended = await first_of(task, gone, over, refused)

    if task in ended:
        return task.result()

    if refused in ended:
        raise refused.result()

    if over in ended:
        raise _cut_off()

    return None


def _end_of_server(request: Request) -> asyncio.Event:
    """Returns the event that is set when the time of all requests under way is over."""
    over = request.app.state.services.drain.over
    assert isinstance(over, asyncio.Event)
    return over


def _cut_off() -> FumehoodError:
    return ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=True)


class _Following:
    """A task that reads an iterator: its encoded lines wait here until they are taken.

    All lines since the last call are taken at once, so that a reader is never more than one turn of the loop behind,
    however many lines there are.

    Attributes:
        write: Encodes a line.
    """

    def __init__(
        self, lines: AsyncGenerator[Line, None], write: Callable[[Line], bytes], max_waiting_bytes: int | None
    ) -> None:
        self.write = write
        self._lines = lines
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._listener = asyncio.create_task(self._listen())
        when_done(self._listener, self.wake)

    @property
    def is_over(self) -> bool:
        """True when no more lines come."""
        return self._listener.done()

    @property
    def has_news(self) -> bool:
        """True when lines wait."""
        return bool(self._waiting)

    def wake(self) -> None:
        """Makes `news` return because of another event."""
        self._news.set()

    async def news(self, seconds: float) -> None:
        """Waits until lines are queued, the stream has ended, `wake` is called, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def take(self) -> bytes:
        """Returns the waiting lines and removes them."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._news.clear()
        self._room.set()
        return data

    def error(self) -> FumehoodError | None:
        """Returns the error that ended the iterator, if it belongs to the error tree; raises any other."""
        try:
            self._listener.result()
        except FumehoodError as error:
            return error

        return None

    async def close(self) -> None:
        """Closes the iterator."""
        await cancel_and_wait(self._listener)

        with suppress(FumehoodError):
            await self._lines.aclose()

    async def _listen(self) -> None:
        async with aclosing(self._lines):
            async for line in self._lines:
                self._add(self.write(line))

                if self._max_waiting_bytes is None and self._waiting_bytes >= _PIECE_BYTES:
                    self._room.clear()
                    await self._room.wait()

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._news.set()

        if self._max_waiting_bytes is not None and self._waiting_bytes > self._max_waiting_bytes:
            raise SlowReaderError(maximum=self._max_waiting_bytes)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        # The rest of the request's body is not needed.
        continue


def _as_ndjson(line: Line) -> bytes:
    if isinstance(line, LinesAtOnce):
        return b"".join(map(_as_ndjson, line.lines))

    written: bytes | None = getattr(line, "json", None)
    return (json_bytes(line) if written is None else written) + b"\n"


def _as_event(line: Line) -> bytes:
    if isinstance(line, LinesAtOnce):
        return b"".join(map(_as_event, line.lines))

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


_LOG_ENTRY_BYTES = 200
_Rendered = TypeVar("_Rendered")


class WrittenLine(dict[str, Any]):
    """A line of a stream that is encoded as JSON already.

    Attributes:
        json: The JSON text of the line.
    """

    def __init__(self, kind: str, json: bytes) -> None:
        super().__init__(type=kind)
        self.json = json


class LinesAtOnce(dict[str, Any]):
    """A group of lines that are sent together.

    Attributes:
        lines: The lines.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__()
        self.lines = lines


async def rendered(value: object, render: Callable[[Any], _Rendered]) -> _Rendered:
    """Returns `render(value)`; runs it in the thread for answers if that takes long."""
    if _cost_bytes(value) <= SMALL_BYTES:
        return render(value)

    return await off_loop("answers", render, value)


async def line_of(value: object, data: Callable[[Any], Line]) -> Line:
    """Returns a value as a line of a stream.

    Args:
        value: An event, or another value that a line holds.
        data: Converts the value to plain data.
    """
    if _cost_bytes(value) <= SMALL_BYTES:
        return data(value)

    return await off_loop("answers", _written_line, value, data)


async def stream_events(
    request: Request, events: AsyncGenerator[Event, None], until_refused: UntilRefused | None = None
) -> Response:
    """Returns a response that streams the events of an execution, which cannot be paused, as lines."""
    lines = _event_lines(events, partial(in_wanted_form, request))
    return await stream_response(request, lines, SLOW_READER_BYTES, until_refused=until_refused)


def in_wanted_form(request: Request, value: _T) -> _T:
    """Returns the value to answer with: its results as raw bytes if the client is a server that accepts these."""
    return carried.carried(value) if request.headers.get(carried.HEADER) == carried.PARTS else value


async def _event_lines(
    events: AsyncGenerator[Event, None], in_form: Callable[[Event], Event]
) -> AsyncGenerator[Line, None]:
    async with aclosing(events):
        async for event in events:
            yield await line_of(in_form(event), event_data)


async def large_answer(request: Request, value: object) -> Response:
    """Returns a value of the port as an answer, whatever its size."""
    value = in_wanted_form(request, value)

    if _cost_bytes(value) <= SMALL_BYTES:
        body = json_bytes(as_data(value))
    else:
        body = await off_loop("answers", _written, value)

    return Response(body, media_type="application/json")


async def off_loop_answer(value: object) -> Response:
    """Returns a value of the port as a response, written in the thread for answers: it is usually large."""
    return Response(await off_loop("answers", _written, value), media_type="application/json")


def _written(value: object) -> bytes:
    return readable_json(json_in_pieces(as_data(value)))


def _written_line(value: object, data: Callable[[Any], Line]) -> WrittenLine:
    line = data(value)
    return WrittenLine(line.get("type", ""), readable_json(json_in_pieces(line)))


def _cost_bytes(value: object) -> int:
    """Estimates the bytes of memory that serialising a value takes."""
    match value:
        case Execution():
            texts = sum(_LOG_ENTRY_BYTES + 2 * len(entry.text) for entry in value.logs.entries)
            return texts + sum(map(held_bytes, value.results))
        case ExecutionFinished():
            return _cost_bytes(value.execution)
        case StatelessReply():
            return _cost_bytes(value.execution) + sum(map(len, value.files.values()))
        case ResultEvent() | CommEvent():
            return event_bytes(value)
        case Mapping():
            return sum(map(_cost_bytes, value.values()))
        case _:
            return 0
