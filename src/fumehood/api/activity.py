"""Past and running executions of a sandbox: `sandbox.activity`, asynchronous and synchronous.

Runs in the user's process and uses only the backend port. Its calls change nothing: they resume no sandbox, extend no
lifetime and add nothing to the record. Names and text in the answers come from the guest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fumehood.api.handle import SandboxHandle
from fumehood.tracebacks import PlainErrors
from fumehood.values.looking import (
    Cell,
    CellPage,
    CommandPage,
    Family,
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
    SandboxUse,
    VariablePage,
)
from fumehood.values.moments import Comparison, ReadDifferences, ReadKeptFile
from fumehood.values.watching import WatchEvent


class AsyncActivity(PlainErrors):
    """The past and running executions of a `Sandbox`, whichever caller began them."""

    def __init__(self, sandbox_handle: SandboxHandle) -> None:
        self._sandbox_handle = sandbox_handle

    async def executions(
        self,
        *,
        context: str | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        whole: bool = False,
    ) -> CellPage:
        """Return some of the executions of a context, in order, the running one included.

        Args:
            context: The context; the default one unless given.
            before: Only executions before this position.
            after: Only executions after this position. Without `before` and `after`, the newest are returned.
            limit: The most executions to return.
            whole: Whether each item includes its whole `execution`, with its outputs.

        Raises:
            ContextNotFoundError: The context does not live.
        """
        request = ReadCells(context_id=context, before=before, after=after, limit=limit, whole=whole)
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, request)

    async def execution(self, execution_id: str) -> Cell:
        """Return one execution with its outputs; if it is still running, with its outputs so far.

        Args:
            execution_id: The id of the execution.

        Raises:
            ExecutionNotFoundError: No execution has this id, or it is not kept any more.
        """
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadCell(execution_id=execution_id))

    async def result_bytes(self, execution_id: str, number: int, mime: str) -> bytes:
        """Return one format of one result as bytes.

        Args:
            execution_id: The execution.
            number: The number of the result, from 0.
            mime: The format, such as `image/png`.

        Raises:
            ExecutionNotFoundError: The execution is not known, or not kept any more.
        """
        request = ReadResult(execution_id=execution_id, number=number, mime=mime)
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, request)

    async def variables(
        self,
        *,
        context: str | None = None,
        text: str = "",
        after: str | None = None,
        limit: int = 200,
        at: str | None = None,
    ) -> VariablePage:
        """Return the variables of a context by name, without running code of their classes.

        If the context runs code or is paused, the last known variables are returned, so that the call does not wait.

        Args:
            context: The context; the default one unless given.
            text: Only variables with this text in the name, the type or the summary.
            after: `next_cursor` of the previous page.
            limit: The most variables to return.
            at: The id or name of a checkpoint whose variables to return; the present variables unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: The checkpoint does not exist.
            InvalidArgumentError: The checkpoint belongs to another context.
        """
        request = ReadVariables(context_id=context, text=text, after=after, limit=limit, at=at)
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, request)

    async def variable(self, name: str, *, context: str | None = None, at: str | None = None) -> VariablePage:
        """Return one variable in detail, as the only item of a page; the page is empty if the variable does not exist.

        Args:
            name: The name of the variable.
            context: The context; the default one unless given.
            at: The id or name of a checkpoint whose variable to return; the present variable unless given.

        Raises:
            ContextNotFoundError: The context does not live.
            CheckpointNotFoundError: The checkpoint does not exist.
            InvalidArgumentError: The checkpoint belongs to another context.
        """
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadVariable(name=name, context_id=context, at=at))

    async def compare(self, before: str, after: str = "now") -> Comparison:
        """Return the differences between two moments of the sandbox: variables of a context, and files.

        Args:
            before: The earlier moment: a checkpoint, by its id or its name.
            after: The later moment: a checkpoint of the same context, or `now`.

        Raises:
            CheckpointNotFoundError: A checkpoint does not exist.
            CheckpointLostError: Code in the sandbox has ended a checkpoint.
        """
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadDifferences(before=before, after=after))

    async def kept_file(self, checkpoint: str, path: str) -> bytes:
        """Return the first 1 MiB of a file as it was at a checkpoint.

        Args:
            checkpoint: The checkpoint, by its id or its name.
            path: Absolute path of the file, as `compare` names it.

        Raises:
            CheckpointNotFoundError: The checkpoint does not exist.
            FileError: The file did not exist at the checkpoint.
        """
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadKeptFile(checkpoint_id=checkpoint, path=path))

    async def family(self) -> Family:
        """Return the sandbox, its ancestors and all their forks, including those that have ended recently."""
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadFamily())

    async def commands(self, *, after: int | None = None, limit: int = 200) -> CommandPage:
        """Return the commands of the sandbox, those that run and those that have ended, with the ends of their output.

        Args:
            after: Only those after this number: `next_cursor` of the previous page; unless given, from the oldest on.
            limit: How many at most; a page with much output has fewer.
        """
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadCommands(after=after, limit=limit))

    async def ports(self) -> PortList:
        """Return the TCP ports on which programs of the sandbox listen, each with its program; at most a second old."""
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadPorts())

    async def use(self) -> SandboxUse:
        """Return the current usage and activity of the sandbox, as known to the host without asking the sandbox."""
        handle = self._sandbox_handle
        return await handle.backend.look(handle.id, ReadUse())

    async def events(self, *, after: int | None = None) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events of the sandbox, whichever caller causes them: `here` first, `ended` last.

        Args:
            after: The `seq` of an event: kept events after it come first, with a `gap` in place of events that are not
                kept any more. Unless given, only new events are yielded.
        """
        handle = self._sandbox_handle

        async with aclosing(handle.backend.watch_events(handle.id, after)) as coming:
            async for events in coming:
                for event in events:
                    yield event
