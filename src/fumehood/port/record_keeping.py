"""The port of kept records: questions about sandboxes that have ended, for a backend that keeps their records.

The engine implements it, and the client of a server forwards it. The server checks the rights of a caller by the
`owner` in the description of the record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from fumehood.values.audit import AuditLog
from fumehood.values.execution import Record
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import Look

_Answer = TypeVar("_Answer")


class RecordKeeping(ABC):
    """A backend that can keep the records of sandboxes that have ended.

    A sandbox without a kept record raises RecordNotFoundError from every verb but `find_records`.
    """

    @abstractmethod
    async def find_records(self, request: ListRecords) -> RecordList:
        """Return a page of the sandboxes whose records are kept."""

    @abstractmethod
    async def ended_sandbox(self, sandbox_id: str) -> EndedSandbox:
        """Describe a sandbox that has ended."""

    @abstractmethod
    async def look_back(self, sandbox_id: str, request: Look[_Answer]) -> _Answer:
        """Answer a question about a sandbox that has ended: ReadCells, ReadCell, ReadResult or ReadCommands.

        Raises:
            ContextNotFoundError: The question names a context without a record.
            ExecutionNotFoundError: The question names an execution that is not in the record.
            InvalidArgumentError: The question is of another class.
        """

    @abstractmethod
    async def kept_record(self, sandbox_id: str, context_id: str | None = None) -> Record:
        """Return the record of a context (None: the default one) of a sandbox that has ended.

        Raises:
            ContextNotFoundError: The context has no record.
        """

    @abstractmethod
    async def kept_audit(self, sandbox_id: str) -> AuditLog:
        """Return the newest entries of the audit record of a sandbox that has ended, up to its last one."""

    @abstractmethod
    async def delete_record(self, sandbox_id: str) -> None:
        """Delete the record of a sandbox that has ended."""
