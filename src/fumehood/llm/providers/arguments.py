"""The code in a tool call's arguments: as it grows, and when it is complete.

Runs in the user's process; pure functions and a value that grows. Arguments are JSON that a model has written: they may
be anything, so an unreadable one becomes a problem that the model reads, never an exception. `jiter`, which both SDKs
bring, reads incomplete JSON.
"""

from __future__ import annotations

from fumehood.llm.formats.calls import CODE, read_arguments
from fumehood.llm.providers.base import CodeCall
from fumehood.text import visible_line

# Parsing incomplete JSON again for each few characters is quadratic: from here on it is parsed in larger steps.
_OFTEN_CHARS = 8_192
_STEP_CHARS = 1_024


class GrowingArguments:
    """The arguments of one call, as they arrive.

    Args:
        call_id: Id of the call.
        tool: The tool of the call.
    """

    def __init__(self, call_id: str, tool: str) -> None:
        self.call_id = call_id
        self.tool = tool
        self._pieces: list[str] = []
        self._size = 0
        self._read_size = 0
        self._shown = ""

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> str:
        """Take a piece and return the new part of the code, as far as it can be read yet."""
        self._pieces.append(piece)
        self._size += len(piece)

        if self._size > _OFTEN_CHARS and self._size - self._read_size < _STEP_CHARS:
            return ""

        self._read_size = self._size
        return self._news(_code_of_unfinished(self.text))

    def rest(self, code: str) -> str:
        """Return the new part of the complete code."""
        return self._news(code)

    def call(self, known_tool: str) -> CodeCall:
        """Return the complete call, with the fault in it."""
        return read_call(self.call_id, self.tool, self.text, known_tool)

    def _news(self, code: str) -> str:
        if not code.startswith(self._shown):
            return ""

        new = code[len(self._shown) :]
        self._shown = code
        return new


def read_call(call_id: str, tool: str, arguments: str, known_tool: str) -> CodeCall:
    """Return the call that a model has written; `problem` is the fault in it."""
    if tool != known_tool:
        return _broken(call_id, f"there is no tool {visible_line(tool)!r}; the only one is {known_tool!r}")

    given, problem = read_arguments(arguments)

    if problem:
        return _broken(call_id, problem)

    code = given.get(CODE)

    if not isinstance(code, str):
        return _broken(call_id, f"the arguments have no text {CODE!r}")

    return CodeCall(id=call_id, code=_whole_characters(code))


def _broken(call_id: str, problem: str) -> CodeCall:
    return CodeCall(
        id=call_id,
        problem=f'Nothing was run: {problem}. Call the tool again with an object such as {{"code": "print(1)"}}.',
    )


def _code_of_unfinished(arguments: str) -> str:
    from jiter import from_json

    try:
        value = from_json(arguments.encode("utf-8", "replace"), partial_mode="trailing-strings")
    except (ValueError, RecursionError):
        return ""

    code = value.get(CODE) if isinstance(value, dict) else None
    return code if isinstance(code, str) else ""


def _whole_characters(text: str) -> str:
    """Replace half surrogate pairs, which JSON may hold and no encoding can."""
    return text.encode("utf-8", "replace").decode()
