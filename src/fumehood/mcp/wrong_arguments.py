"""Explains wrong arguments of a tool to a model, in plain words.

Runs in the process of the MCP server; pure. The SDK's own text names classes of Python and pages for programmers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fumehood.llm.readable_text import shorten
from fumehood.text import visible_line

_MAX_SAID = 5
_VALUE_CHARS = 80
# By pydantic's name of the error; numbers come from its context.
_WORDS = {
    "missing": "is missing",
    "string_type": "must be a text",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length:,} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length:,} entries",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must begin with a letter or a digit and be one line",
}


def explain_arguments(tool: str, error: ValidationError, takes: Mapping[str, bool]) -> str:
    """Return which arguments were wrong, with their values, and the arguments of the tool.

    Args:
        tool: Its name.
        error: The errors.
        takes: Its arguments, and whether each is required.
    """
    found = error.errors(include_url=False)
    said = [_mistake(one) for one in found[:_MAX_SAID]]
    more = f"; and {len(found) - _MAX_SAID} more" if len(found) > _MAX_SAID else ""
    names = ", ".join(f"{name} (required)" if required else name for name, required in takes.items())
    return f"Nothing was done: {'; '.join(dict.fromkeys(said))}{more}.\nNext: call {tool} with {names}"


def _mistake(one: Mapping[str, Any]) -> str:
    name = ".".join(visible_line(str(part), max_characters=50) for part in one["loc"])
    kind = one["type"]
    words = _WORDS.get(kind)

    if words is None:
        message = str(one["msg"])
        return f"the argument `{name}` is refused: {message[:1].lower()}{message[1:]}"

    text = f"the argument `{name}` {words.format_map(one.get('ctx', {}))}"

    if kind == "missing":
        return text

    return f"{text}, and is {shorten(visible_line(repr(one['input']), max_characters=_VALUE_CHARS), _VALUE_CHARS)}"
