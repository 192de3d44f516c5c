"""The text of a refused tool call for the model: the error or the wrong argument, with the value, and the next step.

Errors of the tree name the verbs of Python in their hints; a model has tools, so the way out is described in their
terms here. The SDK's text about arguments names classes of Python, so it is rewritten. An error outside of the tree
stays in the server's log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, ParamSpec, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from pydantic import ValidationError

from fumehood import FumehoodError, QuotaError
from fumehood.llm.readable_text import shorten
from fumehood.mcp.caller import Caller, caller_of
from fumehood.text import visible_line

_MAX_SAID = 5
_VALUE_CHARS = 80
_QUOTED = re.compile(r"'([^']{1,80})'")
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

    given = shorten(visible_line(repr(one["input"]), max_characters=_VALUE_CHARS), _VALUE_CHARS)
    return f"{text}, and is {given}{_meant(one) if kind == 'literal_error' else ''}"


def _meant(one: Mapping[str, Any]) -> str:
    """Return a question with the allowed word that is like the given one; empty if none is."""
    words = _QUOTED.findall(str(one.get("ctx", {}).get("expected", "")))
    near = get_close_matches(str(one["input"])[:_VALUE_CHARS].lower(), words, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_P = ParamSpec("_P")
_T = TypeVar("_T")

_AGAIN = (
    "its variables and files are gone: make a new one with create_sandbox, or run_code without sandbox_id, and do "
    "again what is still needed"
)
_ROOM = (
    "end sandboxes that are no longer needed with kill_sandbox (list_sandboxes shows them), then try again"
)
# Ways out in terms of the tools, by stable code of the error.
_WAYS_OUT = {
    "sandbox_not_found": "list_sandboxes shows the ids there are; run_code without sandbox_id makes a new sandbox",
    "sandbox_closed": _AGAIN,
    "language_unavailable": "write it in another language of run_code; python is always there",
    "protocol_violation": _AGAIN,
    "sandbox_paused": "it runs again when the program that paused it resumes it; meanwhile use another sandbox",
    "capacity": _ROOM,
    "path_not_found": "list_files shows what is there; relative paths start at /home/user",
    "path_is_directory": "name a file in it; list_files shows them",
    "path_not_directory": "name the directory it lies in",
    "path_permission": "write below /home/user, /mnt/data or /tmp; the rest of the system is read-only",
    "disk_full": "remove files that are no longer needed, with run_command",
    "template": "leave template out to get the default one",
    "command_start": "check that cwd is a directory of the sandbox; list_files shows what is there",
    "checkpoint_not_found": "give the id or the name that checkpoint returned; at most 16 are kept",
    "network_forbidden": "leave network out, or ask the user to allow more: max_network of the server or of its key",
}
_NOT_THERE = {"sandbox_not_found", "sandbox_closed", "path_not_found", "path_is_directory"}


def explain(error: FumehoodError) -> str:
    """Return the text of an error for a model: one line for the error, one for the way out."""
    way_out = _WAYS_OUT.get(error.code, error.hint)

    if isinstance(error, QuotaError) and error.quota == "sandboxes":
        way_out = _ROOM

    unknown = "\nIt may or may not have happened." if error.outcome_unknown else ""
    return f"{error.message}{unknown}" + (f"\nNext: {way_out}" if way_out else "")


def refusing(tool: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    """Return a tool whose errors of the tree reach the model."""

    @functools.wraps(tool)
    async def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await tool(*args, **kwargs)
        except FumehoodError as error:
            text = explain(error)
            found = kwargs.get("context", args[0] if args else None)
            raise ToolError(
                caller_of(found).with_names(text) if isinstance(found, Context) else text
            ) from error

    return wrapped


def refuse_resource(error: FumehoodError, caller: Caller) -> NoReturn:
    """Raise the SDK's error for a resource that cannot be read."""
    kind = ResourceNotFoundError if error.code in _NOT_THERE else ResourceError
    raise kind(caller.with_names(explain(error))) from error
