"""An execution as a person reads it."""

from __future__ import annotations

from fumehood.values.execution import Execution, ExecutionError, LogEntry, Logs
from fumehood.values.results import Result


def test_an_execution_prints_as_a_notebook_shows_it():
    """Output, results and the error, in this order; nothing for what has said nothing."""
    logs = Logs(entries=(LogEntry(stream="stdout", text="out\n", at_seconds=0.0),))
    results = (Result(parts={"text/plain": b"42"}), Result(parts={"image/png": b"..."}))
    error = ExecutionError(kind="exception", name="ValueError", value="no", traceback="ValueError: no")

    assert str(Execution(id="e", context_id="c")) == ""
    assert str(Execution(id="e", context_id="c", logs=logs, results=results)) == "out\n42\nResult(png)"
    assert str(Execution(id="e", context_id="c", logs=logs, error=error)) == "out\nValueError: no"


def test_an_execution_moves_no_cursor():
    """It is printed without a thought, so its text is made visible here."""
    logs = Logs(entries=(LogEntry(stream="stdout", text="\x1b[2J", at_seconds=0.0),))
    assert str(Execution(id="e", context_id="c", logs=logs)) == "\\x1b[2J"
