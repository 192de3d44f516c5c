"""The variables of a context for readers that must not wait: an idle context is asked.

For any other, the last list is returned.

A context that runs code, is paused or has no process is not asked; the others answer within a fraction of a second,
without running code of the guest. Their answers are not trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from fumehood.cancellation import consume_result, keep
from fumehood.engine.cells import LastVariables
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import FumehoodError
from fumehood.values.charts import JsonValue
from fumehood.values.codec import DataError, read_value
from fumehood.values.looking import ReadVariable, ReadVariables, Variable, VariablePage
from fumehood.values.questions import LookAtVariables, SeenVariables
from fumehood.values.requests import DEFAULT_CONTEXT_ID

_ANSWER_SECONDS = 2.0
_Busy = Literal["running", "paused", "none"]


async def list_variables(sandbox: LiveSandbox, request: ReadVariables) -> VariablePage:
    """Returns a page of the variables of a context; if the context cannot be asked now, a page of its last list."""
    context_id = request.context_id or DEFAULT_CONTEXT_ID
    context = existing_context(sandbox, context_id)
    answer = await ask_context(sandbox, context, "")

    if isinstance(answer, SeenVariables) and context is not None:
        context.seen = LastVariables(datetime.now(UTC), answer.count, tuple(map(variable_of, answer.found)))

    seen = None if context is None else context.seen

    if seen is None:
        return VariablePage(state="none" if isinstance(answer, SeenVariables) else answer)

    state: Literal["current", "running", "paused", "none"]
    state = "current" if isinstance(answer, SeenVariables) else answer
    page = page_of(VariablePage(state=state, items=seen.variables, as_of=seen.at, count=seen.count), request)
    items = tuple(replace(one, since=_since(sandbox, context_id, one.name)) for one in page.items)
    return replace(page, items=items)


def page_of(whole: VariablePage, request: ReadVariables) -> VariablePage:
    """Returns the part of a list that a request asks for."""
    text = request.text.casefold()
    fitting = [
        one
        for one in whole.items
        if (request.after is None or one.name > request.after)
        and (not text or any(text in word.casefold() for word in (one.name, one.type, one.summary)))
    ]
    shown = fitting[: request.limit]
    return replace(
        whole,
        items=tuple(shown),
        next_cursor=shown[-1].name if len(fitting) > len(shown) else None,
    )


async def show_variable(sandbox: LiveSandbox, request: ReadVariable) -> VariablePage:
    """Returns one variable in detail; if the context cannot be asked now, as described in its last list."""
    context_id = request.context_id or DEFAULT_CONTEXT_ID
    context = existing_context(sandbox, context_id)
    answer = await ask_context(sandbox, context, request.name)

    if isinstance(answer, SeenVariables):
        items = tuple(
            replace(variable_of(one), since=_since(sandbox, context_id, request.name)) for one in answer.found
        )
        return VariablePage(state="current", items=items, as_of=datetime.now(UTC), count=answer.count)

    seen = None if context is None else context.seen

    if seen is None:
        return VariablePage(state=answer)

    items = tuple(one for one in seen.variables if one.name == request.name)
    return VariablePage(state=answer, items=items, as_of=seen.at, count=seen.count)


def is_asleep(sandbox: LiveSandbox) -> bool:
    """Whether the sandbox is paused, or about to be, so that no process in it can answer."""
    return not sandbox.pausing.is_running or not sandbox.cleanups.are_over


def existing_context(sandbox: LiveSandbox, context_id: str) -> LiveContext | None:
    """Returns a context; None for the default one before its first use, because a reader must not start it.

    Raises:
        ContextNotFoundError: The context does not exist.
    """
    found = next((one for one in sandbox.contexts if one.info.id == context_id), None)

    if found is not None or context_id == DEFAULT_CONTEXT_ID:
        return found

    return sandbox.contexts.existing(context_id)


async def ask_context(
    sandbox: LiveSandbox, context: LiveContext | None, name: str, *, marks: bool = False
) -> SeenVariables | _Busy:
    """Asks a context for its variables, or for one variable; returns the reason if it cannot be asked now."""
    if context is None or context.info.language != "python" or not context.is_begun:
        return "none"

    if is_asleep(sandbox):
        return "paused"

    if context.busy:
        return "running"

    # The question is not cancelled after the time-out: a pause, or code that began at the same moment, may delay it.
    asking = keep(context.answer(LookAtVariables(code=name, context_id=context.info.id, marks=marks)))
    consume_result(asking)
    await asyncio.wait([asking], timeout=_ANSWER_SECONDS)

    if not asking.done() or asking.cancelled():
        return "running"

    if isinstance(asking.exception(), FumehoodError) and not sandbox.alive:
        raise sandbox.closed_error()

    answer = asking.result()
    assert isinstance(answer, SeenVariables), "it belongs to the question"
    return answer


def _since(sandbox: LiveSandbox, context_id: str, name: str) -> str | None:
    """Returns the id of the last execution that has reported a change of a variable; None if there is none."""
    return sandbox.recorder.changed_by.get((context_id, name))


def variable_of(data: Mapping[str, JsonValue]) -> Variable:
    """Returns a variable as its context has described it; its mark is for comparisons only."""
    try:
        return read_value(Variable, {name: value for name, value in data.items() if name != "mark"})
    except DataError:
        # The wire has checked its form.
        return Variable(name=str(data["name"]), type=str(data["type"]))
