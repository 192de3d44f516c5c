"""The models of requests for code that calls tools, and the identifiers of the tools in code.

Used in the server process. The identifiers are made as the clients make them, or a call would not find its tool.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, ValidationInfo

from fumehood.dialects.librechat.bodies import Files, Timeout
from fumehood.server.json_bodies import (
    Allowed,
    AnyText,
    DialectBody,
    Text,
    read_fields,
    read_object,
    refused,
    required,
)

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


def _language(name: object) -> str:
    if name not in ("python", "py", "bash"):
        raise refused("lang", name, "python or bash")

    return "bash" if name == "bash" else "python"


def _tools(given: Any, info: ValidationInfo) -> dict[str, str]:
    tools = given or []

    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise refused("tools", type(tools).__name__, f"a list of at most {_MAX_TOOLS} tools")

    identifier_of = bash_identifier if info.data.get("language") == "bash" else python_identifier
    named: dict[str, str] = {}

    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None

        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise refused("tools.name", name, f"text of 1 to {_MAX_NAME} characters")

        identifier = identifier_of(name)

        if not identifier or named.get(identifier, name) != name:
            raise refused("tools.name", name, "names that stay different, and not empty, as identifiers")

        named[identifier] = name

    return named


def _results(given: Any) -> dict[str, dict[str, Any]]:
    results = given or []

    if not isinstance(results, list) or len(results) > _MAX_RESULTS:
        raise refused("tool_results", type(results).__name__, f"a list of at most {_MAX_RESULTS} results")

    return dict(map(_result, results))


def _result(result: object) -> tuple[str, dict[str, Any]]:
    if not isinstance(result, dict) or not isinstance(result.get("call_id"), str):
        raise refused("tool_results", result, "objects with call_id")

    message = result.get("error_message")
    return result["call_id"], {
        "result": result.get("result"),
        "is_error": result.get("is_error") is True,
        "error_message": message if isinstance(message, str) else "",
    }


class ToolRunCall(DialectBody):
    """The first call of `/exec/programmatic`: `tools` maps names in code to names of tools."""

    language: Annotated[AnyText, BeforeValidator(_language)] = Field(
        default="python", validation_alias=AliasChoices("lang", "language")
    )
    session_id: Annotated[
        AnyText | None, BeforeValidator(lambda value: value or None), Allowed("an id that this server gave")
    ] = None
    code: Text = required()
    tools: Annotated[dict[AnyText, AnyText], BeforeValidator(_tools)] = Field(default_factory=dict)
    files: Files = Field(default_factory=list)
    seconds: Timeout = Field(default=None, alias="timeout")

    @property
    def is_bash(self) -> bool:
        """True when the code is Bash."""
        return self.language == "bash"


class Continuation(DialectBody):
    """A later call: results, by the id of the call."""

    token: Text = Field(alias="continuation_token")
    results: Annotated[dict[AnyText, Any], BeforeValidator(_results)] = Field(
        default_factory=dict, alias="tool_results"
    )


def read_programmatic(body: bytes) -> ToolRunCall | Continuation:
    """Returns a call of `/exec/programmatic`.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    values = read_object(body)

    if values.get("continuation_token") is None:
        return read_fields(ToolRunCall, values)

    return read_fields(Continuation, values)
