"""The record of a context: which code ran in it, in which order, and what each did.

Plain values of the host process, kept by the engine and handed out as they are. Code is the caller's, all else is a
guest's: show it through `fumehood.text.visible`, never render it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.execution import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One piece of code, as it was run.

    Attributes:
        code: The code.
        execution: What it did.
        stdin: What its standard input gave; None: nothing.
        is_fresh: Whether the context had no state from cells before: its first cell, or the first after a restart.
        outputs_dropped: Whether its logs, results, traceback, tool calls and changes were dropped, to stay within the
            bounds of the record.
        is_undone: Whether what it did to variables and files was taken back: the sandbox went back to a checkpoint.
    """

    code: str
    execution: Execution
    stdin: str | None = None
    is_fresh: bool = False
    outputs_dropped: bool = False
    is_undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ran in a context since it came to be; silent executions are not in it.

    That of a fork, or of a sandbox that was loaded, begins with what ran before in the one that it goes on from.

    Attributes:
        sandbox_id: The sandbox.
        context_id: The context.
        language: python or bash.
        cells: What ran, in order; the oldest may be missing.
        dropped_cells: How many cells before the first are missing, because the record is bounded.
        dropped_outputs: How many of `cells` have lost their outputs for the same reason.
    """

    sandbox_id: str
    context_id: str
    language: str
    cells: tuple[RecordedCell, ...] = ()
    dropped_cells: int = 0
    dropped_outputs: int = 0
