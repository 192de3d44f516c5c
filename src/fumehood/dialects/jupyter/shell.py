"""Requests of the shell channel and their replies: code, questions about code, comms, history.

Each reply goes to the client that asked, except for comms, which have none; messages meanwhile are broadcast. A request
that is malformed, or that the sandbox refuses, is answered as an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, NamedTuple

from fumehood.bounds import BOUNDS
from fumehood.dialects.jupyter.kernel_state import KernelBase, KernelRequest
from fumehood.dialects.jupyter.outputs import (
    Output,
    error_content,
    output_of,
    refusal_content,
    truncation_note,
)
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.off_loop import SMALL_BYTES, off_loop
from fumehood.values.events import (
    CommEvent,
    Event,
    ExecutionFinished,
    InputRequestEvent,
    ResultEvent,
    event_bytes,
)
from fumehood.values.execution import Execution, ExecutionError
from fumehood.values.questions import (
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
)
from fumehood.values.requests import ExecuteRequest

_MAX_EXPRESSIONS = 1000
# A notebook's cell may take as long as its sandbox lives; a client that waits for it interrupts it.
CELL_SECONDS = BOUNDS["wall_seconds"].high
# Notebooks draw in loops; each drawing is a result.
CELL_RESULTS = 1000
_DEADLY = (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError)


class RequestEffect(NamedTuple):
    """The effect of a request on the kernel.

    Attributes:
        abort_queued: Whether the waiting executions are aborted.
        state_lost: Whether its context was replaced.
        is_dead: Whether its sandbox has ended.
    """

    abort_queued: bool = False
    state_lost: bool = False
    is_dead: bool = False


async def answer(kernel: KernelBase, request: KernelRequest) -> RequestEffect:
    """Answers a request of the shell channel."""
    msg_type = request.msg_type

    if msg_type == "execute_request":
        return await _execute(kernel, request)

    if msg_type in ("comm_open", "comm_msg", "comm_close"):
        return await _deliver_comm(kernel, request)

    # An unknown request gets no reply, as from any kernel.
    if (find := _ANSWERS.get(msg_type)) is not None:
        kernel.reply(request, await find(kernel, request))

    return RequestEffect()


def refuse(kernel: KernelBase, request: KernelRequest, error: Exception) -> RequestEffect:
    """Replies to a request that failed, and returns its effect on the kernel."""
    content = refusal(error)

    if request.msg_type == "execute_request":
        kernel.publish(
            Output("error", {name: content[name] for name in ("ename", "evalue", "traceback")}), request
        )
        content["execution_count"] = kernel.execution_count

    kernel.reply(request, content)
    return RequestEffect(abort_queued=True, is_dead=isinstance(error, _DEADLY))


def refusal(error: Exception) -> dict[str, Any]:
    """Returns the content of an error reply."""
    if isinstance(error, FumehoodError):
        return {"status": "error", **refusal_content(error)}

    text = "the server failed; its log says more"
    return {
        "status": "error",
        "ename": "InternalError",
        "evalue": text,
        "traceback": [f"InternalError: {text}"],
    }


# -- code


class _Cell:
    """The content of an `execute_request`, checked, with the protocol's defaults."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.code = _text(content, "code")
        self.silent = content.get("silent") is True
        self.keeps_history = not self.silent and content.get("store_history") is not False
        self.allow_input = content.get("allow_stdin") is True
        self.stop_on_error = content.get("stop_on_error") is not False
        expressions = content.get("user_expressions")
        self.expressions = list(expressions)[:_MAX_EXPRESSIONS] if isinstance(expressions, dict) else []


async def _execute(kernel: KernelBase, request: KernelRequest) -> RequestEffect:
    cell = _Cell(request.content)
    number = kernel.execution_count

    if not cell.silent:
        number += 1
        kernel.publish(Output("execute_input", {"code": cell.code, "execution_count": number}), request)

    if cell.keeps_history:
        kernel.history.add(number, cell.code)

    asked = ExecuteRequest(
        code=cell.code,
        language=kernel.spec.language,
        context_id=kernel.context_id,
        allow_input=cell.allow_input,
        silent=cell.silent,
    )
    execution: Execution | None = None

    async with aclosing(request.backend.execute(kernel.sandbox_id, asked)) as events:
        async for event in events:
            if isinstance(event, ExecutionFinished):
                execution = event.execution
            else:
                await _pass_on(kernel, request, event, number)

    if execution is None:
        raise SandboxClosedError(sandbox_id=kernel.sandbox_id, reason="died", outcome_unknown=True)

    if not cell.silent:
        # The execution's own number counts if the two ever differ.
        kernel.execution_count = execution.execution_count or number

    return _finish(kernel, request, cell, execution)


def _finish(kernel: KernelBase, request: KernelRequest, cell: _Cell, execution: Execution) -> RequestEffect:
    if (note := truncation_note(execution)) is not None:
        kernel.publish(note, request)

    common = {
        "execution_count": kernel.execution_count,
        "user_expressions": {str(name): _NO_EXPRESSION for name in cell.expressions},
        "payload": [],
    }

    if execution.error is None:
        kernel.reply(request, {"status": "ok", **common})
        return RequestEffect(state_lost=execution.state_lost)

    content = error_content(execution.error)
    kernel.publish(Output("error", content), request)
    kernel.reply(request, {"status": "error", **content, **common})
    return RequestEffect(abort_queued=cell.stop_on_error and not cell.silent, state_lost=execution.state_lost)


async def _pass_on(kernel: KernelBase, request: KernelRequest, event: Event, number: int) -> None:
    if isinstance(event, InputRequestEvent):
        kernel.ask(request, event)
        return

    if isinstance(event, CommEvent):
        kernel.comms.note(event.kind, event.comm_id, event.target_name)

    # The JSON of a large result is processed in a thread, so that other clients are served; later events wait.
    if isinstance(event, ResultEvent | CommEvent) and event_bytes(event) > SMALL_BYTES:
        if (large := await off_loop("answers", output_of, event, number)) is not None:
            await kernel.publish_large(large, request)
    elif (output := output_of(event, number)) is not None:
        kernel.publish(output, request)


_NO_EXPRESSION = {
    "status": "error",
    **error_content(
        ExecutionError(
            kind="exception",
            name="NotImplementedError",
            value="user_expressions are not evaluated here; run the code, and show what you want to see",
        )
    ),
}


# -- comms


async def _deliver_comm(kernel: KernelBase, request: KernelRequest) -> RequestEffect:
    message = request.message
    comm = CommMessage(
        kind=message.msg_type,  # type: ignore[arg-type]  # checked by the caller
        comm_id=_text(message.content, "comm_id"),
        data=_object(message.content, "data"),
        metadata=message.metadata,
        buffers=message.buffers,
        target_name=_text(message.content, "target_name") if message.msg_type == "comm_open" else "",
    )
    kernel.comms.note(comm.kind, comm.comm_id, comm.target_name)
    state_lost = False

    async with aclosing(request.backend.send_comm(kernel.sandbox_id, comm, kernel.context_id)) as events:
        async for event in events:
            if isinstance(event, ExecutionFinished):
                state_lost = event.execution.state_lost
                _tell_comm_failure(kernel, request, event.execution.error)
            else:
                await _pass_on(kernel, request, event, kernel.execution_count)

    return RequestEffect(state_lost=state_lost)


def _tell_comm_failure(kernel: KernelBase, request: KernelRequest, error: ExecutionError | None) -> None:
    """Reports a failed comm message on stderr, which front ends log: comms have no replies."""
    if error is not None:
        kernel.publish(Output("stream", {"name": "stderr", "text": f"{error}\n"}), request)


async def _comm_info(kernel: KernelBase, request: KernelRequest) -> dict[str, Any]:
    return {"status": "ok", "comms": kernel.comms.answer(request.content.get("target_name"))}


# -- questions


async def _complete(kernel: KernelBase, request: KernelRequest) -> dict[str, Any]:
    code, cursor = _code_and_cursor(request.content)
    found = await request.backend.ask(
        kernel.sandbox_id, CompleteCode(code=code, cursor=cursor, context_id=kernel.context_id)
    )
    assert isinstance(found, CodeCompletion)
    return {
        "status": "ok",
        "matches": list(found.matches),
        "cursor_start": found.start,
        "cursor_end": found.end,
        "metadata": {},
    }


async def _inspect(kernel: KernelBase, request: KernelRequest) -> dict[str, Any]:
    code, cursor = _code_and_cursor(request.content)
    detail = 1 if request.content.get("detail_level") == 1 else 0
    found = await request.backend.ask(
        kernel.sandbox_id, InspectCode(code=code, cursor=cursor, detail=detail, context_id=kernel.context_id)
    )
    assert isinstance(found, CodeInspection)
    return {"status": "ok", "found": bool(found.data), "data": dict(found.data), "metadata": {}}


async def _is_complete(kernel: KernelBase, request: KernelRequest) -> dict[str, Any]:
    code = _text(request.content, "code")
    found = await request.backend.ask(
        kernel.sandbox_id, CheckComplete(code=code, context_id=kernel.context_id)
    )
    assert isinstance(found, CodeCompleteness)
    return {"status": found.status, "indent": found.indent}


async def _history(kernel: KernelBase, request: KernelRequest) -> dict[str, Any]:
    return {"status": "ok", "history": kernel.history.answer(request.content)}


@cache
def _version() -> str:
    # Reading it takes milliseconds, and any client may ask any number of times.
    from importlib.metadata import version

    return version("fumehood")


async def kernel_info(kernel: KernelBase, _request: KernelRequest) -> dict[str, Any]:
    """Returns the description of the kernel."""
    from fumehood.dialects.jupyter.messages import PROTOCOL_VERSION

    number = _version()
    return {
        "status": "ok",
        "protocol_version": PROTOCOL_VERSION,
        "implementation": "fumehood",
        "implementation_version": number,
        "language_info": kernel.spec.language_info(),
        "banner": f"fumehood {number}: {kernel.spec.language} in a sandbox",
        "help_links": [],
        "debugger": False,
        "supported_features": [],
    }


_ANSWERS: Mapping[str, Callable[[KernelBase, KernelRequest], Awaitable[dict[str, Any]]]] = {
    "kernel_info_request": kernel_info,
    "complete_request": _complete,
    "inspect_request": _inspect,
    "is_complete_request": _is_complete,
    "history_request": _history,
    "comm_info_request": _comm_info,
}


# -- reading


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)

    if not isinstance(value, str):
        raise InvalidArgumentError(field=name, value=value, allowed="text")

    return value


def _object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)

    if value is None:
        return {}

    if not isinstance(value, dict):
        raise InvalidArgumentError(field=name, value=value, allowed="an object")

    return value


def _code_and_cursor(content: Mapping[str, Any]) -> tuple[str, int]:
    code, cursor = _text(content, "code"), content.get("cursor_pos")

    if isinstance(cursor, bool) or not isinstance(cursor, int):
        return code, len(code)

    return code, min(max(cursor, 0), len(code))
