"""Tools in the words of the port: what code inside may call, and the answer to one call.

Used on both sides of the port; both are checked when made and can cross a process border. The functions
themselves stay with the caller: what is here is what a sandbox must know of them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.charts import JsonValue
from fumehood.errors import InvalidArgumentError
from fumehood.json_values import NotJsonError, json_of
from fumehood.limits import MIB, check_seconds

MAX_TOOLS = 64
MAX_TOOL_CALLS = 10_000
DEFAULT_TOOL_CALLS = 100
DEFAULT_TOOL_SECONDS = 30.0
MAX_TOOL_SECONDS = 86_400
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_PARAMETERS = 64
MAX_ERROR_CHARACTERS = 16_000
MAX_RESULT_BYTES = 4 * MIB
_MAX_SPEC_BYTES = 64 * 1024
_MAX_SPECS_BYTES = 256 * 1024
_MAX_PARAMETER_CHARACTERS = 128
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Stands beside the tools.
_TAKEN = "ToolError"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A function of the caller's that code inside may call while it runs.

    Attributes:
        name: What it is called inside.
        description: What `help()` says of it.
        parameters: Its arguments, which are given by name: a JSON Schema whose type is object.
        awaited: Whether code inside awaits it; otherwise a call blocks.
        timeout_seconds: How long one call may take.
        max_calls: How often one execution may call it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    awaited: bool = False
    timeout_seconds: float = DEFAULT_TOOL_SECONDS
    max_calls: int = DEFAULT_TOOL_CALLS

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None

        if not is_name or keyword.iskeyword(self.name) or self.name == _TAKEN:
            raise InvalidArgumentError(
                field="tool name",
                value=self.name,
                allowed="a Python name of at most 64 letters, digits and underscores, no keyword and not ToolError",
            )

        where = f"tools[{self.name!r}]"

        if not _is_text(self.description, MAX_DESCRIPTION_CHARACTERS):
            raise InvalidArgumentError(
                field=f"{where}.description",
                value=self.description,
                allowed=f"text of at most {MAX_DESCRIPTION_CHARACTERS:,} characters",
            )

        if not isinstance(self.awaited, bool):
            raise InvalidArgumentError(field=f"{where}.awaited", value=self.awaited, allowed="True or False")

        check_seconds(f"{where}.timeout", self.timeout_seconds, optional=False, high=MAX_TOOL_SECONDS)
        is_count = isinstance(self.max_calls, int) and not isinstance(self.max_calls, bool)

        if not is_count or not 1 <= self.max_calls <= MAX_TOOL_CALLS:
            raise InvalidArgumentError(
                field=f"{where}.max_calls", value=self.max_calls, allowed=f"1 to {MAX_TOOL_CALLS:,}"
            )

        self._check_parameters(f"{where}.parameters")

    def _check_parameters(self, where: str) -> None:
        allowed = f"a JSON Schema of an object with at most {MAX_PARAMETERS} properties"

        if not isinstance(self.parameters, Mapping) or self.parameters.get("type", "object") != "object":
            raise InvalidArgumentError(field=where, value=self.parameters, allowed=allowed)

        try:
            json_of(dict(self.parameters), where, _MAX_SPEC_BYTES)
        except NotJsonError as error:
            raise InvalidArgumentError(field=where, value=str(error), allowed=allowed) from None

        properties = self.parameters.get("properties", {})
        required = self.parameters.get("required", [])

        if (
            not isinstance(properties, Mapping)
            or not isinstance(required, list | tuple)
            or not all(isinstance(name, str) for name in required)
            or len({*properties, *required}) > MAX_PARAMETERS
            or any(len(name) > _MAX_PARAMETER_CHARACTERS for name in (*properties, *map(str, required)))
        ):
            raise InvalidArgumentError(field=where, value=self.parameters, allowed=allowed)

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments that every call must have, in order."""
        required = self.parameters.get("required", [])
        return tuple(dict.fromkeys(map(str, required))) if isinstance(required, list | tuple) else ()

    @property
    def optional(self) -> tuple[str, ...]:
        """The arguments that a call may have, in order."""
        properties = self.parameters.get("properties", {})
        names = properties if isinstance(properties, Mapping) else {}
        return tuple(name for name in names if name not in self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """The answer to a `ToolCallEvent`.

    Attributes:
        execution_id: Who called.
        request_id: The call's name.
        value: What the tool gave: a JSON value.
        error: What the code gets as a ToolError instead of a value, or None.
    """

    execution_id: str
    request_id: str
    value: JsonValue = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.error is not None and not _is_text(self.error, MAX_ERROR_CHARACTERS):
            raise InvalidArgumentError(
                field="error",
                value=self.error,
                allowed=f"text of at most {MAX_ERROR_CHARACTERS:,} characters",
            )

        try:
            json_of(self.value, "value", MAX_RESULT_BYTES)
        except NotJsonError as error:
            raise InvalidArgumentError(field="value", value=str(error), allowed="a JSON value") from None


def _is_text(value: object, max_characters: int) -> bool:
    if not isinstance(value, str) or len(value) > max_characters:
        return False

    try:
        value.encode()
    except UnicodeEncodeError:
        return False

    return True


def check_tools(tools: object) -> None:
    """Raise InvalidArgumentError unless `tools` can be the tools of one execution."""
    if tools == ():
        return

    if not isinstance(tools, tuple) or not all(isinstance(tool, ToolSpec) for tool in tools):
        raise InvalidArgumentError(field="tools", value=tools, allowed="a tuple of ToolSpec")

    if len(tools) > MAX_TOOLS:
        raise InvalidArgumentError(field="tools", value=f"{len(tools)} tools", allowed=f"at most {MAX_TOOLS}")

    names = [tool.name for tool in tools]

    if len(set(names)) < len(names):
        raise InvalidArgumentError(field="tools", value=names, allowed="names that are all different")

    specs = [{"description": tool.description, "parameters": dict(tool.parameters)} for tool in tools]
    try:
        json_of(specs, "tools", _MAX_SPECS_BYTES)
    except NotJsonError as error:
        allowed = f"descriptions and schemas of at most {_MAX_SPECS_BYTES:,} bytes all together"
        raise InvalidArgumentError(field="tools", value=str(error), allowed=allowed) from None
