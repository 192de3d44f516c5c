"""States: which message of a context conversation is legal when.

The host keeps one `Conversation` for each context, and shows it every message that it sends and every
checked message that it receives. It must never forgive: a message out of order means that something other
than our guest speaks on the channel. The invariant: a result, an error, a question or an answer belongs to
the execution that runs now, and an answered execution is never answered again. A tool is called only by an
execution that was given it, no more often than it may, under a number higher than the one before, and each
call is answered once.
"""

from __future__ import annotations

import enum

from fumehood_wire.frames import Header, ProtocolError

__all__ = ["Conversation", "Kind", "State"]


class State(enum.Enum):
    """The state of a conversation."""

    STARTING = "starting"  # the context has not said that it is ready
    IDLE = "idle"  # no execution
    BUSY = "busy"  # an execution has been sent and not been answered
    ASKING = "asking"  # as BUSY, and the code waits for a line of input
    COMPLETING = "completing"  # the host has asked what could stand at a cursor
    INSPECTING = "inspecting"  # the host has asked what a cursor is on
    CHECKING = "checking"  # the host has asked whether code is complete
    LOOKING = "looking"  # the host has asked for variables
    FORKING = "forking"  # the host has asked for a checkpoint
    HELD = "held"  # there is a checkpoint, and the context waits until the host lets it go on
    CLOSING = "closing"  # the context was asked to end


class Kind(enum.Enum):
    """The kind of exchange that a legal message belongs to."""

    STATUS = "status"  # the context itself
    CURRENT = "current"  # the execution that runs now
    ANSWER = "answer"  # the question that the host has asked
    BACKGROUND = "background"  # an earlier execution, whose tasks or threads still write


# What the host may send, and where that leads.
_SENT = {
    (State.IDLE, "execute_request"): State.BUSY,
    (State.IDLE, "comm_open"): State.BUSY,
    (State.IDLE, "comm_msg"): State.BUSY,
    (State.IDLE, "comm_close"): State.BUSY,
    (State.IDLE, "complete_request"): State.COMPLETING,
    (State.IDLE, "inspect_request"): State.INSPECTING,
    (State.IDLE, "is_complete_request"): State.CHECKING,
    (State.IDLE, "variables_request"): State.LOOKING,
    (State.IDLE, "checkpoint_request"): State.FORKING,
    (State.IDLE, "shutdown_request"): State.CLOSING,
    (State.STARTING, "proceed"): State.STARTING,
    (State.HELD, "proceed"): State.IDLE,
    (State.ASKING, "input_reply"): State.BUSY,
    (State.BUSY, "tool_reply"): State.BUSY,
    (State.ASKING, "tool_reply"): State.ASKING,
}

# What the guest may send about itself or the current execution, and where that leads.
_RECEIVED = {
    (State.STARTING, "status"): State.IDLE,
    (State.BUSY, "stream"): State.BUSY,
    (State.BUSY, "display_data"): State.BUSY,
    (State.BUSY, "update_display_data"): State.BUSY,
    (State.BUSY, "clear_output"): State.BUSY,
    (State.BUSY, "comm_open"): State.BUSY,
    (State.BUSY, "comm_msg"): State.BUSY,
    (State.BUSY, "comm_close"): State.BUSY,
    (State.BUSY, "execute_result"): State.BUSY,
    (State.BUSY, "error"): State.BUSY,
    (State.BUSY, "input_request"): State.ASKING,
    (State.BUSY, "tool_request"): State.BUSY,
    (State.BUSY, "changes"): State.BUSY,
    (State.BUSY, "telemetry"): State.BUSY,
    (State.BUSY, "execute_reply"): State.IDLE,
    # While one thread waits for input others go on. An interrupt ends the wait unanswered, and the code may
    # ask again.
    (State.ASKING, "stream"): State.ASKING,
    (State.ASKING, "display_data"): State.ASKING,
    (State.ASKING, "update_display_data"): State.ASKING,
    (State.ASKING, "clear_output"): State.ASKING,
    (State.ASKING, "comm_open"): State.ASKING,
    (State.ASKING, "comm_msg"): State.ASKING,
    (State.ASKING, "comm_close"): State.ASKING,
    (State.ASKING, "execute_result"): State.ASKING,
    (State.ASKING, "error"): State.ASKING,
    (State.ASKING, "input_request"): State.ASKING,
    (State.ASKING, "tool_request"): State.ASKING,
    (State.ASKING, "changes"): State.ASKING,
    (State.ASKING, "telemetry"): State.ASKING,
    (State.ASKING, "execute_reply"): State.IDLE,
    (State.COMPLETING, "complete_reply"): State.IDLE,
    (State.INSPECTING, "inspect_reply"): State.IDLE,
    (State.CHECKING, "is_complete_reply"): State.IDLE,
    (State.LOOKING, "variables_reply"): State.IDLE,
    (State.FORKING, "checkpoint_reply"): State.HELD,
}

# What the guest may send about an earlier execution, whatever the state.
_BACKGROUND = frozenset(
    {"stream", "display_data", "update_display_data", "clear_output", "comm_open", "comm_msg", "comm_close"}
)
_ANSWERS = frozenset(
    {"complete_reply", "inspect_reply", "is_complete_reply", "variables_reply", "checkpoint_reply"}
)

_MAX_NAME_CHARS = 40


class Conversation:
    """The order of messages between the host and one context.

    The id of a request, an execution or a question, is the conversation's name and a counter: so every earlier id is
    recognised without being stored.

    Args:
        name: Unique to each conversation and impossible to guess; at most 40 characters.
        count: How many requests came before, if the conversation continues with a process made from a checkpoint.
    """

    __slots__ = (
        "_calls_left",
        "_count",
        "_current_id",
        "_last_call",
        "_may_ask",
        "_open_calls",
        "_prefix",
        "_state",
        "_tools",
    )

    def __init__(self, name: str, count: int = 0) -> None:
        if not 0 < len(name) <= _MAX_NAME_CHARS:
            raise ValueError(f"name of {len(name)} characters, not 1 to {_MAX_NAME_CHARS}")

        self._prefix = f"{name}-"
        self._state = State.STARTING
        self._count = count
        self._current_id: str | None = None
        self._may_ask = False
        self._tools: frozenset[str] = frozenset()
        self._open_calls: set[int] = set()
        self._calls_left = 0
        self._last_call = 0

    @property
    def state(self) -> State:
        """The state of the conversation."""
        return self._state

    @property
    def current_id(self) -> str | None:
        """The id of the request that is open now, or None."""
        return self._current_id

    @property
    def count(self) -> int:
        """The number of requests so far."""
        return self._count

    @property
    def next_id(self) -> str:
        """The id that the next request must carry."""
        return f"{self._prefix}{self._count + 1}"

    def sent(self, header: Header) -> None:
        """Note a message that the host is about to send.

        Raises:
            RuntimeError: The host must not send this now; nothing was noted.
        """
        message_type = header["type"]
        state = _SENT.get((self._state, message_type))
        is_request = self._state is State.IDLE and message_type not in ("shutdown_request", "proceed")
        legal_id = self.next_id if is_request else self._current_id

        is_unasked = message_type == "tool_reply" and header.get("call") not in self._open_calls

        if state is None or header.get("id") != legal_id or is_unasked:
            raise RuntimeError(f"{message_type} of id {header.get('id')!r} sent while {self._state.value}")

        if is_request:
            self._count += 1
            self._current_id = legal_id
            self._may_ask = header.get("allow_stdin", False)

            if "tools" in header:
                self._tools = frozenset(tool["name"] for tool in header["tools"])
                self._calls_left = header.get("tool_calls", 0)

        if message_type == "tool_reply":
            self._open_calls.discard(header["call"])

        if message_type == "proceed":
            self._current_id = None

        self._state = state

    def received(self, header: Header) -> Kind:
        """Note a message from the guest that has passed `check`, and return the kind of exchange it belongs to.

        Raises:
            ProtocolError: The message is not legal now, or not for that execution; the code is `order`.
        """
        message_type = header["type"]
        message_id = header.get("id")
        state = _RECEIVED.get((self._state, message_type))

        if state is None or message_id != self._current_id:
            return self._background(message_type, message_id)

        if message_type == "input_request" and not self._may_ask:
            raise ProtocolError("order", "input_request from an execution that may not ask")

        if message_type == "tool_request":
            self._note_call(header)

        if message_type == "checkpoint_reply" and header["errno"]:
            state = State.IDLE

        if state is State.IDLE:
            self._current_id = None

            if self._tools:
                self._forget_tools()

        self._state = state

        if message_type == "status":
            return Kind.STATUS

        return Kind.ANSWER if message_type in _ANSWERS else Kind.CURRENT

    def _note_call(self, header: Header) -> None:
        if header["name"] not in self._tools:
            raise ProtocolError(
                "order", f"tool_request for {header['name']!a}, which the execution was not given"
            )

        if header["call"] <= self._last_call:
            raise ProtocolError("order", f"tool_request {header['call']} after {self._last_call}")

        if self._calls_left <= 0:
            raise ProtocolError("order", "more tool_requests than the execution may make")

        self._calls_left -= 1
        self._last_call = header["call"]
        self._open_calls.add(header["call"])

    def _forget_tools(self) -> None:
        self._tools = frozenset()
        self._open_calls = set()
        self._calls_left = 0
        self._last_call = 0

    def _background(self, message_type: str, message_id: str | None) -> Kind:
        if message_type in _BACKGROUND and message_id is not None and self._has_ended(message_id):
            return Kind.BACKGROUND

        raise ProtocolError("order", f"{message_type} of id {message_id!a} while {self._state.value}")

    def _has_ended(self, execution_id: str) -> bool:
        digits = execution_id[len(self._prefix) :]

        # The same number in other digits or with leading zeros is another id.
        if not (digits.isascii() and digits.isdigit()) or execution_id == self._current_id:
            return False

        return execution_id == f"{self._prefix}{int(digits)}" and 0 < int(digits) <= self._count
