"""How an execution and a result show themselves: at a prompt, in a notebook on the host, as JSON."""

from __future__ import annotations

import json

from fumehood import Execution, ExecutionError, LogEntry, Logs, Result, Usage
from fumehood.values.codec import read_value

PICTURE = b"\x89PNG" + bytes(50_000)
HOSTILE = "<script>alert(1)</script>"


def execution(**changes):
    """Return an execution with a value and one line of output."""
    fields = {
        "id": "e1",
        "context_id": "default",
        "results": (Result(parts={"text/plain": b"2"}, is_main_result=True),),
        "logs": Logs(entries=(LogEntry(stream="stdout", text="hello\n", at_seconds=0.1),)),
        "usage": Usage(wall_seconds=0.0123),
    }
    return Execution(**(fields | changes))


def test_a_repr_is_one_short_line():
    """The value, how much else there is, and the time; whatever the size of the parts."""
    assert repr(execution()) == "Execution(text='2', 1 result, stdout=6 characters, 0.01 s)"
    picture = Result(parts={"text/plain": b"<Figure>", "image/png": PICTURE})
    assert repr(execution(results=(picture, picture))) == "Execution(2 results, stdout=6 characters, 0.01 s)"
    assert repr(picture) == "Result(text='<Figure>', png: 50,004 bytes)"
    assert (
        len(repr(execution(results=(Result(parts={"text/plain": b"x" * 9_999}, is_main_result=True),)))) < 150
    )


def test_a_repr_tells_of_a_failure():
    """The name of the error, and that the state is lost."""
    error = ExecutionError(kind="exception", name="ValueError", value="no")
    shown = repr(execution(error=error, state_lost=True))
    assert shown == "Execution(text='2', 1 result, stdout=6 characters, error=ValueError, state lost, 0.01 s)"


def test_nothing_of_the_guest_is_markup():
    """Output, results, columns and errors are escaped; the guest's own HTML is not shown."""
    parts = {
        "text/plain": HOSTILE.encode(),
        "text/html": HOSTILE.encode(),
        "application/vnd.fumehood.data+json": json.dumps({HOSTILE: [HOSTILE, None]}).encode(),
    }
    shown = execution(
        results=(Result(parts=parts), Result(parts={"text/html": HOSTILE.encode()})),
        logs=Logs(entries=(LogEntry(stream="stderr", text=HOSTILE + "\x1b[2J", at_seconds=0.0),)),
        error=ExecutionError(kind="exception", name="ValueError", value=HOSTILE),
    )._repr_html_()
    assert "<script" not in shown
    assert "\x1b" not in shown
    assert shown.count("&lt;script&gt;") == 4
    assert "<table>" in shown


def test_pictures_and_tables_are_shown():
    """A picture as itself, a table with its first rows and what it leaves out."""
    assert (
        Result(parts={"image/png": b"\x89PNG"})._repr_html_() == '<img src="data:image/png;base64,iVBORw==">'
    )
    columns = {"a": list(range(1_000))}
    shown = Result(parts={"application/vnd.fumehood.data+json": json.dumps(columns).encode()})._repr_html_()
    assert shown.count("<tr>") == 61
    assert "1,000 rows, 1 columns" in shown
    bundle = execution()._repr_mimebundle_()
    assert bundle["text/plain"] == "hello\n2"
    assert "<pre>2</pre>" in bundle["text/html"]


def test_json_is_read_back():
    """The text holds all of it, as the server's API writes it."""
    given = execution(results=(Result(parts={"image/png": PICTURE}, is_main_result=True),))
    data = json.loads(given.to_json())
    assert data["logs"]["stdout"] == ["hello\n"]
    assert data["text"] is None
    assert read_value(Execution, data) == given
    assert "\n" in given.to_json(indent=2)
