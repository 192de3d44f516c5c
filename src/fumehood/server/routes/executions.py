"""Executions: code run in a context of a sandbox, as one answer or as a stream of events.

When the client disconnects, its execution ends, unless it was begun with `detached`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.auth import CallersBackend, principal_of, until_refused
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.openapi import stream_of
from fumehood.server.responses import (
    GONE,
    is_stream_wanted,
    large_answer,
    stream_events,
    stream_response,
    unless_gone,
)
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.executions import (
    DetachedAnswer,
    ExecutionAnswer,
    NewDecision,
    NewExecution,
    NewInput,
    NewToolAnswer,
)
from fumehood.server.schemas.problem import problems
from fumehood.server.services import services_of
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution
from fumehood.values.requests import DEFAULT_CONTEXT_ID, CommitAnswer, ExecuteRequest, InputAnswer, ToolAnswer

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
    responses=SANDBOX_PROBLEMS
    | problems(400, 413, 429)
    | EXECUTION_STREAM
    | {202: {"description": "It was begun, `detached`.", "model": DetachedAnswer}},
)
async def execute(
    sandbox_id: SandboxId,
    body: NewExecution,
    backend: CallersBackend,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Runs code in a context, after earlier requests to that context are done.

    If the code fails, the request still succeeds: `error` describes the failure. With `Accept: application/x-ndjson` or
    `text/event-stream` each event is sent as a line when it happens, and the last line is `finished` with the whole
    execution, or `problem`. If the client disconnects, the execution is interrupted.
    """
    wanted = attributed(body.request(), request)

    if body.detached:

        async def begin() -> Response:
            return await _begin_detached(request, backend, sandbox_id, wanted)

        return await once(request, idempotency_key, begin)

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


async def _begin_detached(
    request: Request, backend: Backend, sandbox_id: str, wanted: ExecuteRequest
) -> Response:
    if wanted.silent:
        raise InvalidArgumentError(
            field="silent",
            value=True,
            allowed="nothing detached: it is in no record to be read from afterwards",
        )

    principal = await principal_of(request)
    run = await services_of(request).detached.begin(principal, backend, sandbox_id, wanted)
    return answer(
        {
            "id": run.id,
            "execution_id": run.execution_id,
            "context_id": wanted.context_id
            or (DEFAULT_CONTEXT_ID if wanted.language == "python" else wanted.language),
            "state": run.state,
        },
        202,
    )


@router.get(
    "/executions/{execution_id}/events",
    summary="Follow a detached execution",
    response_class=Response,
    responses=SANDBOX_PROBLEMS
    | {
        200: {
            "description": "Its events from `after` on, each with its `seq`.",
            "content": stream_of("ExecutionLine"),
        }
    },
)
async def follow_execution(
    sandbox_id: SandboxId,
    execution_id: ExecutionId,
    backend: CallersBackend,
    request: Request,
    after: Annotated[
        int, Query(ge=0, le=1 << 53, description="The `seq` of the last line that you have.")
    ] = 0,
) -> Response:
    """Streams the events of an execution that was begun with `detached`, for any number of followers.

    The last line is `finished` with the whole execution, or `problem`. A line of the type `gap` stands for lines that
    are not kept any more. Disconnecting does not end the execution.
    """
    run = services_of(request).detached.find(await principal_of(request), sandbox_id, execution_id)
    return await stream_response(request, run.follow(after), until_refused=until_refused)


@router.delete(
    "/executions/{execution_id}",
    summary="End a detached execution",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS,
)
async def end_execution(
    sandbox_id: SandboxId, execution_id: ExecutionId, backend: CallersBackend, request: Request
) -> Response:
    """Removes a detached execution from the queue, or interrupts it; does nothing if it has ended."""
    await services_of(request).detached.find(await principal_of(request), sandbox_id, execution_id).end()
    return Response(status_code=204)


async def _id_of(request: Request, sandbox_id: str, name: str) -> str:
    """Returns the id of an execution, given that id or, for a detached one, the id of its run."""
    return services_of(request).detached.execution_id(await principal_of(request), sandbox_id, name)


def attributed(wanted: ExecuteRequest, request: Request) -> ExecuteRequest:
    """Returns code with its origin, as a server names it to a host daemon.

    At a server, the caller's backend sets the origin.
    """
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
    sandbox_id: SandboxId,
    execution_id: ExecutionId,
    body: NewInput,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Answers an `input_request` of a stream; an answer that arrives too late is dropped."""
    execution_id = await _id_of(request, sandbox_id, execution_id)
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
    sandbox_id: SandboxId,
    execution_id: ExecutionId,
    body: NewToolAnswer,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Answers a `tool_call` of a stream; an answer that arrives too late is dropped."""
    execution_id = await _id_of(request, sandbox_id, execution_id)
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
    sandbox_id: SandboxId,
    execution_id: ExecutionId,
    body: NewDecision,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Answers a `commit_request` of a stream; an answer that arrives too late is dropped."""
    execution_id = await _id_of(request, sandbox_id, execution_id)
    await backend.answer_commit(sandbox_id, CommitAnswer(execution_id=execution_id, commit=body.commit))
    return Response(status_code=204)


async def events_or_execution(request: Request, events: AsyncGenerator[Event, None]) -> Response:
    """Returns the events as a stream if the request asks for one, and otherwise the whole execution at its end."""
    if is_stream_wanted(request):
        return await stream_events(request, events, until_refused)

    return await _answered(request, _last(events))


async def _answered(request: Request, work: Awaitable[Execution]) -> Response:
    execution = await unless_gone(request, work, until_refused)
    return Response(status_code=GONE) if execution is None else await large_answer(request, execution)


async def _last(events: AsyncGenerator[Event, None]) -> Execution:
    finished: Execution | None = None

    async with aclosing(events):
        async for event in events:
            if isinstance(event, ExecutionFinished):
                finished = event.execution

    assert finished is not None, "the port promises it, or an exception"
    return finished
