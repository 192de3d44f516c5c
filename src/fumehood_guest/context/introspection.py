"""Questions about code, answered without running it: completions, object documentation, completeness.

Runs in a context, with the signal gate open: examining an object can run its code, which may never return and is then
interrupted by the host. Every answer is cut to what the wire allows; a question always gets one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Protocol, Tuple

from fumehood_guest.context.bundles import encode_bundle
from fumehood_guest.context.outlet import shorten
from fumehood_wire.messages import MAX_CHUNK_BYTES, MAX_INDENT_CHARS, MAX_MATCH_CHARS, MAX_MATCHES

if TYPE_CHECKING:
    from fumehood_guest.context.connected_shell import ConnectedShell

# Below what one payload may hold: a character has at most 12 bytes in JSON, and four in UTF-8.
_MAX_MATCHES_BYTES = 1_000_000
_MAX_TEXT_CHARACTERS = 200_000
_STATUSES = ("complete", "incomplete", "invalid")
# Messages of bash, in the C locale, for code that continues in the next line.
_UNFINISHED = (b"unexpected end of file", b"unexpected EOF", b"here-document", b"delimited by end-of-file")
_to_json = json.JSONEncoder(ensure_ascii=True).encode

Header = Dict[str, Any]
Reply = Tuple[Header, bytes]
Matches = Tuple[Iterable[str], int, int]


class Answerer(Protocol):
    """Answers questions about code in one language."""

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns completions at the cursor, and the range that they replace."""

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns the documentation of the object at the cursor, in several formats."""

    def check(self, code: str) -> Tuple[str, str]:
        """Returns whether the code is complete, incomplete or invalid, and the indentation of the next line."""


class PythonAnswerer:
    """Answers with IPython."""

    def __init__(self, shell: ConnectedShell) -> None:
        self._shell = shell

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns IPython's completions, without jedi."""
        from IPython.core.completer import provisionalcompleter, rectify_completions

        with self._shell.builtin_trap, provisionalcompleter(), _interrupts_passed_on():
            found = self._shell.Completer.completions(code, cursor)
            matches = list(rectify_completions(code, found))

        if not matches:
            return [], cursor, cursor

        return [match.text for match in matches], matches[0].start, matches[0].end

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns IPython's documentation of the object; empty if there is none."""
        from IPython.utils.tokenutil import token_at_cursor

        try:
            return dict(self._shell.object_inspect_mime(token_at_cursor(code, cursor), detail_level=detail))
        except KeyError:
            return {}

    def variables(self, name: str, *, marks: bool = False) -> Reply:
        """Returns the variables of the namespace, or the one called `name` in detail; runs none of their code."""
        from fumehood_guest.context.variables import look

        count, payload = look(self._shell.user_ns, self._shell.user_ns_hidden, name, marks=marks)
        return {"type": "variables_reply", "count": count}, payload

    def check(self, code: str) -> Tuple[str, str]:
        """Returns IPython's verdict and indentation."""
        status, indent = self._shell.check_complete(code)
        return str(status), str(indent)


@contextmanager
def _interrupts_passed_on() -> Iterator[None]:
    """Re-raises interrupts: IPython swallows what a matcher raises, so each matcher would take one interrupt."""

    def pass_on(_kind: Any, error: BaseException, _traceback: Any) -> None:
        if not isinstance(error, Exception):
            raise error

    hook, sys.excepthook = sys.excepthook, pass_on
    try:
        yield
    finally:
        sys.excepthook = hook


class BashAnswerer:
    """Answers with a separate bash, leaving the one that runs the cells alone."""

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns nothing: only the bash of the cells knows its functions and its directory."""
        return [], cursor, cursor

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns nothing."""
        return {}

    def check(self, code: str) -> Tuple[str, str]:
        """Returns complete, incomplete or invalid, as `bash -n` judges the code; the second value is always empty."""
        checked = subprocess.run(
            ("bash", "--norc", "--noprofile", "-n"),
            input=code.replace("\0", "").encode("utf-8", "surrogateescape"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            check=False,
        )
        backslashes = len(code) - len(code.rstrip("\\"))

        if backslashes % 2 or any(word in checked.stderr for word in _UNFINISHED):
            return "incomplete", ""

        return ("complete" if checked.returncode == 0 else "invalid"), ""


def answer(answerer: Answerer, question: Header, code: str) -> Reply:
    """Returns the reply to a question, without its id. Raises what the examined code raises."""
    if question["type"] == "complete_request":
        matches, start, end = answerer.complete(code, min(question["cursor_pos"], len(code)))
        return _completion(matches, start, end, len(code))

    if question["type"] == "inspect_request":
        cursor = min(question["cursor_pos"], len(code))
        return _inspection(answerer.inspect(code, cursor, question["detail_level"]))

    if question["type"] == "variables_request":
        # Variables of other languages are not known.
        if not isinstance(answerer, PythonAnswerer):
            return empty_answer(question)

        return answerer.variables(code, marks=question.get("marks", False))

    status, indent = answerer.check(code)
    status = status if status in _STATUSES else "unknown"
    return {"type": "is_complete_reply", "status": status, "indent": indent[:MAX_INDENT_CHARS]}, b""


def empty_answer(question: Header) -> Reply:
    """Returns the reply for a question without an answer."""
    if question["type"] == "complete_request":
        cursor = question["cursor_pos"]
        return _completion([], cursor, cursor, cursor)

    if question["type"] == "inspect_request":
        return _inspection({})

    if question["type"] == "variables_request":
        return {"type": "variables_reply", "count": 0}, b"[]"

    return {"type": "is_complete_reply", "status": "unknown", "indent": ""}, b""


def _completion(matches: Iterable[str], start: int, end: int, length: int) -> Reply:
    texts: List[str] = []
    room = _MAX_MATCHES_BYTES

    for match in matches:
        if type(match) is not str or len(match) > MAX_MATCH_CHARS:
            continue

        text = _to_json(match)
        room -= len(text) + 1

        if room < 0 or len(texts) == MAX_MATCHES:
            break

        texts.append(text)

    end = min(max(0, end), length)
    header = {"type": "complete_reply", "cursor_start": min(max(0, start), end), "cursor_end": end}
    return header, f"[{','.join(texts)}]".encode("ascii")


def _inspection(data: Dict[str, str]) -> Reply:
    texts = {
        mime: shorten(text, _MAX_TEXT_CHARACTERS)
        for mime, text in data.items()
        if type(mime) is str and mime.startswith("text/") and type(text) is str and text
    }
    bundle = encode_bundle(texts, {}, MAX_CHUNK_BYTES)
    return {"type": "inspect_reply", "parts": bundle.sizes}, bundle.payload
