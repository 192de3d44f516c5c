"""The schemas of tools as models read them: nothing but what is needed to make a call.

Runs in the process of the MCP server; pure functions over JSON schemas. A host sends the schemas of all tools with each
request to its model. Whatever is left out here, arguments are still checked: by the types of the tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A model does not count characters, and patterns are checked with an error in words.
_UNTOLD = ("title", "minLength", "maxLength", "minItems", "maxItems", "pattern")
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

    short = {key: value for key, value in schema.items() if key not in (*_UNTOLD, "$defs", "anyOf")}

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
