"""The list of tools: each with its name, its annotations for hosts, and its schemas reduced to what a call needs.

A tool changes only a sandbox, and most of them reach nothing outside it, whatever the code in it tries. A host sends
the schemas of all tools with each request to its model. Whatever is left out of them, arguments are still checked: by
the types of the tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.types import CallToolResult, ToolAnnotations

from fumehood.mcp.execution import install_packages, run_code, run_command, to_notebook
from fumehood.mcp.files import list_files, read_file, write_file
from fumehood.mcp.sandboxes import create_sandbox, kill_sandbox, list_sandboxes
from fumehood.mcp.time_travel import checkpoint, fork_sandbox, rollback

# A model does not count characters, and patterns are checked with an error in words.
_OMITTED_KEYS = ("title", "minLength", "maxLength", "minItems", "maxItems", "pattern")
_PLAIN = {"type": "null"}

Schema = dict[str, Any]


def short_input(schema: Schema, *, needed: tuple[str, ...] = ()) -> Schema:
    """Return the schema of the arguments of a tool in its shortest form.

    Args:
        schema: The schema as pydantic makes it.
        needed: Further arguments that a call must have.
    """
    short = _short(schema, {}, has_null=False)
    required = [name for name in short["properties"] if name in (*short.get("required", ()), *needed)]
    short.pop("required", None)
    return {**short, **({"required": required} if required else {})}


def short_output(schema: Schema) -> Schema:
    """Return the schema of the data of an answer in its shortest form: definitions stand where they are used."""
    short = _short(schema, schema.get("$defs", {}), has_null=True)
    return {key: value for key, value in short.items() if key not in ("$defs", "description")}


def _short(schema: Schema, definitions: Mapping[str, Schema], *, has_null: bool) -> Schema:
    if "$ref" in schema:
        found = _short(definitions[schema["$ref"].rpartition("/")[2]], definitions, has_null=has_null)
        return {key: value for key, value in found.items() if key != "description"}

    short = {key: value for key, value in schema.items() if key not in (*_OMITTED_KEYS, "$defs", "anyOf")}

    if "default" in short and short["default"] is None:
        del short["default"]

    if "anyOf" in schema:
        short = {**short, **_choice(schema["anyOf"], definitions, has_null=has_null)}

    if "properties" in schema:
        short["properties"] = {
            name: _short(one, definitions, has_null=has_null) for name, one in schema["properties"].items()
        }

    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            short[key] = _short(schema[key], definitions, has_null=has_null)

    return short


def _choice(choices: list[Schema], definitions: Mapping[str, Schema], *, has_null: bool) -> Schema:
    """Return one type or null: as that type alone in arguments, which are then left out, and as both in answers."""
    others = [_short(one, definitions, has_null=has_null) for one in choices if one != _PLAIN]

    if len(others) > 1:
        return {"anyOf": [*others, *([_PLAIN] if has_null and _PLAIN in choices else [])]}

    (one,) = others
    return {**one, "type": [one["type"], "null"]} if has_null else one


ToolFunction = Callable[..., Awaitable[CallToolResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        function: Its function; its docstring and its arguments are what a model reads.
        title: Its name for people.
        is_read_only: It changes nothing.
        is_destructive: It can remove existing data.
        is_idempotent: A repetition changes nothing more.
        is_open_world: It can reach outside.
    """

    function: ToolFunction
    title: str
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False
    is_open_world: bool = False

    @property
    def name(self) -> str:
        """Its name for models."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """Its description for models."""
        return inspect.getdoc(self.function) or ""

    @property
    def annotations(self) -> ToolAnnotations:
        """Its annotations for hosts."""
        return ToolAnnotations(
            title=self.title,
            read_only_hint=self.is_read_only,
            destructive_hint=self.is_destructive,
            idempotent_hint=self.is_idempotent or self.is_read_only,
            open_world_hint=self.is_open_world,
        )


TOOLS = (
    Tool(function=run_code, title="Run code"),
    Tool(function=run_command, title="Run a command"),
    Tool(function=create_sandbox, title="Make a sandbox"),
    Tool(function=list_sandboxes, title="List sandboxes", is_read_only=True),
    Tool(function=kill_sandbox, title="End a sandbox", is_destructive=True, is_idempotent=True),
    Tool(function=read_file, title="Read a file", is_read_only=True),
    Tool(function=write_file, title="Write a file", is_destructive=True, is_idempotent=True),
    Tool(function=list_files, title="List files", is_read_only=True),
    Tool(function=checkpoint, title="Keep a checkpoint"),
    Tool(function=rollback, title="Go back to a checkpoint", is_destructive=True, is_idempotent=True),
    Tool(function=fork_sandbox, title="Fork a sandbox"),
    Tool(function=install_packages, title="Install packages", is_idempotent=True, is_open_world=True),
    Tool(function=to_notebook, title="Write a notebook", is_destructive=True, is_idempotent=True),
)
TOOL_NAMES = tuple(tool.name for tool in TOOLS)
