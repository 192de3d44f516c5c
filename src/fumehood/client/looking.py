"""The client of the server's read-only questions about sandboxes: each is one request.

Runs in the caller's process; `HttpBackend` checks the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.client.connection import query_of, quoted, sandbox_path
from fumehood.errors import InvalidArgumentError
from fumehood.values.codec import read_value
from fumehood.values.looking import (
    Cell,
    CellPage,
    CommandPage,
    Family,
    ListedSandbox,
    ListSandboxes,
    Look,
    PortList,
    ReadCell,
    ReadCells,
    ReadCommands,
    ReadFamily,
    ReadPorts,
    ReadResult,
    ReadUse,
    ReadVariable,
    ReadVariables,
    SandboxList,
    SandboxUse,
    VariablePage,
)
from fumehood.values.moments import Comparison, ReadDifferences, ReadKeptFile
from fumehood.values.requests import DEFAULT_CONTEXT_ID
from fumehood.values.sandbox import SandboxInfo

Ask = Callable[..., Awaitable[Any]]


async def ask_look(ask: Ask, ask_bytes: Ask, sandbox_id: str, request: Look[Any]) -> Any:
    """Asks a server about a sandbox; returns the checked answer."""
    match request:
        case ReadCells():
            place = sandbox_path(
                sandbox_id, "contexts", request.context_id or DEFAULT_CONTEXT_ID, "executions"
            )
            query = query_of(
                before=request.before,
                after=request.after,
                limit=request.limit,
                what="whole" if request.whole else "summary",
            )
            return read_value(CellPage, await ask("GET", place, params=query))
        case ReadCell():
            return read_value(
                Cell, await ask("GET", sandbox_path(sandbox_id, "executions", request.execution_id))
            )
        case ReadResult():
            place = sandbox_path(
                sandbox_id, "executions", request.execution_id, "results", str(request.number)
            )
            return await ask_bytes("GET", f"{place}/{quoted(request.mime)}")
        case ReadFamily():
            return read_value(Family, await ask("GET", sandbox_path(sandbox_id, "family")))
        case ReadCommands():
            query = query_of(after=request.after, limit=request.limit)
            place = sandbox_path(sandbox_id, "commands", "history")
            return read_value(CommandPage, await ask("GET", place, params=query))
        case ReadPorts():
            return read_value(PortList, await ask("GET", sandbox_path(sandbox_id, "ports")))
        case ReadUse():
            return read_value(SandboxUse, await ask("GET", sandbox_path(sandbox_id, "use")))
        case ReadVariables():
            place = sandbox_path(
                sandbox_id, "contexts", request.context_id or DEFAULT_CONTEXT_ID, "variables"
            )
            query = query_of(q=request.text or None, cursor=request.after, limit=request.limit, at=request.at)
            return read_value(VariablePage, await ask("GET", place, params=query))
        case ReadVariable():
            place = sandbox_path(
                sandbox_id, "contexts", request.context_id or DEFAULT_CONTEXT_ID, "variables"
            )
            query = query_of(at=request.at)
            return read_value(VariablePage, await ask("GET", f"{place}/{quoted(request.name)}", params=query))
        case ReadDifferences():
            query = query_of(before=request.before, after=request.after)
            return read_value(Comparison, await ask("GET", sandbox_path(sandbox_id, "compare"), params=query))
        case ReadKeptFile():
            place = sandbox_path(sandbox_id, "checkpoints", request.checkpoint_id, "file")
            return await ask_bytes("GET", place, params=query_of(path=request.path))
        case _:
            raise InvalidArgumentError(
                field="look", value=type(request).__name__, allowed="a question of `fumehood.values.looking`"
            )


def list_query(request: ListSandboxes) -> dict[str, str]:
    """Returns the query that asks for a page of sandboxes."""
    query: dict[str, str] = dict(
        query_of(
            owner=request.owner,
            state=request.state,
            template=request.template,
            parent_id=request.parent_id,
            q=request.text or None,
            order=request.order,
            cursor=request.cursor,
            limit=request.limit,
        )
    )
    query |= {"with": "use"} if request.with_use else {}
    return query | {f"metadata.{name}": value for name, value in request.labels.items()}


def read_list(data: Any) -> SandboxList:
    """Returns a page of sandboxes from its plain data."""
    items = tuple(
        ListedSandbox(
            info=read_value(SandboxInfo, item),
            use=None if item.get("use") is None else read_value(SandboxUse, item["use"]),
        )
        for item in data["items"]
    )
    return SandboxList(items=items, next_cursor=data["next_cursor"])
