"""The connection to one context process: a channel, and the two pipes behind its fds 1 and 2.

It puts everything that the context sends into the order in which it happened, and passes it on as events. Python-level
output, displays and replies come as frames on the channel; output of child processes and C code comes through the
pipes. A frame that was sent while the pipes held unread bytes says how many, and both sides use the same
monotonic clock, so the order of the two is exact. No length, id or order claimed by the guest is trusted: the wire
package checks them first. `wire_request` builds the request to run code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fumehood.engine.channel import Channel, open_pair
from fumehood.engine.contexts.output import GuestOutput, event_of, read_changes, read_telemetry
from fumehood.engine.contexts.requests_from_guest import Asked, ToolCalls, comm_request, question_header
from fumehood.engine.loop_share import LoopShare
from fumehood.engine.tasks import Awaited
from fumehood.values.events import Event, InputRequestEvent, StderrEvent, StdoutEvent, event_bytes
from fumehood.values.execution import StreamName, VariableChange
from fumehood.values.limits import Limits
from fumehood.values.questions import Answer, CommMessage, Question
from fumehood.values.requests import ExecuteRequest, ToolSpec
from fumehood.values.sandbox import NOTHING_CUT, Truncation
from fumehood_wire import messages
from fumehood_wire.frames import ProtocolError
from fumehood_wire.states import Conversation, Kind

_MAX_BACKGROUND_EVENTS = 1_000
_MAX_BACKGROUND_BYTES = 8 << 20
_MAX_EARLY_CHARACTERS = 1_000
# No legitimate program clears its output so often without output in between, or sends notes on an execution so often:
# one is regular, and an interrupt may repeat it.
_MAX_CLEARS_IN_A_ROW = 100_000
_MAX_NOTES = 100

Header = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class RunningExecution:
    """The execution that a context is running."""

    id: str
    started: float
    on_event: Callable[[Event], None]
    reply: Awaited[Header | None]
    input_number: int = 0
    bytes_out: int = 0
    variables: tuple[VariableChange, ...] = ()
    tools: ToolCalls | None = None
    telemetry: tuple[str, ...] = ()
    # The number of its messages about changes and telemetry.
    note_count: int = 0

    def note(self, message_type: str, payload: bytes) -> None:
        """Keeps the changes or the telemetry that the execution reports.

        Raises:
            ProtocolError: The context has sent too many of these messages, or the payload is malformed.
        """
        self.note_count += 1

        if self.note_count > _MAX_NOTES:
            raise ProtocolError("order", f"{message_type}: more than {_MAX_NOTES} times in one execution")

        if message_type == "changes":
            self.variables = read_changes(payload)
        else:
            self.telemetry = read_telemetry(payload)


class _Clears:
    """Counts messages that clear output that is already clear."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, message_type: str) -> None:
        self.count = self.count + 1 if message_type == "clear_output" else 0

        if self.count > _MAX_CLEARS_IN_A_ROW:
            raise ProtocolError(
                "order", f"clear_output: more than {_MAX_CLEARS_IN_A_ROW:,} times with nothing in between"
            )


class ContextConnection:
    """The connection to one context process.

    Args:
        name: Prefix of execution ids; must not be guessable.
        on_broken: Called when the context violates the protocol.
        max_payload_bytes: The largest result on the wire.
        count: How many executions earlier processes have had under this name.
        share: The sandbox's share of the loop; by default one of its own.
    """

    def __init__(
        self,
        name: str,
        on_broken: Callable[[ProtocolError], None],
        max_payload_bytes: int,
        count: int = 0,
        share: LoopShare | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.name = name
        self._conversation = Conversation(name, count)
        self._on_broken = on_broken
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        # The process's pid inside; reported when it is ready, before any user code runs.
        self.pid: int | None = None
        self._running: RunningExecution | None = None
        self._asked: Asked | None = None
        self._forked: asyncio.Future[int | None] | None = None
        self._background: list[Event] = []
        self._background_bytes = 0
        self._clears = _Clears()
        share = share or LoopShare()
        self._output = GuestOutput(lambda: self._channel.receive(), self._emit_text, share)
        try:
            host_end, self._guest_end = open_pair()
        except OSError:
            self._output.close()
            raise

        self._channel = Channel(
            host_end,
            self._receive,
            self._closed,
            max_payload_bytes=max_payload_bytes,
            share=share,
            on_caught_up=self._output.note_channel_caught_up,
        )

    def guest_fds(self) -> tuple[int, int, int]:
        """The guest's descriptors; call `close_guest_fds` when they are sent."""
        return self._guest_end.fileno(), self._output.write_ends[0], self._output.write_ends[1]

    def close_guest_fds(self) -> None:
        """Closes the host's copies of the guest's ends; a second call does nothing."""
        self._guest_end.close()
        self._output.close_write_ends()

    @property
    def is_ready(self) -> bool:
        """Whether the context has reported that it is ready."""
        return self.ready.done() and not self.ready.cancelled()

    def execute(self, fields: Header, payload: bytes, on_event: Callable[[Event], None]) -> RunningExecution:
        """Sends code or a comm message; `reply` becomes the reply's header, or None when the context is gone.

        `on_event` is not called before the loop runs again: the caller may prepare while the guest is already working.
        """
        running = RunningExecution(
            id=self._conversation.next_id,
            started=time.monotonic(),
            on_event=on_event,
            reply=Awaited(),
        )

        if self.gone.done():
            running.reply.resolve(None)
            return running

        self._running = running
        header = {"id": running.id, **fields}
        self._conversation.sent(header)
        self._channel.send(header, payload)
        return running

    def ask(self, question: Question, fields: Header) -> Awaited[Answer | None]:
        """Sends a question; the answer becomes None when the context is gone."""
        answer: Awaited[Answer | None] = Awaited()

        if self.gone.done():
            answer.resolve(None)
            return answer

        self._asked = Asked(question, answer)
        header = {"id": self._conversation.next_id, **question_header(question), **fields}
        self._conversation.sent(header)
        self._channel.send(header, question.code.encode())
        return answer

    @property
    def count(self) -> int:
        """The number of executions, questions and checkpoints so far under this name."""
        return self._conversation.count

    def fork(self, line_fd: int) -> asyncio.Future[int | None]:
        """Requests a checkpoint that communicates over `line_fd`; the context then waits for `proceed`.

        Returns:
            The errno of the failure, 0 if the checkpoint was made, or None if the context is gone.
        """
        self._forked = self._loop.create_future()

        if self.gone.done():
            self._forked.set_result(None)
            return self._forked

        header: Header = {"type": "checkpoint_request", "id": self._conversation.next_id}
        self._conversation.sent(header)
        self._channel.send(header, fds=(line_fd,))
        return self._forked

    def proceed(self) -> None:
        """Lets the context continue that waits after it has made a checkpoint, or was made from one."""
        if self.gone.done():
            return

        current_id = self._conversation.current_id
        header: Header = {"type": "proceed"} if current_id is None else {"type": "proceed", "id": current_id}
        try:
            self._conversation.sent(header)
        except RuntimeError:
            return  # it does not wait: there is no checkpoint

        self._channel.send(header)

    def report_background(self, on_event: Callable[[Event], None]) -> None:
        """Passes on events that arrived while nothing ran."""
        late, self._background = self._background, []
        self._background_bytes = 0

        for event in late:
            on_event(event)

    def answer_input(self, execution_id: str, request_id: str, text: str | None) -> None:
        """Answers an input request of the running execution; an answer without a pending request is dropped."""
        running = self._running

        if (
            running is None
            or running.id != execution_id
            or request_id != f"{running.id}/{running.input_number}"
        ):
            return

        header: Header = {"type": "input_reply", "id": running.id}

        if text is None:
            header["eof"] = True

        try:
            self._conversation.sent(header)
        except RuntimeError:
            return

        self._channel.send(header, (text or "").encode())

    def reply_to_tool(self, execution_id: str, header: Header, payload: bytes) -> None:
        """Sends the result of a tool call; an execution that has ended does not wait for it."""
        reply = {**header, "id": execution_id}
        try:
            self._conversation.sent(reply)
        except RuntimeError:
            return

        self._channel.send(reply, payload)

    def early_output(self) -> str:
        """Returns the output before the first execution; if the context fails to start, it contains the reason."""
        self._output.deliver_held()
        events = (event for event in self._background if isinstance(event, StdoutEvent | StderrEvent))
        return "".join(event.text for event in events)[:_MAX_EARLY_CHARACTERS].strip()

    def close(self) -> None:
        """Closes channel and pipes; a running execution ends without a reply."""
        self._output.deliver_held()
        self._channel.close()
        self._output.close()
        self._guest_end.close()
        self._fail_running()

    # -- frames

    def _receive(self, header: Header, payload: bytes) -> None:
        messages.check(messages.CONTEXT_TO_HOST, header, payload)
        kind = self._conversation.received(header)
        message_type = header["type"]

        if kind is Kind.STATUS:
            self.pid = header["pid"]

            if not self.ready.done():
                self.ready.set_result(None)

            return

        if message_type == "checkpoint_reply":
            self._note_fork(header["errno"])
            return

        if kind is Kind.ANSWER:
            # Cleared only afterwards: an invalid answer ends the context, and the question with it.
            if self._asked is not None:
                self._asked.finish(header, payload)
                self._asked = None

            return

        # Nothing of an execution may follow its reply.
        is_last = message_type == "execute_reply"

        if is_last:
            self._output.deliver_held(is_last=True)
        else:
            self._output.deliver_before(header)

        if is_last:
            self._finish(header)
            return

        if message_type in ("changes", "telemetry"):
            if self._running is not None:
                self._running.note(message_type, payload)

            return

        self._clears.note(message_type)
        event = self._event(message_type, header, payload)

        if event is not None:
            self._emit(event, len(payload))

    def _event(self, message_type: str, header: Header, payload: bytes) -> Event | None:
        """Returns a message of an execution as an event; None if it was answered at once."""
        at_seconds = self._since_start(header["at"])

        if message_type not in ("input_request", "tool_request"):
            return event_of(header, payload, at_seconds)

        running = self._running

        if running is None or (message_type == "tool_request" and running.tools is None):
            raise ProtocolError("order", f"{message_type} while nothing runs that may ask")

        if running.tools is not None and message_type == "tool_request":
            return running.tools.asked(header, payload, at_seconds)

        running.input_number += 1
        return InputRequestEvent(
            execution_id=running.id,
            request_id=f"{running.id}/{running.input_number}",
            prompt=messages.read_text(payload),
            at_seconds=at_seconds,
            is_password=header["password"],
        )

    def _finish(self, header: Header) -> None:
        running, self._running = self._running, None

        if running is not None and running.tools is not None:
            running.tools.over()

        if running is not None:
            running.reply.resolve(header)

    # -- passing on

    def _emit(self, event: Event, size_bytes: int) -> None:
        if self._running is not None:
            self._running.bytes_out += size_bytes
            self._running.on_event(event)
            return

        waiting = event_bytes(event)

        if (
            len(self._background) < _MAX_BACKGROUND_EVENTS
            and self._background_bytes + waiting <= _MAX_BACKGROUND_BYTES
        ):
            # Between two executions: reported with the next one, so that nothing is lost.
            self._background.append(event)
            self._background_bytes += waiting

    def _emit_text(self, stream: StreamName, text: str, size_bytes: int, read_at: float) -> None:
        kind = StdoutEvent if stream == "stdout" else StderrEvent
        self._clears.count = 0
        self._emit(kind(text=text, at_seconds=self._since_start(read_at)), size_bytes)

    def _since_start(self, at: float) -> float:
        """Returns the seconds since the execution began; a guest's clock value is clamped to that range."""
        if self._running is None:
            return 0.0

        return min(max(0.0, at - self._running.started), time.monotonic() - self._running.started)

    def _closed(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._on_broken(error)

        if not self.ready.done():
            self.ready.cancel()

        if not self.gone.done():
            self.gone.set_result(None)

    def _fail_running(self) -> None:
        running, self._running = self._running, None

        if running is not None and running.tools is not None:
            running.tools.over()

        if running is not None:
            running.reply.resolve(None)

        asked, self._asked = self._asked, None

        if asked is not None:
            asked.lose()

        self._note_fork(None)

    def _note_fork(self, number: int | None) -> None:
        forked, self._forked = self._forked, None

        if forked is not None and not forked.done():
            forked.set_result(number)


def wire_request(
    request: ExecuteRequest, comm: CommMessage | None, limits: Limits, *, telemetry: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Returns header and payload of a request to run code, or to run the handlers of a comm message.

    Args:
        request: The caller's request.
        comm: The comm message; None for a request to run code.
        limits: The limits of the sandbox.
        telemetry: Whether the interpreter shall report what the code does.
    """
    bounds = {
        "stdout_bytes": limits.stdout_bytes,
        "stderr_bytes": limits.stderr_bytes,
        "result_bytes": limits.result_bytes,
        "result_count": limits.result_count,
    }

    if comm is not None:
        header, payload = comm_request(comm)
        return {**header, **bounds}, payload

    header = {
        "type": "execute_request",
        **bounds,
        "allow_stdin": request.allow_input,
        **{name: getattr(request, name) for name in messages.EXECUTION_FLAGS},
        "store_history": not request.silent,
        "envs": dict(request.envs),
    }
    # `python` also ignores a byte order mark.
    code = request.code.removeprefix("\ufeff").encode("utf-8", "surrogatepass")

    if request.tools:
        tools = [_wire_tool(tool) for tool in request.tools]
        header = {**header, "tools": tools, "tool_calls": request.max_tool_calls}

    if request.tell_changes or request.ask_commit:
        header = {**header, "changes": True}

    if telemetry:
        header = {**header, "telemetry": True}

    if request.stdin is None:
        return header, code

    stdin = request.stdin.encode("utf-8", "surrogatepass")
    return {**header, "stdin_bytes": len(stdin)}, code + stdin


def _wire_tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "required": list(tool.required),
        "optional": list(tool.optional),
        "awaited": tool.awaited,
    }


def dropped_by_guest(reply: dict[str, Any] | None) -> Truncation:
    """Returns what the context has dropped because of the limits."""
    if reply is None:
        return NOTHING_CUT

    dropped = reply["dropped"]

    if not any(dropped.values()):
        return NOTHING_CUT

    return Truncation(
        stdout_bytes=dropped["stdout"], stderr_bytes=dropped["stderr"], results=dropped["results"]
    )
