"""Routes of named templates: list them, build one with its steps as a stream, and remove one.

They belong to the user that the server runs as, and are in the store of `fumehood template`. Only the owner
may change them; a build also needs the setting `template_builds`, as installing runs code of
packages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from fumehood.api.templates import list_templates, remove_template
from fumehood.errors import ForbiddenError
from fumehood.log import events
from fumehood.server.auth import AnyCaller, ServicesOf
from fumehood.server.openapi import stream_of
from fumehood.server.principal import Principal
from fumehood.server.responses import stream_response
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import items
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.templates import BuildTemplate, RemovedTemplate, TemplateList
from fumehood.server.template_builds import build_lines

router = guarded_router("templates", "/v1/templates")
_PROBLEMS = problems(401, 403, 413, 422)
_BUILD: dict[int | str, dict[str, Any]] = {
    200: {"description": "Its steps, and the template.", "content": stream_of("BuildLine")}
}


@router.get("", summary="List the templates", response_model=TemplateList, responses=_PROBLEMS)
async def list_all(_principal: AnyCaller) -> Response:
    """Lists the named templates of this server, sorted by name; `default` always exists in addition."""
    return items(await asyncio.to_thread(list_templates))


@router.post("", summary="Build a template", response_class=Response, responses={**_BUILD, **_PROBLEMS})
async def build(
    wanted: BuildTemplate, request: Request, principal: AnyCaller, services: ServicesOf
) -> Response:
    """Builds a template, unless none of its inputs has changed; for the owner of the server.

    The answer is a stream: a line for each step, and the template as the last line. Sandboxes that are made afterwards
    start from it; living ones are not affected. If the client disconnects, the build ends, and an older template of
    this name is kept.
    """
    _check_owner(principal)

    if not services.settings.template_builds:
        raise ForbiddenError(
            reason="this server builds no templates over HTTP",
            hint="let its operator start it with --template-builds true (FUMEHOOD_TEMPLATE_BUILDS), or build the "
            "template on its machine: `fumehood template build`",
        )

    return await stream_response(request, _lines(wanted.model_dump()))


@router.delete("/{name}", summary="Remove a template", responses=_PROBLEMS)
async def remove(
    name: Annotated[str, Path(max_length=255, description="The template's name.")], principal: AnyCaller
) -> RemovedTemplate:
    """Removes a template, for the owner of the server; living sandboxes made from it continue."""
    _check_owner(principal)
    is_deleted = await asyncio.to_thread(remove_template, name)
    events.TEMPLATE_REMOVED.log(template=name, is_deleted=is_deleted)
    return RemovedTemplate(is_deleted=is_deleted)


async def _lines(arguments: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    started = time.monotonic()

    async with aclosing(build_lines(arguments)) as lines:
        async for line in lines:
            if line["type"] == "finished":
                events.TEMPLATE_BUILT.log(
                    template=arguments["name"],
                    size_bytes=line["template"]["size_bytes"],
                    duration_seconds=time.monotonic() - started,
                )

            yield line


def _check_owner(principal: Principal) -> None:
    if not principal.is_owner:
        raise ForbiddenError(reason="templates are built and removed with the owner's token")
