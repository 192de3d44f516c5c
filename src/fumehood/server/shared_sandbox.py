"""One sandbox as the reader of a share sees it: only the chosen parts in the chosen time, and no actions.

It has only the queries below, over the sandboxes of the key that made the share. A query neither resumes the sandbox
nor extends its lifetime; ids of keys and of other sandboxes are left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta

from fumehood.errors import ExecutionNotFoundError, ForbiddenError, InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.shared_records import (
    SharedConnection,
    SharedEntry,
    part_of,
    shown_connection,
    shown_entries,
    shown_event,
)
from fumehood.storage.shares import OF_ALL_CONTEXTS, StoredShare
from fumehood.values.charts import JsonValue
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.looking import (
    MAX_CELLS,
    Cell,
    CellPage,
    ReadCell,
    ReadCells,
    ReadVariable,
    ReadVariables,
    VariablePage,
)
from fumehood.values.requests import DEFAULT_CONTEXT_ID, ListFiles, ReadFile
from fumehood.values.sandbox import FileInfo, SandboxInfo
from fumehood.values.shares import SharedPart
from fumehood.values.watching import WatchEvent

MAX_FILE_BYTES = 10 << 20
_MAX_PAGES = 64


class SharedSandbox:
    """The content that a share shows.

    Args:
        share: The share.
        backend: The sandboxes of the key that made it.
        ends: The end of the record, by share, for shares that are not live; kept from one request to the next.
    """

    def __init__(self, share: StoredShare, backend: Backend, ends: MutableMapping[str, int]) -> None:
        self._share = share
        self._backend = backend
        self._ends = ends
        self._id = share.sandbox_id
        # Of executions that events were about: whether they are shown.
        self._is_shown: dict[str, bool] = {}

    async def info(self) -> SandboxInfo:
        """Returns the description of the sandbox as its key sees it; a reader must not get all of it.

        Raises:
            SandboxClosedError: The sandbox has ended.
        """
        return await self._backend.info(self._id)

    async def cells(self, before: int | None, limit: int) -> CellPage:
        """Returns a page of the executions, in order; the newest page first."""
        self._require("record")
        end = None if self._share.until_at is None else await self._end()
        highest = before if end is None else min(end, end if before is None else before)
        page = await self._page(highest, limit)
        shown = tuple(self._shown(cell) for cell in page.items if self._covers(cell))
        end_position = page.end_position if end is None else end

        if len(shown) == len(page.items):
            return replace(page, items=shown, end_position=end_position)

        first = shown[0].position if shown else end_position
        return CellPage(items=shown, first_position=first, end_position=end_position)

    async def cell(self, execution_id: str) -> Cell:
        """Returns one execution with its outputs.

        Raises:
            ExecutionNotFoundError: The cell does not exist, or is hidden.
        """
        self._require("record")
        cell: Cell = await self._backend.look(self._id, ReadCell(execution_id=execution_id))

        if cell.context_id != self._share.context_id or not self._covers(cell):
            raise ExecutionNotFoundError(execution_id=execution_id)

        return self._shown(cell)

    async def variables(self, text: str, after: str | None, limit: int) -> VariablePage:
        """Returns the variables of the context as they are now."""
        self._require("variables")
        wanted = ReadVariables(context_id=self._share.context_id, text=text, after=after, limit=limit)
        page: VariablePage = await self._backend.look(self._id, wanted)
        return page

    async def variable(self, name: str) -> VariablePage:
        """Returns one variable in detail."""
        self._require("variables")
        wanted = ReadVariable(name=name, context_id=self._share.context_id)
        page: VariablePage = await self._backend.look(self._id, wanted)
        return page

    async def files(self, path: str) -> tuple[FileInfo, ...]:
        """Returns the entries of a directory below the home directory."""
        path = self._path(path)
        found: tuple[FileInfo, ...] = await self._backend.file_call(
            self._id, ListFiles(path=path, share=self._share.id)
        )
        return found

    async def file(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields the first 10 MiB of a file below the home directory, in pieces of at most 1 MiB."""
        path = self._path(path)
        wanted = ReadFile(path=path, length_bytes=MAX_FILE_BYTES, share=self._share.id)

        async with aclosing(self._backend.read(self._id, wanted)) as pieces:
            async for piece in pieces:
                yield piece

    async def audit(self) -> tuple[SharedEntry, ...]:
        """Returns the entries of the audit record that are shown."""
        self._require("audit")
        log = await self._backend.audit_log(self._id)
        return tuple(shown_entries(log.entries, self._share))

    async def network(self) -> tuple[SharedConnection, ...]:
        """Returns the connections that the sandbox made or tried to make in the time that is shown."""
        self._require("network")
        found = await self._backend.egress_log(self._id)
        return tuple(shown_connection(record) for record in found if self._share.covers(record.at, record.at))

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
        """Yields the events of the shown parts, from now until the sandbox ends."""
        async with aclosing(self._backend.watch_events(self._id)) as coming:
            async for events in coming:
                for event in events:
                    if event.type == "here":
                        yield WatchEvent(type="here", seq=event.seq)
                    elif await self._is_event_shown(event):
                        yield shown_event(event)

    async def _is_event_shown(self, event: WatchEvent) -> bool:
        try:
            part = part_of(event)
        except KeyError:
            return False

        if part is None:
            return True

        # Of what is shown up to a time nothing happens any more.
        if part not in self._share.shows or self._share.until_at is not None:
            return False

        if part in OF_ALL_CONTEXTS and self._share.context_id != DEFAULT_CONTEXT_ID:
            return False

        if part != "record":
            return True

        return await self._is_execution_shown(event.fields)

    async def _is_execution_shown(self, fields: Mapping[str, JsonValue]) -> bool:
        if (context_id := fields.get("context_id")) not in (None, self._share.context_id):
            return False

        execution_id = fields.get("execution_id")

        if not isinstance(execution_id, str):
            return context_id is not None

        if execution_id not in self._is_shown:
            try:
                await self.cell(execution_id)
                self._is_shown[execution_id] = True
            except ExecutionNotFoundError:
                self._is_shown[execution_id] = False

            if len(self._is_shown) > _MAX_PAGES:
                del self._is_shown[next(iter(self._is_shown))]

        return self._is_shown[execution_id]

    def _require(self, part: SharedPart) -> None:
        if part not in self._share.shows:
            raise ForbiddenError(reason=f"the share does not show the {part} of the sandbox")

        if part in OF_ALL_CONTEXTS and self._share.context_id != DEFAULT_CONTEXT_ID:
            raise ForbiddenError(reason=f"the {part} is of the whole sandbox, and the share of one context")

    def _path(self, path: str) -> str:
        """Returns the whole path of a file, following links only within the home directory.

        Raises:
            InvalidArgumentError: The path is outside of the home directory.
        """
        self._require("files")
        whole = posixpath.normpath(posixpath.join(HOME_PATH, path))

        if whole != HOME_PATH and not whole.startswith(HOME_PATH + "/"):
            raise InvalidArgumentError(field="path", value=path, allowed=f"a path below {HOME_PATH}")

        return whole

    async def _page(self, before: int | None, limit: int) -> CellPage:
        wanted = ReadCells(context_id=self._share.context_id, before=before, limit=limit)
        page: CellPage = await self._backend.look(self._id, wanted)
        return page

    async def _end(self) -> int:
        """Returns the position after the last cell that had ended by the end of the shown time.

        Cells of a context run one after the other, so that all before that one had ended too.
        """
        if self._share.id in self._ends:
            return self._ends[self._share.id]

        found, before = 0, None

        for _ in range(_MAX_PAGES):
            page = await self._page(before, MAX_CELLS)
            ended = [cell.position for cell in page.items if _ended_at(cell, self._share.until_at)]

            if ended or not page.items or page.items[0].position <= page.first_position:
                found = ended[-1] + 1 if ended else page.first_position
                break

            before = page.items[0].position

        self._ends[self._share.id] = found
        return found

    def _covers(self, cell: Cell) -> bool:
        return self._share.covers(cell.started_at, _end_of(cell))

    def _shown(self, cell: Cell) -> Cell:
        """Returns a cell without the parts that a share hides: keys, its input, tool calls and changes."""
        execution = cell.execution

        if execution is not None:
            execution = replace(execution, tool_calls=(), changes=None, audit_head=None)

        return replace(cell, by="", stdin=None, tool_calls=0, changes=None, execution=execution)


def _end_of(cell: Cell) -> datetime | None:
    if cell.state != "ended" or cell.started_at is None:
        return None

    return cell.started_at + timedelta(seconds=cell.usage.wall_seconds if cell.usage else 0.0)


def _ended_at(cell: Cell, until_at: float | None) -> bool:
    end = _end_of(cell)
    return end is not None and (until_at is None or end.timestamp() <= until_at)
