"""A conversation as a notebook of nbformat 4.5: prompts and prose as Markdown, code with all its outputs.

Pure functions. Prose comes from a model and outputs from a guest: a front end shows them as those of an untrusted
notebook.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fumehood.llm.events import ModelCell
from fumehood.llm.providers.base import CellOutput, CodeCall, Message, ModelMessage, UserMessage
from fumehood.notebook.ipynb import facts_of, notebook_text, outputs_of, times_of


def conversation_notebook(history: Iterable[Message], cells: Sequence[ModelCell]) -> str:
    """Return the file of a notebook.

    Args:
        history: The conversation, oldest first.
        cells: The code that was run in it, in order.
    """
    made = [
        {**cell, "id": f"cell-{number}"}
        for number, cell in enumerate(_cells(tuple(history), deque(cells)), 1)
    ]
    return notebook_text(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {
                "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
                "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            },
            "cells": made,
        }
    )


def _cells(history: tuple[Message, ...], ran: deque[ModelCell]) -> Iterator[dict[str, Any]]:
    outputs = {message.call_id: message for message in history if isinstance(message, CellOutput)}

    for message in history:
        match message:
            case UserMessage(text=text):
                yield _markdown(f"**You:** {text}")
            case ModelMessage():
                if message.text.strip():
                    yield _markdown(message.text)

                for call in message.calls:
                    # Calls and cells are in the same order; a call that was not run has no cell.
                    cell = ran.popleft() if ran and ran[0].call_id == call.id else None
                    yield _code(call, cell, outputs.get(call.id))


def _code(call: CodeCall, cell: ModelCell | None, output: CellOutput | None) -> dict[str, Any]:
    execution = None if cell is None else cell.result.execution
    made = {"cell_type": "code", "source": _valid(call.code)}

    if execution is None:
        text = "" if output is None else output.text
        shown = [{"output_type": "stream", "name": "stderr", "text": _valid(text)}] if text else []
        return {**made, "execution_count": None, "metadata": {}, "outputs": shown}

    return {
        **made,
        "execution_count": execution.execution_count,
        "metadata": {"execution": times_of(execution), "fumehood": facts_of(execution)},
        "outputs": outputs_of(execution),
    }


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _valid(text)}


def _valid(text: str) -> str:
    """Return text that can be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()
