"""The Connect protocol with its JSON codec, in the parts that E2B's clients use: calls, and one-way streams.

Frames are a byte of flags, a length in four bytes and JSON; each is bounded before it is read. Compressed frames and
the binary codec are refused as the protocol specifies.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.bounds import MIB
from fumehood.dialects.e2b.answers import DEAD_CODES, connect_error
from fumehood.dialects.e2b.bodies import read_object
from fumehood.dialects.e2b.streams import StreamAnswer
from fumehood.errors import FumehoodError, InvalidArgumentError, RequestTooLargeError
from fumehood.server.admission import LOST_RIGHT, note_refused_caller
from fumehood.server.pace import TURN_SECONDS

UNARY_TYPE = "application/json"
STREAM_TYPE = "application/connect+json"
_HEAD = struct.Struct(">BI")
_END = 0x02
_MAX_FRAME_BYTES = 8 * MIB
_MAX_TIMEOUT_DIGITS = 10


class DeadlineError(FumehoodError):
    """The deadline of a call has passed."""

    code = "deadline"

    def __init__(self, *, seconds: float | None) -> None:
        shown = "" if seconds is None else f" of {seconds:g} s"
        super().__init__(f"the time{shown} that the call was given is over")


def has_type(request: Request, expected: str) -> bool:
    """Returns whether a request's body is of a type."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == expected


def wrong_type_answer() -> Response:
    """Returns the response to a codec that is not supported."""
    return Response(status_code=415, headers={"Accept-Post": f"{UNARY_TYPE}, {STREAM_TYPE}"})


def deadline_answer(error: DeadlineError) -> Response:
    """Returns the response to a call whose deadline has passed."""
    return JSONResponse(deadline_data(error), 504)


def deadline_data(error: DeadlineError) -> dict[str, Any]:
    """Returns a passed deadline as Connect writes it."""
    return {"code": "deadline_exceeded", "message": error.message}


def timeout_of(request: Request) -> float | None:
    """Returns the deadline of a call in seconds, or None for no end.

    Raises:
        InvalidArgumentError: The header does not contain a time.
    """
    text = request.headers.get("connect-timeout-ms", "").strip()

    if not text:
        return None

    if not text.isascii() or not text.isdigit() or len(text) > _MAX_TIMEOUT_DIGITS:
        raise InvalidArgumentError(
            field="Connect-Timeout-Ms", value=text, allowed=f"1 to {_MAX_TIMEOUT_DIGITS} digits"
        )

    # Zero means no end at E2B.
    return int(text) / 1000 or None


def frame(data: object, flags: int = 0) -> bytes:
    """Returns one frame."""
    payload = json.dumps(data, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(payload)) + payload


async def frames(pieces: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the JSON objects of a stream of frames as they arrive.

    Raises:
        RequestTooLargeError: A frame is larger than the bound.
        InvalidArgumentError: The bytes are not a stream of frames.
    """
    held = bytearray()
    ends_at = time.monotonic() + TURN_SECONDS

    async for piece in pieces:
        held += piece

        while len(held) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(held)

            if length > _MAX_FRAME_BYTES:
                raise RequestTooLargeError(what="frame", maximum=_MAX_FRAME_BYTES)

            if flags:
                raise InvalidArgumentError(field="frame flags", value=flags, allowed="0: no compression")

            if len(held) < _HEAD.size + length:
                break

            payload = bytes(held[_HEAD.size : _HEAD.size + length])
            del held[: _HEAD.size + length]
            yield read_object(payload)

            # A piece may hold thousands of messages, whose readers need not wait for anything.
            if time.monotonic() > ends_at:
                await asyncio.sleep(0)
                ends_at = time.monotonic() + TURN_SECONDS

    if held:
        raise InvalidArgumentError(field="body", value="cut off", allowed="whole frames")


async def only_frame(request: Request) -> dict[str, Any]:
    """Returns the one JSON object with which a client begins a stream from the server."""
    async with aclosing(frames(request.stream())) as messages:
        async for message in messages:
            return message

    raise InvalidArgumentError(field="body", value="nothing", allowed="one frame")


def stream_answer(messages: AsyncGenerator[dict[str, Any], None]) -> Response:
    """Returns a response that streams messages.

    An error in it is its last frame; the end of its sandbox resets the connection.
    """
    return StreamAnswer(_framed(messages), {"content-type": STREAM_TYPE})


def reply_answer(message: dict[str, Any]) -> Response:
    """Returns the response to a client's stream: one message."""
    return Response(frame(message) + frame({}, _END), media_type=STREAM_TYPE)


def error_stream_answer(error: FumehoodError) -> Response:
    """Returns the response for a stream that did not begin: an error is its only frame, and the status is 200."""
    if isinstance(error, LOST_RIGHT):
        note_refused_caller()

    data = deadline_data(error) if isinstance(error, DeadlineError) else connect_error(error)
    return Response(frame({"error": data}, _END), media_type=STREAM_TYPE)


async def _framed(messages: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    end: dict[str, Any] = {}

    async with aclosing(messages):
        try:
            async for message in messages:
                yield frame(message)
        except DeadlineError as error:
            end = {"error": deadline_data(error)}
        except FumehoodError as error:
            if error.code in DEAD_CODES:
                raise

            end = {"error": connect_error(error)}

    yield frame(end, _END)
