"""Records of sandboxes that have ended: `Records`, asynchronous and synchronous.

Runs in the user's process and uses only the port of kept records. Never starts a sandbox: `replay` does.
"""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import TypeAlias

from fumehood.api.handle import default_backend, named_backend
from fumehood.errors import RecordNotFoundError
from fumehood.port.backend import Backend
from fumehood.port.record_keeping import RecordKeeping
from fumehood.tracebacks import PlainErrors
from fumehood.values.audit import AuditLog
from fumehood.values.execution import Record
from fumehood.values.kept_records import EndedSandbox, ListRecords
from fumehood.values.looking import CommandPage, ReadCommands
from fumehood.values.requests import DEFAULT_CONTEXT_ID
from fumehood.values.sandbox import ContextInfo

EndedSandboxes: TypeAlias = builtins.list[EndedSandbox]


class AsyncRecords(PlainErrors):
    """The records of sandboxes that have ended: the code that ran in each, its audit record, and why it ended.

    Records are kept only where the setting `records` is `keep`: a server's is `--records keep`, in this process it is
    `FUMEHOOD_RECORDS`. For a living sandbox, use `Sandbox.get_record()`.

    Args:
        url: Address of the server; None: FUMEHOOD_URL, or else this process.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        backend: The backend of the sandboxes, in place of `url` and `api_key`.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._named_backend = named_backend(url, api_key, backend)

    async def list(self, text: str = "", *, limit: int = 100) -> EndedSandboxes:
        """Describe sandboxes that have ended and whose records are kept, the one that ended last comes first.

        Args:
            text: Only sandboxes with this text in id, template, key, reason or a label.
            limit: The most sandboxes to return, up to 500.
        """
        backend = self._named_backend or default_backend()
        request = ListRecords(text=text, limit=limit)
        ended: EndedSandboxes = []

        # A page may hold less than its limit, however much follows: its size is bounded in bytes too.
        while isinstance(backend, RecordKeeping):
            page = await backend.find_records(request)
            ended += page.items

            if page.next_cursor is None or len(ended) >= limit:
                break

            request = replace(request, before=page.next_cursor, limit=limit - len(ended))

        return ended

    async def get(self, sandbox_id: str, context: ContextInfo | str = DEFAULT_CONTEXT_ID) -> Record:
        """Return the executions of a sandbox that has ended, with their results; `replay` runs them again and compares.

        Code that ran when the sandbox ended is the last cell, with its output until then.

        Args:
            sandbox_id: The id that it had.
            context: The context.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
            ContextNotFoundError: The context has no record.
        """
        context_id = context.id if isinstance(context, ContextInfo) else context
        return await self._keeping(sandbox_id).kept_record(sandbox_id, context_id)

    async def commands(self, sandbox_id: str, *, after: int | None = None, limit: int = 200) -> CommandPage:
        """Return the commands of a sandbox that has ended; those that ran until its end have no exit code.

        Args:
            sandbox_id: The id that it had.
            after: Only those after this number: `next_cursor` of the previous page; unless given, from the oldest on.
            limit: How many at most; a page with much output has fewer.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        request = ReadCommands(after=after, limit=limit)
        return await self._keeping(sandbox_id).look_back(sandbox_id, request)

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        """Return the audit record of a sandbox that has ended, up to its last entry.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        return await self._keeping(sandbox_id).kept_audit(sandbox_id)

    async def delete(self, sandbox_id: str) -> None:
        """Delete the record of a sandbox that has ended, for good.

        Raises:
            RecordNotFoundError: The record of the sandbox is not kept, or not any more.
        """
        await self._keeping(sandbox_id).delete_record(sandbox_id)

    def _keeping(self, sandbox_id: str) -> RecordKeeping:
        backend = self._named_backend or default_backend()

        if not isinstance(backend, RecordKeeping):
            raise RecordNotFoundError(sandbox_id=sandbox_id)

        return backend
