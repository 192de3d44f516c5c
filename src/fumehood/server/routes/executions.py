"""Executions: code run in a context of a sandbox, as one answer or as a stream of events.

When the client disconnects, its execution ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from fumehood.errors import InvalidArgumentError
from fumehood.server.auth import CallersBackend
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.openapi import stream_of
from fumehood.server.responses import GONE, is_stream_wanted, large_answer, stream_events, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId
from fumehood.server.schemas.executions import (
    ExecutionAnswer,
    NewDecision,
    NewExecution,
    NewInput,
    NewToolAnswer,
)
from fumehood.server.schemas.problem import problems
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution
from fumehood.values.requests import CommitAnswer, ExecuteRequest, InputAnswer, ToolAnswer

router = guarded_router("executions", "/v1/sandboxes/{sandbox_id}")
_NAME_CHARACTERS = 64
ExecutionId = Annotated[str, Path(max_length=64, description="The execution.")]
EXECUTION_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "What it did, or what it does.", "content": stream_of("ExecutionLine")}
}


@router.post(
    "/executions",
    summary="Run code",
    response_model=ExecutionAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413, 429) | EXECUTION_STREAM,
)
async def execute(
    sandbox_id: SandboxId,
    body: NewExecution,
    backend: CallersBackend,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Runs code in a context, after earlier requests to that context are done.

    Code that fails is an answer, not a refusal: `error` says how. With `Accept: application/x-ndjson` or `text/event-
    stream` each event comes as a line when it happens, and the last line is `finished` with the whole execution, or
    `problem`. A client that disconnects ends the execution, as an interrupt does.
    """
    wanted = attributed(body.request(), request)

    if is_stream_wanted(request):
        if idempotency_key is not None:
            raise InvalidArgumentError(
                field="Idempotency-Key", value=idempotency_key, allowed="requests whose answer is no stream"
            )

        return await events_or_execution(request, backend.execute(sandbox_id, wanted))

    if wanted.allow_input:
        raise InvalidArgumentError(
            field="allow_input",
            value=True,
            allowed="requests with `Accept: application/x-ndjson`; or give `stdin`",
        )

    if wanted.ask_commit:
        raise InvalidArgumentError(
            field="ask_commit", value=True, allowed="requests with `Accept: application/x-ndjson`"
        )

    if wanted.tools:
        raise InvalidArgumentError(
            field="tools",
            value=[tool.name for tool in wanted.tools],
            allowed="requests with `Accept: application/x-ndjson`",
        )

    async def run() -> Response:
        return await _answered(request, backend.run(sandbox_id, wanted))

    return await once(request, idempotency_key, run)


def attributed(wanted: ExecuteRequest, request: Request) -> ExecuteRequest:
    """Returns code with its origin, as a server names it to a host daemon; at a server the caller's backend sets it."""
    headers = request.headers
    by, via = headers.get("x-fumehood-by", "")[:_NAME_CHARACTERS], headers.get("x-fumehood-via", "")
    return replace(wanted, by=by, via=via[:_NAME_CHARACTERS])


@router.post(
    "/executions/{execution_id}/input",
    summary="Answer a question of running code",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def answer_input(
    sandbox_id: SandboxId, execution_id: ExecutionId, body: NewInput, backend: CallersBackend
) -> Response:
    """Answers an `input_request` of a stream; an answer that comes too late is dropped."""
    given = InputAnswer(execution_id=execution_id, request_id=body.request_id, text=body.text)
    await backend.answer_input(sandbox_id, given)
    return Response(status_code=204)


@router.post(
    "/executions/{execution_id}/tools",
    summary="Answer a call of a tool",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def answer_tool(
    sandbox_id: SandboxId, execution_id: ExecutionId, body: NewToolAnswer, backend: CallersBackend
) -> Response:
    """Answers a `tool_call` of a stream; an answer that comes too late is dropped."""
    given = ToolAnswer(
        execution_id=execution_id, request_id=body.request_id, value=body.value, error=body.error
    )
    await backend.answer_tool(sandbox_id, given)
    return Response(status_code=204)


@router.post(
    "/executions/{execution_id}/commit",
    summary="Decide about a transactional execution",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def answer_commit(
    sandbox_id: SandboxId, execution_id: ExecutionId, body: NewDecision, backend: CallersBackend
) -> Response:
    """Answers a `commit_request` of a stream; an answer that comes too late is dropped."""
    await backend.answer_commit(sandbox_id, CommitAnswer(execution_id=execution_id, commit=body.commit))
    return Response(status_code=204)


async def events_or_execution(request: Request, events: AsyncGenerator[Event, None]) -> Response:
    """Returns the events as a stream where one is asked for, and else the whole execution at its end."""
    if is_stream_wanted(request):
        return await stream_events(request, events)

    return await _answered(request, _last(events))


async def _answered(request: Request, work: Awaitable[Execution]) -> Response:
    execution = await unless_gone(request, work)
    return Response(status_code=GONE) if execution is None else await large_answer(request, execution)


async def _last(events: AsyncGenerator[Event, None]) -> Execution:
    finished: Execution | None = None

    async with aclosing(events):
        async for event in events:
            if isinstance(event, ExecutionFinished):
                finished = event.execution

    assert finished is not None, "the port promises it, or an exception"
    return finished
