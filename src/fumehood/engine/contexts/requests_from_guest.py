"""Requests of a context to the host: tool calls of an execution, answers to questions, and comm messages.

A guest decides when it calls a tool, how often and with what, so calls are counted, measured and timed here: one that
takes too long is answered with an error, and a later answer is dropped. This module never calls a function of the
caller, and never blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.bounds import MIB
from fumehood.engine.clock import SandboxClock, Timer
from fumehood.engine.tasks import Awaited
from fumehood.errors import InvalidArgumentError
from fumehood.values.events import CommEvent, ToolCallEvent
from fumehood.values.execution import ToolOutcome
from fumehood.values.questions import (
    Answer,
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
    LookAtVariables,
    Question,
    SeenVariables,
)
from fumehood.values.requests import ToolAnswer, ToolSpec
from fumehood_wire import messages, payloads
from fumehood_wire.frames import ProtocolError

Header = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """A question to a context; its answer becomes None when the context is gone."""

    question: Question
    answer: Awaited[Answer | None]

    def finish(self, header: Header, payload: bytes) -> None:
        """Takes the reply.

        Raises:
            ProtocolError: The reply cannot be the answer to this question.
        """
        self.answer.resolve(read_answer(self.question, header, payload))

    def lose(self) -> None:
        """Answers with None, because the context is gone."""
        self.answer.resolve(None)


def question_header(question: Question) -> Header:
    """Returns the header of the request, without its id; the payload is the code."""
    match question:
        case CompleteCode():
            return {"type": "complete_request", "cursor_pos": question.cursor}
        case InspectCode():
            return {
                "type": "inspect_request",
                "cursor_pos": question.cursor,
                "detail_level": question.detail,
            }
        case CheckComplete():
            return {"type": "is_complete_request"}
        case LookAtVariables():
            return {"type": "variables_request", **({"marks": True} if question.marks else {})}


def read_answer(question: Question, header: Header, payload: bytes) -> Answer:
    """Returns the answer in a reply that has passed `check` and belongs to the question.

    Raises:
        ProtocolError: The reply cannot be the answer to this question.
    """
    match question:
        case CompleteCode():
            start, end = header["cursor_start"], header["cursor_end"]

            if not start <= end <= len(question.code):
                raise ProtocolError("field", f"complete_reply: from {start} to {end} is not in the code")

            return CodeCompletion(matches=tuple(payloads.parse_matches(payload)), start=start, end=end)
        case InspectCode():
            parts = messages.split_parts(header, payload)
            return CodeInspection(data={mime: messages.read_text(content) for mime, content in parts})
        case CheckComplete():
            return CodeCompleteness(status=header["status"], indent=header["indent"])
        case LookAtVariables():
            return SeenVariables(count=header["count"], found=tuple(payloads.parse_variables(payload)))


def empty_answer(question: Question) -> Answer:
    """Returns the answer for a question without a result."""
    match question:
        case CompleteCode():
            return CodeCompletion(matches=(), start=question.cursor, end=question.cursor)
        case InspectCode():
            return CodeInspection()
        case CheckComplete():
            return CodeCompleteness(status="unknown")
        case LookAtVariables():
            return SeenVariables()


# Bounds on pending arguments, and on the answers of one execution, which a guest need not read.
_MAX_WAITING_BYTES = 8 * MIB
_MAX_ANSWERED_BYTES = 64 * MIB


@dataclass(slots=True)
class _Call:
    """A pending call."""

    number: int
    tool: ToolSpec
    began_at: float
    size_bytes: int
    timer: Timer | None = None


class ToolCalls:
    """The calls of one execution.

    Args:
        execution_id: The id of the execution.
        tools: The tools that the code may call.
        send: Sends a reply to the guest, and drops it if it is not legal any more.
        clock: The sandbox's clock.
    """

    def __init__(
        self,
        execution_id: str,
        tools: Sequence[ToolSpec],
        send: Callable[[Header, bytes], None],
        clock: SandboxClock,
    ) -> None:
        # Called for each call, whatever its outcome, with the tool's name and the raw arguments.
        self.on_asked: Callable[[str, bytes], None] = lambda _name, _payload: None
        self._execution_id = execution_id
        self._tools = {tool.name: tool for tool in tools}
        self._send = send
        self._clock = clock
        self._left = {tool.name: tool.max_calls for tool in tools}
        self._waiting: dict[str, _Call] = {}
        self._waiting_bytes = 0
        self._answered_bytes = 0
        self._outcomes: list[ToolOutcome] = []

    def asked(self, header: Header, payload: bytes, at_seconds: float) -> ToolCallEvent | None:
        """Handles a tool call; returns it as an event, or None if it was answered at once, such as with a refusal.

        Raises:
            ProtocolError: The arguments are not a JSON object.
        """
        arguments = payloads.parse_arguments(payload)
        call = _Call(header["call"], self._tools[header["name"]], self._clock.time(), len(payload))
        name = call.tool.name
        self.on_asked(name, payload)

        if self._left[name] <= 0:
            self._answer(call, f"{name}() may be called {call.tool.max_calls:,} times by one execution")
            return None

        self._left[name] -= 1

        if self._waiting_bytes + call.size_bytes > _MAX_WAITING_BYTES:
            self._answer(call, f"{name}(): the calls that wait hold more than {_MAX_WAITING_BYTES:,} bytes")
            return None

        if _holds_half_characters(payload, arguments):
            self._answer(call, f"{name}(): the arguments hold text that UTF-8 cannot hold")
            return None

        request_id = f"{self._execution_id}/tool-{call.number}"
        self._waiting[request_id] = call
        self._waiting_bytes += call.size_bytes
        call.timer = self._clock.call_later(call.tool.timeout_seconds, self._expire, request_id)
        return ToolCallEvent(
            execution_id=self._execution_id,
            request_id=request_id,
            name=name,
            arguments=arguments,
            at_seconds=at_seconds,
        )

    def answer(self, answer: ToolAnswer) -> None:
        """Answers a call; ignores one that is not pending any more."""
        call = self._take(answer.request_id)

        if call is None:
            return

        if answer.error is not None:
            self._answer(call, answer.error)
            return

        payload = json.dumps(answer.value).encode("ascii")

        if not self._has_room(payload):
            self._answer(call, _full(call))
            return

        self._record(call, ok=True)
        self._send({"type": "tool_reply", "call": call.number, "ok": True}, payload)

    def over(self) -> tuple[ToolOutcome, ...]:
        """Ends all calls of the execution, and returns their outcomes."""
        for request_id in tuple(self._waiting):
            call = self._take(request_id)
            assert call is not None, "it was among those that wait"
            self._record(call, ok=False)

        return tuple(self._outcomes)

    def _expire(self, request_id: str) -> None:
        call = self._take(request_id)

        if call is not None:
            self._answer(call, f"{call.tool.name}() took longer than {call.tool.timeout_seconds:g} s")

    def _take(self, request_id: str) -> _Call | None:
        call = self._waiting.pop(request_id, None)

        if call is not None:
            self._waiting_bytes -= call.size_bytes

            if call.timer is not None:
                call.timer.cancel()

        return call

    def _answer(self, call: _Call, error: str) -> None:
        self._record(call, ok=False)
        payload = json.dumps(error).encode("ascii")

        if not self._has_room(payload):
            payload = json.dumps(_full(call)).encode("ascii")

        self._send({"type": "tool_reply", "call": call.number, "ok": False}, payload)

    def _has_room(self, payload: bytes) -> bool:
        if self._answered_bytes + len(payload) > _MAX_ANSWERED_BYTES:
            return False

        self._answered_bytes += len(payload)
        return True

    def _record(self, call: _Call, *, ok: bool) -> None:
        seconds = self._clock.time() - call.began_at
        self._outcomes.append(ToolOutcome(name=call.tool.name, ok=ok, seconds=seconds))


def _full(call: _Call) -> str:
    return f"{call.tool.name}(): all answers together take more than {_MAX_ANSWERED_BYTES:,} bytes"


def _holds_half_characters(payload: bytes, arguments: dict[str, Any]) -> bool:
    """Whether text in the arguments has lone surrogates: JSON can escape them, but they cannot be encoded as UTF-8."""
    if b"\\ud" not in payload and b"\\uD" not in payload:
        return False

    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True

    return False


KINDS = frozenset({"comm_open", "comm_msg", "comm_close"})


def comm_request(message: CommMessage) -> tuple[Header, bytes]:
    """Returns header and payload of a message to a context, without its id and its bounds.

    Raises:
        InvalidArgumentError: The message is nested too deeply, or has too many values.
    """
    said = {"data": dict(message.data), "metadata": dict(message.metadata)}
    content = json.dumps(said, allow_nan=False).encode()
    try:
        payloads.parse_comm(content)
    except ProtocolError as error:
        raise InvalidArgumentError(field="data", value=said, allowed=f"less than that: {error}") from None

    header: Header = {
        "type": message.kind,
        "comm_id": message.comm_id,
        "buffers": [len(one) for one in message.buffers],
    }

    if message.kind == "comm_open":
        header["target_name"] = message.target_name

    return header, b"".join((content, *message.buffers))


def comm_event(header: Header, payload: bytes, at_seconds: float) -> CommEvent:
    """Returns a context's comm message as an event; the message has passed `check`.

    Raises:
        ProtocolError: The payload is malformed.
    """
    content, buffers = payloads.split_comm(header, payload)
    data, metadata = payloads.parse_comm(content)
    return CommEvent(
        kind=header["type"],
        comm_id=header["comm_id"],
        at_seconds=at_seconds,
        data=data,
        metadata=metadata,
        buffers=tuple(buffers),
        target_name=header.get("target_name", ""),
    )
