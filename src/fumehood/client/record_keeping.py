"""The client of a server's kept records: each verb is one request.

Runs in the caller's process; `HttpBackend` checks the answers.
"""

from __future__ import annotations

from typing import Any

from fumehood.client.connection import query_of, sandbox_path
from fumehood.client.looking import Ask, ask_look
from fumehood.errors import RecordNotFoundError, SandboxNotFoundError
from fumehood.values.codec import read_value
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import Look

RECORDS = "/v1/records"
_SANDBOXES = "/v1/sandboxes/"


def record_path(sandbox_id: str, *more: str) -> str:
    """Returns the path of a kept record, or of a part of it.

    Raises:
        RecordNotFoundError: The text cannot be the id of a sandbox.
    """
    try:
        return _at_record(sandbox_path(sandbox_id, *more))
    except SandboxNotFoundError:
        raise RecordNotFoundError(sandbox_id=sandbox_id) from None


def records_query(request: ListRecords) -> dict[str, Any]:
    """Returns the query that asks for a page of ended sandboxes."""
    query: dict[str, Any] = dict(
        query_of(owner=request.owner, q=request.text or None, cursor=request.before, limit=request.limit)
    )
    return query


def read_records(answer: Any) -> RecordList:
    """Returns a page of ended sandboxes from its plain data.

    Raises:
        DataError: The answer is not a page of ended sandboxes.
    """
    return read_value(RecordList, answer)


def read_ended(answer: Any) -> EndedSandbox:
    """Returns an ended sandbox from its plain data.

    Raises:
        DataError: The answer is not an ended sandbox.
    """
    return read_value(EndedSandbox, answer)


async def ask_back(ask: Ask, ask_bytes: Ask, sandbox_id: str, request: Look[Any]) -> Any:
    """Asks a server about the cells of an ended sandbox, at the same paths as those of a living one."""
    return await ask_look(_at_records(ask), _at_records(ask_bytes), sandbox_id, request)


def _at_records(ask: Ask) -> Ask:
    async def asked(method: str, path: str, **options: Any) -> Any:
        return await ask(method, _at_record(path), **options)

    return asked


def _at_record(path: str) -> str:
    return RECORDS + "/" + path.removeprefix(_SANDBOXES)
