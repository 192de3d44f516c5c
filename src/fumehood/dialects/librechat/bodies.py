"""The models of the requests of the code API: executions of both generations, and code that calls tools.

A field of another type is refused by name. The identifiers of tools in code are made as the clients make them, or
a call would not find its tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, InstanceOf, ValidationInfo

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
from fumehood.values.languages import find_language

MAX_FILES = 500
_MAX_NAME = 1024
_MAX_SECONDS = 300.0
# A larger number is infinity, or too large for a fraction.
_MOST = 1e15
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
# The languages of the protocol; the other names are ours.
SPOKEN = ("py", "js", "ts", "c", "cpp", "java", "php", "rs", "go", "d", "f90", "r", "bash")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """An input file of a run: its id, its storage session if it was given, and its name in the run."""

    id: str
    session_id: str | None
    name: str | None
    echoed: Mapping[str, Any]


def is_safe_name(name: str) -> bool:
    """Returns whether a file's name stays below its folder, and can be stored in every store."""
    parts = name.split("/")
    return (
        0 < len(name) <= _MAX_NAME
        and name.isprintable()
        and all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) < 256 for part in parts)
    )


def _is_repeatable(value: object) -> bool:
    """Returns whether a value can be encoded in a response: a lone surrogate cannot."""
    return value.isprintable() if isinstance(value, str) else isinstance(value, int)


def _language(name: object) -> str:
    spoken = name.lower() if isinstance(name, str) else None
    known = find_language("javascript" if spoken == "node" else spoken)

    if known is None or known.source is None:
        raise refused("lang", name, ", ".join(SPOKEN))

    return known.name


def _files(given: Any) -> list[FileRef]:
    files = given or []

    if not isinstance(files, list) or len(files) > MAX_FILES:
        raise refused("files", type(files).__name__, f"a list of at most {MAX_FILES} files")

    return [_file(item) for item in files]


def _id(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)

    if value is None or value == "":
        return None

    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise refused(name, value, "an id that this server gave")

    return value


def _file(item: object) -> FileRef:
    if not isinstance(item, dict):
        raise refused("files", item, "objects with id and name")

    name = item.get("name")

    if name is not None and (not isinstance(name, str) or not is_safe_name(name.removeprefix("/mnt/data/"))):
        raise refused("files.name", name, "a relative name without `..`")

    file_id = _id(item, "id") or _id(item, "fileId")

    if file_id is None:
        raise refused("files.id", None, "an id that this server gave")

    echoed = {key: item[key] for key in ("resource_id", "kind", "version") if _is_repeatable(item.get(key))}
    return FileRef(
        id=file_id,
        session_id=_id(item, "storage_session_id") or _id(item, "session_id"),
        name=None if name is None else name.removeprefix("/mnt/data/"),
        echoed=echoed,
    )


_AN_ID = Allowed("an id that this server gave")
NothingIsNone = BeforeValidator(lambda value: None if value == "" else value)
Files = Annotated[list[InstanceOf[FileRef]], BeforeValidator(_files)]
# Clients give it in milliseconds.
Timeout = Annotated[
    Annotated[float, Field(gt=0, le=_MOST, allow_inf_nan=False)] | None,
    Allowed("milliseconds, more than 0"),
    AfterValidator(lambda value: None if value is None else min(value / 1000, _MAX_SECONDS)),
]


class ExecCall(DialectBody):
    """A call of `/exec`."""

    code: Text = required()
    language: Annotated[AnyText, BeforeValidator(_language)] = Field(
        default=None, validation_alias=AliasChoices("lang", "language"), validate_default=True
    )
    args: Annotated[
        Annotated[list[AnyText], Field(max_length=MAX_FILES)],
        BeforeValidator(lambda value: [value] if isinstance(value, str) and value else value or []),
        Allowed("a list of text"),
    ] = Field(default_factory=list)
    files: Files = Field(default_factory=list)
    session_id: Annotated[
        Annotated[str, Field(pattern=rf"^{_ID.pattern}$")] | None, NothingIsNone, _AN_ID
    ] = None
    seconds: Timeout = Field(default=None, alias="timeout")


_MAX_TOOLS = 500
_MAX_RESULTS = 1000
_MAX_TOOL_NAME = 256
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


def _tool_language(name: object) -> str:
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

        if not isinstance(name, str) or not 0 < len(name) <= _MAX_TOOL_NAME:
            raise refused("tools.name", name, f"text of 1 to {_MAX_TOOL_NAME} characters")

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

    language: Annotated[AnyText, BeforeValidator(_tool_language)] = Field(
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
    """A later call, which continues a run: the results of tools, by the id of each call."""

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
