"""What clients send of code that calls tools, checked, and the names by which code knows the tools.

Pure functions, used in the server process. The names are made as the clients make them, or a call would not find its
tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from fumehood.dialects.librechat.bodies import FileRef, read_files, read_seconds, refused, text_of

_MAX_TOOLS = 500
_MAX_RESULTS = 1000
_MAX_NAME = 256
_BASH_WORDS = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "case", "esac", "for", "while", "until", "do", "done", "in"),
        *(
            "function",
            "select",
            "time",
            "coproc",
            "declare",
            "typeset",
            "local",
            "readonly",
            "export",
            "unset",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRunCall:
    """The first call of `/exec/programmatic`: `tools` maps names in code to names of tools."""

    code: str
    is_bash: bool
    tools: Mapping[str, str]
    files: tuple[FileRef, ...]
    session_id: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A later call: results, by the id of the call."""

    token: str
    results: Mapping[str, Mapping[str, Any]]


def read_programmatic(body: Mapping[str, Any]) -> ToolRunCall | Continuation:
    """Returns a call of `/exec/programmatic`.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    if body.get("continuation_token") is not None:
        return Continuation(token=text_of(body, "continuation_token"), results=_results(body))

    language = body.get("lang", body.get("language", "python"))

    if language not in ("python", "py", "bash"):
        raise refused("lang", language, "python or bash")

    is_bash = language == "bash"
    session_id = body.get("session_id") or None

    if session_id is not None and not isinstance(session_id, str):
        raise refused("session_id", session_id, "an id that this server gave")

    return ToolRunCall(
        code=text_of(body, "code"),
        is_bash=is_bash,
        tools=_tools(body, is_bash),
        files=read_files(body),
        session_id=session_id,
        seconds=read_seconds(body),
    )


def python_identifier(name: str) -> str:
    """Returns a tool's name as Python code calls it."""
    normal = _plain(re.sub(r"[-\s]", "_", name))
    return f"{normal}_tool" if iskeyword(normal) else normal


def bash_identifier(name: str) -> str:
    """Returns a tool's name as Bash code calls it."""
    normal = _plain(re.sub(r"[-\s.]", "_", name))
    return f"{normal}_tool" if normal in _BASH_WORDS else normal


def _plain(name: str) -> str:
    normal = re.sub(r"[^a-zA-Z0-9_]", "", name)
    return f"_{normal}" if normal[:1].isdigit() else normal


def _tools(body: Mapping[str, Any], is_bash: bool) -> Mapping[str, str]:
    tools = body.get("tools") or []

    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise refused("tools", type(tools).__name__, f"a list of at most {_MAX_TOOLS} tools")

    named: dict[str, str] = {}

    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None

        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise refused("tools.name", name, f"text of 1 to {_MAX_NAME} characters")

        identifier = bash_identifier(name) if is_bash else python_identifier(name)

        if not identifier or named.get(identifier, name) != name:
            raise refused("tools.name", name, "names that stay different, and not empty, as identifiers")

        named[identifier] = name

    return named


def _results(body: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    results = body.get("tool_results") or []

    if not isinstance(results, list) or len(results) > _MAX_RESULTS:
        raise refused("tool_results", type(results).__name__, f"a list of at most {_MAX_RESULTS} results")

    given: dict[str, Mapping[str, Any]] = {}

    for result in results:
        if not isinstance(result, dict) or not isinstance(result.get("call_id"), str):
            raise refused("tool_results", result, "objects with call_id")

        message = result.get("error_message")
        given[result["call_id"]] = {
            "result": result.get("result"),
            "is_error": result.get("is_error") is True,
            "error_message": message if isinstance(message, str) else "",
        }

    return given
