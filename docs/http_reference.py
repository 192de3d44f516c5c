"""Writes docs/http-reference.md from the OpenAPI description of the native API; `make reference` runs it.

Loads the routes, without serving them, and writes one page: each route with its parameters, its body and its answers,
then the shapes that they refer to. A test compares the page with what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from fumehood.server.openapi import complete_description
from fumehood.server.routes import ROUTERS

PAGE = Path(__file__).parent / "http-reference.md"
_HEAD = """# HTTP reference

Written by `make reference` from the OpenAPI description, which a running server gives at `/openapi.json`; do not edit. The
[guide](guides/http-api.md) shows each route with `curl`. Refusals are problem details: their statuses stand at each
route, their form is [Problem](#problem).

"""


def page() -> str:
    """The whole page."""
    app = FastAPI(title="fumehood", version="1", separate_input_output_schemas=False)

    for router in ROUTERS:
        app.include_router(router)

    complete_description(app)
    description = app.openapi()
    parts = [_HEAD, *_routes(description), "## Shapes\n\n", *_shapes(description)]
    return "".join(parts).rstrip() + "\n"


def _routes(description: dict[str, Any]) -> Iterator[str]:
    seen = ""

    for path, item in description["paths"].items():
        for method, route in item.items():
            tag = route.get("tags", ["other"])[0]

            if tag != seen:
                seen = tag
                yield f"## {tag.capitalize()}\n\n"

            yield f"### {method.upper()} {path}\n\n{route['summary']}. {_prose(route.get('description', ''))}\n\n"
            yield from _parameters(route)
            yield from _body(route)
            yield from _answers(route)


def _parameters(route: dict[str, Any]) -> Iterator[str]:
    rows = [
        f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_cell(one.get('description', ''))} |\n"
        for one in route.get("parameters", [])
    ]

    if rows:
        yield "| parameter | in | type | |\n|---|---|---|---|\n" + "".join(rows) + "\n"


def _body(route: dict[str, Any]) -> Iterator[str]:
    content = route.get("requestBody", {}).get("content", {})

    if content:
        shown = ", ".join(f"`{kind}`: {_type(media.get('schema', {}))}" for kind, media in content.items())
        yield f"Body: {shown}.\n\n"


def _answers(route: dict[str, Any]) -> Iterator[str]:
    answers = route["responses"]
    good = {status: answer for status, answer in answers.items() if status.startswith("2")}
    refused = ", ".join(status for status in answers if not status.startswith("2"))

    for status, answer in good.items():
        content = ", ".join(
            f"`{kind}`: {_type(media.get('schema', {}))}" for kind, media in answer.get("content", {}).items()
        )
        yield f"Answers {status}{f' with {content}' if content else ''}."

    yield f" Refusals: {refused}.\n\n" if refused else "\n\n"


def _shapes(description: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield f"### {name}\n\n{_prose(schema.get('description', ''))}\n\n"

        if choices := schema.get("anyOf", schema.get("oneOf")):
            yield f"One of: {', '.join(_type(choice) for choice in choices)}.\n\n"

        if fields := schema.get("properties"):
            required = set(schema.get("required", ()))
            yield "| field | type | |\n|---|---|---|\n"

            for field, shape in fields.items():
                mark = "" if field in required else _default(shape)
                yield f"| `{field}` | {_type(shape)}{mark} | {_cell(shape.get('description', ''))} |\n"

            yield "\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"

    if choices := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(_type(choice) for choice in choices)

    if "const" in schema:
        return f"`{schema['const']}`"

    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])

    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"

    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"

    return str(schema.get("type", "any")) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))

    if low is None and high is None:
        return ""

    return f" ({'' if low is None else f'from {low:,}'}{' ' if low is not None and high is not None else ''}{'' if high is None else f'to {high:,}'})"


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return f", default `{default}`" if default not in (None, "", [], {}) else ", optional"


def _prose(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
