"""Login with a password, which is the token, for clients that were made for a Jupyter server with one.

There is no login page: browsers reach notebooks through a Jupyter server of their own. Both cookies are closed to
scripts and to other sites.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fumehood.dialects.jupyter.answers import answering, read_body
from fumehood.dialects.jupyter.callers import (
    SESSION_COOKIE,
    SESSION_SECONDS,
    XSRF_COOKIE,
    Callers,
    new_secret,
    same_secret,
)
from fumehood.errors import ForbiddenError, InvalidArgumentError

_MAX_FORM_BYTES = 8192
_MAX_FIELDS = 8
_FORM_SECONDS = 10.0
_TEXT = (
    "This is fumehood, which speaks the API of a Jupyter server.\n"
    "Clients send the token as `Authorization: token TOKEN`, or post it here as `password` with `_xsrf`.\n"
    "For notebooks in a browser: jupyter lab --gateway-url=ADDRESS --GatewayClient.auth_token=TOKEN\n"
)


class LoginRoutes:
    """Answers `/login`.

    Args:
        callers: Holds the sessions.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/login", answering(self._begin), methods=["GET"]),
            Route("/login", answering(self._log_in), methods=["POST"]),
        ]

    async def _begin(self, request: Request) -> Response:
        response = PlainTextResponse(_TEXT, headers={"Cache-Control": "no-store"})
        _set_cookie(request, response, XSRF_COOKIE, new_secret())
        return response

    async def _log_in(self, request: Request) -> Response:
        xsrf = request.cookies.get(XSRF_COOKIE, "")

        if not xsrf:
            # The body is not read: without the cookie no form is valid.
            raise _without_xsrf()

        # The caller is not authenticated yet, and may not hold a request open.
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                form = _read_form(await read_body(request, _MAX_FORM_BYTES))
        except TimeoutError:
            return Response(status_code=408, headers={"Connection": "close"})

        if not same_secret(form.get("_xsrf", [""])[0], xsrf):
            raise _without_xsrf()

        cookie = await self._callers.log_in(form.get("password", [""])[0], xsrf)
        response = Response(status_code=302, headers={"Location": "/api", "Cache-Control": "no-store"})
        _set_cookie(request, response, SESSION_COOKIE, cookie)
        return response


def _without_xsrf() -> ForbiddenError:
    return ForbiddenError(reason="its `_xsrf` is not that of the cookie; GET /login gives both")


def _read_form(body: bytes) -> Mapping[str, Sequence[str]]:
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidArgumentError(
            field="form", value=f"{len(body)} bytes", allowed=f"at most {_MAX_FIELDS} fields"
        ) from None


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name,
        value,
        max_age=SESSION_SECONDS,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
