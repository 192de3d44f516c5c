"""Compares two states of a sandbox: two checkpoints, or a checkpoint and the present.

A checkpoint's variables are described by its waiting process, its files by init; neither runs code of the guest, and
the present state is not touched. Names, marks and sizes come from the guest and are compared, never trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.time_travel.checkpoints import HeldCheckpoint
from fumehood.engine.time_travel.transactions import changed_files
from fumehood.engine.variables import ask_context, existing_context, is_asleep, variable_of
from fumehood.errors import CheckpointError, InvalidArgumentError
from fumehood.values.charts import JsonValue
from fumehood.values.execution import VariableKind
from fumehood.values.looking import VariablePage
from fumehood.values.moments import (
    MAX_KEPT_FILE_BYTES,
    NOW,
    Comparison,
    Moment,
    ReadDifferences,
    ReadKeptFile,
    VariableDifference,
)
from fumehood.values.questions import SeenVariables
from fumehood.values.requests import DEFAULT_CONTEXT_ID

_Described = Mapping[str, JsonValue]


async def compare(sandbox: LiveSandbox, request: ReadDifferences) -> Comparison:
    """Returns the differences between two states.

    Raises:
        CheckpointNotFoundError: A checkpoint does not exist.
        CheckpointLostError: The process of a checkpoint has ended.
        InvalidArgumentError: The checkpoints are of different contexts.
    """
    with sandbox.checkpoints.lent(request.before) as before:
        context_id = before.info.context_id

        if request.after == NOW:
            return await _compared_with_now(sandbox, before, existing_context(sandbox, context_id))

        with sandbox.checkpoints.lent(request.after) as after:
            if after.info.context_id != context_id:
                raise InvalidArgumentError(
                    field="after", value=request.after, allowed=f"a checkpoint of the context {context_id!r}"
                )

            found = Comparison(
                before=_moment(before), after=_moment(after), context_id=context_id, state="current"
            )

            if is_asleep(sandbox):
                return replace(found, state="paused")

            listed = await before.line.look(marks=True), await after.line.look(marks=True)
            files = await sandbox.checkpoints.snapshots.compare(before.snapshot, after.snapshot)
            found = replace(found, files=changed_files(files), more_files=files["more"])
            return _with_variables(found, *listed, are_marked=before.conversation == after.conversation)


async def _compared_with_now(
    sandbox: LiveSandbox, before: HeldCheckpoint, context: LiveContext | None
) -> Comparison:
    context_id = before.info.context_id
    length = 0 if context is None else sandbox.recorder.length(context.info.id)
    now = Moment(id=NOW, name=None, at=datetime.now(UTC), position=length)
    found = Comparison(before=_moment(before), after=now, context_id=context_id, state="current")
    listed = await ask_context(sandbox, context, "", marks=True)

    if listed == "paused":
        return replace(found, state=listed)

    files = await sandbox.checkpoints.snapshots.compare(before.snapshot)
    found = replace(found, files=changed_files(files), more_files=files["more"])

    if not isinstance(listed, SeenVariables):
        return replace(found, state=listed)

    are_marked = context is not None and context.conversation == before.conversation
    return _with_variables(found, await before.line.look(marks=True), listed, are_marked=are_marked)


def _with_variables(
    found: Comparison, before: SeenVariables | None, after: SeenVariables | None, *, are_marked: bool
) -> Comparison:
    if before is None or after is None:
        raise CheckpointError(
            reason="its variables could not be read in time, or there was no memory for the answer",
            hint="ask again when the sandbox has less to do",
        )

    earlier, later = _by_name(before.found), _by_name(after.found)
    # A list that was cut says nothing about later names.
    ends = [
        str(one.found[-1]["name"]) if one.found else ""
        for one in (before, after)
        if one.count > len(one.found)
    ]
    listed = sorted(name for name in {**earlier, **later} if all(name <= end for end in ends))
    unseen = {name for name in listed if _is_unseen(earlier.get(name), later.get(name))}
    names = [name for name in listed if name not in unseen]
    differences = [
        VariableDifference(
            name=name,
            kind=_kind(name, earlier, later),
            before=variable_of(earlier[name]) if name in earlier else None,
            after=variable_of(later[name]) if name in later else None,
        )
        for name in names
        if not _are_same(earlier.get(name), later.get(name), are_marked=are_marked)
    ]
    return replace(
        found,
        variables=tuple(differences),
        same_variables=len(names) - len(differences),
        more_variables=len(unseen) + (max(0, max(before.count, after.count) - len(listed)) if ends else 0),
        are_marked=are_marked,
    )


def _by_name(found: Sequence[_Described]) -> dict[str, _Described]:
    return {str(one["name"]): one for one in found}


def _kind(name: str, earlier: Mapping[str, object], later: Mapping[str, object]) -> VariableKind:
    if name not in earlier:
        return "added"

    return "changed" if name in later else "deleted"


def _is_unseen(before: _Described | None, after: _Described | None) -> bool:
    """Whether a variable of both states cannot be compared, because a guest had no time to compute its mark."""
    return before is not None and after is not None and not ("mark" in before and "mark" in after)


def _are_same(before: _Described | None, after: _Described | None, *, are_marked: bool) -> bool:
    if before is None or after is None:
        return False

    if are_marked:
        return before["mark"] == after["mark"]

    return all(before[name] == after[name] for name in ("type", "summary", "size_bytes"))


def _moment(kept: HeldCheckpoint) -> Moment:
    info = kept.info
    return Moment(id=info.id, name=info.name, at=info.created_at, position=info.position)


async def variables_at(
    sandbox: LiveSandbox, checkpoint_id: str, context_id: str | None, name: str
) -> VariablePage:
    """Returns the variables of a context at a checkpoint, or the named one in detail.

    Raises:
        CheckpointNotFoundError: The checkpoint does not exist.
        ContextNotFoundError: The context does not exist, and the checkpoint belongs to another one.
        InvalidArgumentError: The checkpoint belongs to another context.
    """
    with sandbox.checkpoints.lent(checkpoint_id) as kept:
        _check_context(sandbox, kept, context_id or DEFAULT_CONTEXT_ID)

        if is_asleep(sandbox):
            return VariablePage(state="paused")

        seen = await kept.line.look(name)

        if seen is None:
            return VariablePage(state="running")

        return VariablePage(
            state="current",
            items=tuple(map(variable_of, seen.found)),
            as_of=kept.info.created_at,
            count=seen.count,
        )


def _check_context(sandbox: LiveSandbox, kept: HeldCheckpoint, context_id: str) -> None:
    if kept.info.context_id == context_id:
        return

    existing_context(sandbox, context_id)
    raise InvalidArgumentError(
        field="at",
        value=kept.info.name or kept.info.id,
        allowed=f"a checkpoint of the context {context_id!r}; this one is of {kept.info.context_id!r}",
    )


async def read_kept_file(sandbox: LiveSandbox, request: ReadKeptFile) -> bytes:
    """Returns the beginning of a file as it was at a checkpoint.

    Raises:
        CheckpointNotFoundError: The checkpoint does not exist.
        FileError: The file did not exist at the checkpoint, or is not a regular file.
    """
    pieces = bytearray()

    with sandbox.checkpoints.lent(request.checkpoint_id) as kept:
        async for piece in sandbox.checkpoints.snapshots.read(kept.snapshot, request.path):
            pieces += piece

            if len(pieces) >= MAX_KEPT_FILE_BYTES:
                break

    return bytes(pieces[:MAX_KEPT_FILE_BYTES])
