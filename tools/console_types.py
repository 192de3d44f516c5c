"""Writes `web/src/api/schema.ts`, the types of the API that the console reads; `make console-types` runs it.

They come from the OpenAPI description, for the models named in `ROOTS` and all that these refer to. A test compares the
file with what this would write, and the compiler of the page its use of each field with the type: so a field that the
API renames fails `make check`, and not a page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from fumehood.server.openapi import complete_description
from fumehood.server.routes import ROUTERS

TARGET = Path(__file__).parents[1] / "web/src/api/schema.ts"
# Models whose types the page uses, by their names in the description.
ROOTS = (
    "AuditLog",
    "Capacity",
    "Cell",
    "CellPage",
    "CheckpointInfo",
    "CommandList",
    "CommandPage",
    "Comparison",
    "EgressLog",
    "EndedSandbox",
    "Family",
    "FileList",
    "KeyList",
    "KeyWithToken",
    "MachinePage",
    "MachineRows",
    "Me",
    "NewShareAnswer",
    "OpenedShare",
    "PortList",
    "QueueAnswer",
    "RecordList",
    "ReplayLine",
    "SandboxInfo",
    "SandboxUse",
    "SecurityEventCounts",
    "SettingList",
    "ShareAnswer",
    "SharedAudit",
    "SharedNetworkLog",
    "TemplateList",
    "UsageList",
    "VariablePage",
)
_HEAD = """/** The types of the API: written by `make console-types` from its OpenAPI description; do not edit. */

"""
_REF = "#/components/schemas/"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def text() -> str:
    """The whole file."""
    app = FastAPI(title="fumehood", version="1", separate_input_output_schemas=False)

    for router in ROUTERS:
        app.include_router(router)

    complete_description(app)
    schemas = app.openapi()["components"]["schemas"]
    wanted, found = list(ROOTS), dict[str, str]()

    while wanted:
        name = wanted.pop()

        if name not in found:
            found[name] = _declared(name, schemas[name])
            wanted += _named_in(schemas[name])

    return _HEAD + "\n".join(found[name] for name in sorted(found))


def _named_in(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(_REF)

        for value in schema.values():
            yield from _named_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _named_in(value)


def _declared(name: str, schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_type(schema)};\n"

    required = set(schema.get("required", ()))
    fields = [
        f"  {field}{'' if field in required else '?'}: {_type(each)};\n"
        for field, each in schema["properties"].items()
    ]
    return f"export type {name} = {{\n{''.join(fields)}}};\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)

    if "const" in schema:
        return json.dumps(schema["const"])

    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))

    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(map(_type, schema[union])))

    match schema.get("type"):
        case "array":
            return f"({_type(schema.get('items', {}))})[]"
        case "object" if "properties" in schema:
            fields = (f"{name}: {_type(each)}" for name, each in schema["properties"].items())
            return f"{{ {'; '.join(fields)} }}"
        case "object":
            values = schema.get("additionalProperties")
            inner = _type(values) if isinstance(values, dict) and values else "unknown"
            return f"Record<string, {inner}>"
        case str(plain) if plain in _PLAIN:
            return _PLAIN[plain]
        case _:
            return "unknown"


if __name__ == "__main__":
    if "--write" in sys.argv:
        TARGET.write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
