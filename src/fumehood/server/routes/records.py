"""Records of sandboxes that have ended: lists, reads, replays and deletes those of the caller's key.

Translation only, in the server process. Recorded data comes from a guest: bytes and files are sent as downloads, as for
a living sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.cancellation import finish
from fumehood.errors import InvalidArgumentError
from fumehood.notebook.determinism import fixing_code, not_fixed
from fumehood.notebook.replaying import replayed
from fumehood.port.backend import Backend
from fumehood.server.auth import CallersBackend, until_refused
from fumehood.server.openapi import stream_of
from fumehood.server.responses import Line, off_loop_answer, stream_response
from fumehood.server.routes.audit import LINES, AuditForm, written
from fumehood.server.routes.cells import BYTES, Mime, Position, ResultNumber, bytes_answer
from fumehood.server.routes.commands import AfterNumber, HowMany
from fumehood.server.routes.contexts import RECORD_FILES, ContextId, Form, file_answer
from fumehood.server.routes.executions import ExecutionId
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import answer
from fumehood.server.schemas.cells import CellAnswer, CellPageAnswer
from fumehood.server.schemas.commands import RanCommandsAnswer
from fumehood.server.schemas.executions import RecordAnswer
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.records import EndedSandboxAnswer, NewReplay, RecordListAnswer
from fumehood.server.schemas.sandboxes import AuditAnswer
from fumehood.server.tenancy import records_of
from fumehood.values.execution import Execution, Record, RecordedCell
from fumehood.values.kept_records import MAX_LISTED_RECORDS, EndedSandbox, ListRecords
from fumehood.values.languages import PYTHON, known_language
from fumehood.values.looking import MAX_CELLS, ReadCell, ReadCells, ReadCommands, ReadResult
from fumehood.values.plain_data import fields_data
from fumehood.values.requests import (
    DEFAULT_CONTEXT_ID,
    CreateContext,
    ExecuteRequest,
    RestartContext,
    SandboxSpec,
)
from fumehood.values.sandbox import SandboxInfo

router = guarded_router("records", "/v1/records")
EndedId = Annotated[str, Path(max_length=64, description="The id that the sandbox had.")]
# Beside the time limit of a cell: to make a context, and to compare.
_SPARE_SECONDS = 60.0
_PROBLEMS = problems(401, 403, 404, 422, 503)


@router.get("", summary="List ended sandboxes", response_model=RecordListAnswer, responses=_PROBLEMS)
async def list_records(
    backend: CallersBackend,
    q: Annotated[
        str,
        Query(
            max_length=60, description="Only those with this text in id, template, key, reason or a label."
        ),
    ] = "",
    owner: Annotated[
        str | None,
        Query(max_length=255, description="Only those of this key; others than the owner have their own."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED_RECORDS, description="How many at most.")] = 100,
    cursor: Annotated[
        str | None, Query(max_length=128, description="`next_cursor` of the page before.")
    ] = None,
) -> Response:
    """Lists the caller's sandboxes that have ended and whose records are kept, the one that ended last comes first.

    A page holds at most 4 MiB of descriptions: it may have fewer than `limit`, and is the last one where `next_cursor`
    is null. The server's owner sees the records of all keys. `is_kept` is false if the server keeps no records (see
    `--records keep`). Machines of a cluster that do not answer are in `left_out_hosts`, and their records in no page.
    """
    request = ListRecords(owner=owner, text=q, before=cursor, limit=limit)
    return await off_loop_answer(await records_of(backend).find_records(request))


@router.get(
    "/{sandbox_id}",
    summary="Describe an ended sandbox",
    response_model=EndedSandboxAnswer,
    responses=_PROBLEMS,
)
async def get_record(sandbox_id: EndedId, backend: CallersBackend) -> Response:
    """Describes a sandbox that has ended: why and when it ended, its settings, and the contexts that have a record."""
    return answer(await records_of(backend).ended_sandbox(sandbox_id))


@router.delete(
    "/{sandbox_id}",
    summary="Delete a record",
    status_code=204,
    response_class=Response,
    responses=_PROBLEMS,
)
async def delete_record(sandbox_id: EndedId, backend: CallersBackend) -> Response:
    """Deletes the record of a sandbox that has ended, for good. Its file in the audit folder, if any, stays."""
    await records_of(backend).delete_record(sandbox_id)
    return Response(status_code=204)


@router.get(
    "/{sandbox_id}/contexts/{context_id}/executions",
    summary="Read what ran in an ended sandbox",
    response_model=CellPageAnswer,
    responses=_PROBLEMS,
)
async def read_cells(
    sandbox_id: EndedId,
    context_id: ContextId,
    backend: CallersBackend,
    before: Annotated[Position, Query(description="Only those before this position.")] = None,
    after: Annotated[Position, Query(description="Only those after this position.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_CELLS, description="How many at most.")] = 50,
    what: Annotated[
        Literal["summary", "whole"], Query(description="`whole`: each with its whole `execution`.")
    ] = "summary",
) -> Response:
    """Returns a page of a context's executions, in order; code that ran when the sandbox ended is the last one."""
    request = ReadCells(context_id=context_id, before=before, after=after, limit=limit, whole=what == "whole")
    page = await records_of(backend).look_back(sandbox_id, request)
    return await off_loop_answer(page) if request.whole else answer(page)


@router.get(
    "/{sandbox_id}/executions/{execution_id}",
    summary="Read one execution of an ended sandbox",
    response_model=CellAnswer,
    responses=_PROBLEMS,
)
async def read_cell(sandbox_id: EndedId, execution_id: ExecutionId, backend: CallersBackend) -> Response:
    """Returns an execution with its outputs."""
    request = ReadCell(execution_id=execution_id)
    cell = await records_of(backend).look_back(sandbox_id, request)
    return await off_loop_answer(cell)


@router.get(
    "/{sandbox_id}/executions/{execution_id}/results/{number}/{mime:path}",
    summary="Read one format of a result of an ended sandbox",
    response_class=Response,
    responses=BYTES | _PROBLEMS | problems(416),
)
async def read_result(
    sandbox_id: EndedId,
    execution_id: ExecutionId,
    number: ResultNumber,
    mime: Mime,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Returns the bytes of one format of a result, as the code produced them, as a download."""
    wanted = ReadResult(execution_id=execution_id, number=number, mime=mime)
    return bytes_answer(request, await records_of(backend).look_back(sandbox_id, wanted), mime)


@router.get(
    "/{sandbox_id}/commands/history",
    summary="Read the commands of an ended sandbox",
    response_model=RanCommandsAnswer,
    responses=_PROBLEMS,
)
async def read_commands(
    sandbox_id: EndedId, backend: CallersBackend, after: AfterNumber = None, limit: HowMany = 200
) -> Response:
    """Returns the commands of a sandbox that has ended, as the same route of a living sandbox does.

    Commands that ran when the sandbox ended have no exit code.
    """
    page = await records_of(backend).look_back(sandbox_id, ReadCommands(after=after, limit=limit))
    return await off_loop_answer(page)


@router.get(
    "/{sandbox_id}/contexts/{context_id}/record",
    summary="Read the record of a context of an ended sandbox",
    response_model=RecordAnswer,
    responses=_PROBLEMS
    | {
        200: {
            "description": "The record, or a file of it for a download.",
            "content": {kind: {"schema": {}} for kind, _ in RECORD_FILES.values()},
        }
    },
)
async def get_context_record(
    sandbox_id: EndedId, context_id: ContextId, backend: CallersBackend, form: Form = "json"
) -> Response:
    """Returns the executions of a context with their results, as the same route of a living sandbox does."""
    return await file_answer(await records_of(backend).kept_record(sandbox_id, context_id), form)


@router.get(
    "/{sandbox_id}/audit",
    summary="Read the audit record of an ended sandbox",
    response_model=AuditAnswer,
    responses={**_PROBLEMS, 200: {"content": {LINES: {"schema": {"type": "string"}}}}},
)
async def audit_log(
    sandbox_id: EndedId,
    backend: CallersBackend,
    form: AuditForm = "json",
) -> Response:
    """Returns the newest entries of the audit record, each chained to the previous one, up to the last one."""
    log = await records_of(backend).kept_audit(sandbox_id)
    # In a thread: thousands of entries would block the loop.
    return await asyncio.to_thread(written, log, form)


@router.post(
    "/{sandbox_id}/replay",
    summary="Run a record again",
    response_class=Response,
    responses=_PROBLEMS
    | problems(400, 413, 429)
    | {200: {"description": "Each cell as it compares.", "content": stream_of("ReplayLine")}},
)
async def replay_record(
    sandbox_id: EndedId, body: NewReplay, backend: CallersBackend, request: Request
) -> Response:
    """Runs the cells of a record again, in a fresh sandbox without a network, and reports which give other results.

    A line of the type `cell` follows each cell, and `replayed` is the last one. The sandbox is the caller's, has the
    limits of the one that ended, counts against the quotas like any other, and ends with the replay or when the client
    disconnects. Output, results and errors are compared; times, usage and addresses of objects are not. Files that were
    uploaded and variables of the environment are not part of a record. Each cell has its original time limit; cells
    that were undone, interrupted, or running when the sandbox ended are not run (`skip_reason`).
    """
    records = records_of(backend)
    about = await records.ended_sandbox(sandbox_id)
    record = await records.kept_record(sandbox_id, body.context_id)

    if body.deterministic and record.language != PYTHON.name:
        raise InvalidArgumentError(
            field="deterministic", value=True, allowed="false: only Python can be fixed"
        )

    return await stream_response(request, _replay(backend, about, record, body), until_refused=until_refused)


async def _replay(
    backend: Backend, about: EndedSandbox, record: Record, wanted: NewReplay
) -> AsyncGenerator[Line, None]:
    spec = SandboxSpec(
        template=wanted.template or about.sandbox.template,
        limits=about.sandbox.limits,
        # Its own end, if this server cannot end it; moved on before each cell.
        timeout_seconds=about.sandbox.limits.wall_seconds + _SPARE_SECONDS,
        metadata={"replay_of": about.id},
        is_recorded=False,
    )
    made = await backend.create(spec)
    same, first, count = 0, None, 0

    try:
        replaying = _Replaying(backend, made, record, wanted.deterministic)

        async with aclosing(replayed(record, replaying.begin, replaying.run)) as compared:
            async for cell in compared:
                count += 1
                same += cell.is_same and not cell.is_skipped
                first = cell.number if first is None and cell.differences else first
                yield {"type": "cell", **fields_data(cell)}
    finally:
        # The task of a client that has gone is cancelled here once more: the sandbox must end all the same.
        await finish(backend.kill(made.id, wait=False))

    yield {
        "type": "replayed",
        "cells": count,
        "same": same,
        "first_difference": first,
        "dropped_cells": record.dropped_cells,
        "not_fixed": list(not_fixed(deterministic=wanted.deterministic)),
    }


class _Replaying:
    """Runs the cells of a record again, in a context of a fresh sandbox."""

    def __init__(self, backend: Backend, made: SandboxInfo, record: Record, deterministic: bool) -> None:
        self._backend = backend
        self._sandbox_id = made.id
        self._wall_seconds = made.limits.wall_seconds
        self._language = known_language(record.language).name
        self._deterministic = deterministic
        self._context_id = DEFAULT_CONTEXT_ID

    async def begin(self, is_first: bool) -> None:
        """Gives the replay a new context; restarts it if it has been used for an earlier one."""
        if not is_first:
            restart = RestartContext(context_id=self._context_id)
            await self._backend.context_call(self._sandbox_id, restart)
        elif self._language != PYTHON.name:
            (made,) = await self._backend.context_call(
                self._sandbox_id, CreateContext(language=self._language)
            )
            self._context_id = made.id

        if self._deterministic:
            await self._backend.run(self._sandbox_id, ExecuteRequest(code=fixing_code(), silent=True))

    async def run(self, cell: RecordedCell) -> Execution:
        """Runs the code of a recorded cell, with its input and time limit, and returns the execution."""
        seconds = cell.wall_seconds or self._wall_seconds
        await self._backend.set_timeout(self._sandbox_id, seconds + _SPARE_SECONDS)
        request = ExecuteRequest(
            code=cell.code,
            language=self._language,
            context_id=self._context_id,
            stdin=cell.stdin,
            wall_seconds=cell.wall_seconds,
        )
        return await self._backend.run(self._sandbox_id, request)
