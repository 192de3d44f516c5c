"""Contexts: live namespaces of a sandbox, and what editors and widgets ask of them.

Translation only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.notebook.record_file import record_as
from fumehood.off_loop import off_loop
from fumehood.server.auth import CallersBackend
from fumehood.server.downloads import attachment
from fumehood.server.responses import off_loop_answer
from fumehood.server.routes.executions import EXECUTION_STREAM, events_or_execution
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.executions import (
    CompletenessAnswer,
    CompletenessQuestion,
    CompletionAnswer,
    CompletionQuestion,
    ContextAnswer,
    ContextList,
    ExecutionAnswer,
    InspectionAnswer,
    InspectionQuestion,
    Interrupted,
    NewCommMessage,
    NewContext,
    RecordAnswer,
)
from fumehood.server.schemas.problem import problems
from fumehood.values.execution import Record
from fumehood.values.requests import ListContexts, RemoveContext, RestartContext

router = guarded_router("contexts", "/v1/sandboxes/{sandbox_id}/contexts")
ContextId = Annotated[str, Path(max_length=255, description="The context; `default` is always there.")]
RECORD_FILES: Mapping[str, tuple[str, Callable[[Record], str]]] = {
    "ipynb": ("application/x-ipynb+json", record_as(".ipynb")),
    "py": ("text/x-python", record_as(".py")),
    "html": ("text/html", record_as(".html")),
}
Form = Annotated[
    Literal["json", "ipynb", "py", "html"],
    Query(description="As data, as a notebook, as a Python file, or as a page that runs nothing."),
]
# The outputs in it are a guest's.
_INERT = {"Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"}
_WITH_BODY = SANDBOX_PROBLEMS | problems(400, 413)


@router.get("", summary="List contexts", response_model=ContextList, responses=SANDBOX_PROBLEMS)
async def list_contexts(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Lists the contexts of a sandbox, the default one first."""
    return items(await backend.context_call(sandbox_id, ListContexts()))


@router.post(
    "", summary="Make a context", status_code=201, response_model=ContextAnswer, responses=_WITH_BODY
)
async def create_context(sandbox_id: SandboxId, body: NewContext, backend: CallersBackend) -> Response:
    """Creates a context: a separate namespace in the same sandbox, with the same files."""
    (context,) = await backend.context_call(sandbox_id, body.call())
    return answer(context, 201)


@router.delete(
    "/{context_id}",
    summary="Remove a context",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS,
)
async def remove_context(sandbox_id: SandboxId, context_id: ContextId, backend: CallersBackend) -> Response:
    """Kills a context. The default context is created afresh when it is used again."""
    await backend.context_call(sandbox_id, RemoveContext(context_id=context_id))
    return Response(status_code=204)


@router.post(
    "/{context_id}/restart",
    summary="Restart a context",
    response_model=ContextAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def restart_context(sandbox_id: SandboxId, context_id: ContextId, backend: CallersBackend) -> Response:
    """Replaces a context by a fresh one of the same id; code that runs in it is killed."""
    (context,) = await backend.context_call(sandbox_id, RestartContext(context_id=context_id))
    return answer(context)


@router.post(
    "/{context_id}/interrupt",
    summary="Interrupt a context",
    response_model=Interrupted,
    responses=SANDBOX_PROBLEMS,
)
async def interrupt_context(
    sandbox_id: SandboxId, context_id: ContextId, backend: CallersBackend
) -> Response:
    """Interrupts the code that runs in a context; code that does not stop within the grace period is killed."""
    return answer({"interrupted": await backend.interrupt(sandbox_id, context_id)})


@router.get(
    "/{context_id}/record",
    summary="Read the record of a context",
    response_model=RecordAnswer,
    responses=SANDBOX_PROBLEMS
    | {
        200: {
            "description": "The record, or a file of it for a download.",
            "content": {kind: {"schema": {}} for kind, _ in RECORD_FILES.values()},
        }
    },
)
async def get_record(
    sandbox_id: SandboxId,
    context_id: ContextId,
    backend: CallersBackend,
    form: Form = "json",
) -> Response:
    """Returns the executions of a context with their results. At most 16 MiB are kept per sandbox.

    The oldest outputs are dropped first.
    """
    return await file_answer(await backend.record(sandbox_id, context_id), form)


async def file_answer(record: Record, form: str) -> Response:
    """Returns a record as an answer: as data, or as a file for a download."""
    if form == "json":
        return await off_loop_answer(record)

    media_type, render = RECORD_FILES[form]
    name = f"{record.sandbox_id[:8]}-{record.context_id}.{form}"
    headers = {**_INERT, "Content-Disposition": attachment(name)}
    text = await off_loop("answers", render, record)
    return Response(text.encode("utf-8", "replace"), headers=headers, media_type=media_type)


@router.post(
    "/{context_id}/complete",
    summary="Complete code",
    response_model=CompletionAnswer,
    responses=_WITH_BODY,
)
async def complete(
    sandbox_id: SandboxId, context_id: ContextId, body: CompletionQuestion, backend: CallersBackend
) -> Response:
    """Returns completions at the cursor, after earlier requests to the context are done."""
    return answer(await backend.ask(sandbox_id, body.question(context_id)))


@router.post(
    "/{context_id}/inspect", summary="Inspect code", response_model=InspectionAnswer, responses=_WITH_BODY
)
async def inspect(
    sandbox_id: SandboxId, context_id: ContextId, body: InspectionQuestion, backend: CallersBackend
) -> Response:
    """Describes the name at the cursor, as text by MIME type; empty for an unknown name."""
    return answer(await backend.ask(sandbox_id, body.question(context_id)))


@router.post(
    "/{context_id}/is_complete",
    summary="Tell whether code is complete",
    response_model=CompletenessAnswer,
    responses=_WITH_BODY,
)
async def is_complete(
    sandbox_id: SandboxId, context_id: ContextId, body: CompletenessQuestion, backend: CallersBackend
) -> Response:
    """Returns whether code is complete, or needs more lines."""
    return answer(await backend.ask(sandbox_id, body.question(context_id)))


@router.post(
    "/{context_id}/comm",
    summary="Send a comm message",
    response_model=ExecutionAnswer,
    responses=_WITH_BODY | problems(429) | EXECUTION_STREAM,
)
async def send_comm(
    sandbox_id: SandboxId,
    context_id: ContextId,
    body: NewCommMessage,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Sends a comm message to the code of a context; the answer is the execution of the message's handlers.

    A message to a comm that the context does not know does nothing and is no error.
    """
    events = backend.send_comm(sandbox_id, body.message(), context_id)
    return await events_or_execution(request, events)
