"""Transactional executions: their changes are kept only if they end normally.

Runs in the host process, on the engine's loop, within the turn of a context. A checkpoint is made first; if the code
fails, is stopped, or its caller refuses the commit, state and files are rolled back, also when the context is gone. If
the checkpoint is gone as well, the files are restored and the context is started afresh: state and files must never be
of different moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from fumehood import failpoints
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextProcess, ContextStartError
from fumehood.engine.time_travel.checkpoints import HeldCheckpoint, LiveCheckpoints
from fumehood.errors import CheckpointError, CheckpointLostError
from fumehood.values.events import CommitRequestEvent, Event
from fumehood.values.execution import ChangedFile, Changes, Execution, Transaction
from fumehood.values.requests import ExecuteRequest

# How long a caller may take to decide about the changes.
_DECISION_SECONDS = 300.0
_STAYS = "the execution cannot be undone, and what it changed stays"

Run = Callable[[ContextProcess], Awaitable[Execution]]


class Transactions:
    """The transactions of one sandbox, and the pending commit decisions."""

    def __init__(self, checkpoints: LiveCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._decisions: dict[str, asyncio.Future[bool]] = {}

    def decide(self, execution_id: str, commit: bool) -> None:
        """Answers a CommitRequestEvent; an answer without a pending request is dropped."""
        decision = self._decisions.get(execution_id)

        if decision is not None and not decision.done():
            decision.set_result(commit)

    async def carry_out(
        self,
        context: LiveContext,
        process: ContextProcess,
        request: ExecuteRequest,
        run: Run,
        emit: Callable[[Event], None],
    ) -> Execution:
        """Runs code, and keeps or undoes its changes; the execution records which.

        Raises:
            CheckpointError: The checkpoint could not be made; no code has run.
        """
        taking = self._checkpoints.take_within_turn(context, process)
        kept = await context.finish(taking, self._checkpoints.forget)
        try:
            await failpoints.reach("transaction.kept", context)
            execution = await run(process)
            await failpoints.reach("transaction.run", context)
            changes = await self._changes(request, kept, execution)
            reason = _reason(execution)

            if not reason and request.ask_commit:
                reason = await self._ask(execution, changes, emit)

            await failpoints.reach("transaction.undo" if reason else "transaction.commit", context)
        except BaseException:
            # Its caller was cancelled: the commit was not confirmed.
            await context.finish_later(self._undo(context, kept))
            raise

        if not reason:
            await context.finish(self._checkpoints.forget(kept))
            transaction = Transaction(outcome="committed", left_behind=kept.info.left_behind)
            return replace(execution, transaction=transaction, changes=changes)

        is_undone = await context.finish(self._undo(context, kept))
        transaction = Transaction(outcome="rolled_back", reason=reason, left_behind=kept.info.left_behind)
        return replace(execution, transaction=transaction, changes=changes, state_lost=not is_undone)

    async def observe(self, context: LiveContext, process: ContextProcess, run: Run) -> Execution:
        """Runs code, and reports which files were changed meanwhile."""
        keeping = self._checkpoints.keep_files(process)
        snapshot = await context.finish(keeping, self._checkpoints.snapshots.drop)
        try:
            execution = await run(process)
            found = await self._checkpoints.snapshots.compare(snapshot)
        finally:
            await context.finish(self._checkpoints.snapshots.drop(snapshot))

        variables = execution.changes.variables if execution.changes else ()
        changes = Changes(variables=variables, files=changed_files(found), more_files=found["more"])
        return replace(execution, changes=changes)

    async def _changes(
        self, request: ExecuteRequest, kept: HeldCheckpoint, execution: Execution
    ) -> Changes | None:
        if not request.ask_commit and not request.tell_changes:
            return None

        found = await self._checkpoints.snapshots.compare(kept.snapshot)
        variables = execution.changes.variables if execution.changes else ()
        return Changes(variables=variables, files=changed_files(found), more_files=found["more"])

    async def _ask(self, execution: Execution, changes: Changes | None, emit: Callable[[Event], None]) -> str:
        """Asks the caller; returns the reason for a rollback, or an empty text."""
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._decisions[execution.id] = decision
        emit(
            CommitRequestEvent(
                execution_id=execution.id,
                changes=changes or Changes(),
                at_seconds=execution.usage.wall_seconds,
            )
        )
        try:
            await self._checkpoints.clock.wait(decision, seconds=_DECISION_SECONDS)
            return "" if decision.done() and decision.result() else "refused"
        finally:
            del self._decisions[execution.id]

    async def _undo(self, context: LiveContext, kept: HeldCheckpoint) -> bool:
        """Restores state and files; returns False if the variables could not be restored."""
        try:
            await self._checkpoints.roll_back_within_turn(kept, context)
        except (CheckpointLostError, ContextStartError):
            await context.begin_anew(lambda: self._checkpoints.put_files_back(kept))
            return False
        except CheckpointError as error:
            stays = CheckpointError(
                reason=f"{_STAYS}: {error.reason}",
                hint=error.hint,
                logged=f"{_STAYS}: {error.log_reason}",
            )
            stays.outcome_unknown = True
            raise stays from None
        finally:
            await self._checkpoints.forget(kept)

        return True


def changed_files(found: dict[str, Any]) -> tuple[ChangedFile, ...]:
    """Returns init's comparison as values of the API, by path."""
    changes = [
        ChangedFile(path=change["path"], kind=kind, size_bytes=change["size_bytes"])
        for kind in ("created", "modified", "deleted")
        for change in found[kind]
    ]
    return tuple(sorted(changes, key=lambda change: change.path))


def _reason(execution: Execution) -> str:
    if execution.error is None:
        return ""

    return "error" if execution.error.kind == "exception" else execution.error.kind
