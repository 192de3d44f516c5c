"""The routes of the console. What they serve is imported and read when the first browser asks for it."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

_METHODS = ["GET"]


def routes() -> list[BaseRoute]:
    """Returns the routes: constants, the same for every caller."""
    return [
        Route("/console", _bare, methods=_METHODS, name="console", include_in_schema=False),
        Route("/console/frame", _frame, methods=_METHODS, include_in_schema=False),
        Route("/console/assets/{name:path}", _asset, methods=_METHODS, include_in_schema=False),
        Route("/console/{path:path}", _page, methods=_METHODS, include_in_schema=False),
        Route("/share/frame", _still_frame, methods=_METHODS, include_in_schema=False),
        Route("/share/{share_id}", _share, methods=_METHODS, include_in_schema=False),
    ]


async def _bare(request: Request) -> Response:
    return RedirectResponse("console/", HTTPStatus.PERMANENT_REDIRECT)


async def _frame(request: Request) -> Response:
    # Late, as below: a server whose console is not asked for pays nothing for it.
    from fumehood.console.frames import frame

    return frame(with_scripts="scripts" in request.query_params)


async def _still_frame(request: Request) -> Response:
    """Returns the only frame document that a share's page can load: it never runs a guest's scripts."""
    from fumehood.console.frames import frame

    return frame(with_scripts=False)


async def _share(request: Request) -> Response:
    from fumehood.console.pages import page

    return page("share.html")


async def _asset(request: Request) -> Response:
    from fumehood.console.pages import asset

    return await asset(request.path_params["name"], request.scope)


async def _page(request: Request) -> Response:
    from fumehood.console.pages import page

    # `sandboxes/ID`: other addresses below it are other views.
    first, _, rest = request.path_params["path"].partition("/")
    return page(of_sandbox=first == "sandboxes" and rest != "" and "/" not in rest)
