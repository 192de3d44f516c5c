"""The OpenAPI description of the native API: what FastAPI derives from the routes, and the models it does not see.

Problems and the lines of streams belong to no route's `response_model`; they are added to the components here, so that
routes may refer to them.
"""

from __future__ import annotations

from typing import Any, Union

from fastapi import FastAPI
from pydantic import BaseModel, RootModel
from pydantic.json_schema import models_json_schema

from fumehood.server.responses import EVENTS, NDJSON
from fumehood.server.schemas.commands import COMMAND_LINES
from fumehood.server.schemas.executions import EXECUTION_LINES
from fumehood.server.schemas.files import WATCH_LINES
from fumehood.server.schemas.problem import Problem
from fumehood.server.schemas.records import REPLAY_LINES
from fumehood.server.schemas.sandboxes import SECURITY_LINES
from fumehood.server.schemas.templates import BUILD_LINES
from fumehood.server.schemas.watching import EVENT_LINES

_REF = "#/components/schemas/{model}"
_STREAMS = {
    "ExecutionLine": EXECUTION_LINES,
    "CommandLine": COMMAND_LINES,
    "SecurityLine": SECURITY_LINES,
    "WatchLine": WATCH_LINES,
    "BuildLine": BUILD_LINES,
    "EventLine": EVENT_LINES,
    "ReplayLine": REPLAY_LINES,
}


def stream_of(line: str) -> dict[str, Any]:
    """Returns the contents of an answer that is a stream of such lines; `line` is a name of `_STREAMS`."""
    schema = {"$ref": _REF.format(model=line)}
    return {NDJSON: {"schema": schema}, EVENTS: {"schema": schema}}


def complete_description(app: FastAPI) -> None:
    """Adds the models to which its routes refer to the description of the app."""
    derive = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = derive()
            given = schema.setdefault("components", {}).setdefault("schemas", {})
            schema["components"]["schemas"] = {**_added(), **given}

        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _added() -> dict[str, Any]:
    models: list[type[BaseModel]] = [Problem, *(_line_model(name, lines) for name, lines in _STREAMS.items())]
    _, schema = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    definitions: dict[str, Any] = schema["$defs"]
    return definitions


def _line_model(name: str, lines: tuple[type[BaseModel], ...]) -> type[BaseModel]:
    model: type[BaseModel] = RootModel[Union[lines]]  # type: ignore[valid-type]  # noqa: UP007
    return type(
        name, (model,), {"__doc__": "One line of a stream; `type` says which. Skip those you do not know."}
    )
