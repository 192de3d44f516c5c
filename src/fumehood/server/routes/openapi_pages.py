"""The API for a browser at /openapi/: Swagger UI over the server's own description.

Needs no token, since it shows nothing but `/openapi.json`; a reader enters one to try a call. Its files are those of
the distribution `fastapi-swagger`, which this module reads and never imports; its page may load from this server alone.
"""

from __future__ import annotations

import importlib.util
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

router = APIRouter(include_in_schema=False)
_PACKAGE = "fastapi_swagger"
_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
# Swagger UI sets styles on its elements, and has its icons in its stylesheet. No script stands in the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>fumehood: the API</title>
<link rel="stylesheet" href="swagger-ui.css">
<div id="api"></div>
<script src="swagger-ui-bundle.js"></script>
<script src="start.js"></script>
</html>
"""
_START = 'SwaggerUIBundle({url: "../openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null});\n'
_NOT_INSTALLED = "Swagger UI is not installed at this server: pip install 'fumehood[server]'"


@router.api_route("/openapi", methods=["GET", "HEAD"])
async def bare_openapi() -> Response:
    """Redirects to the address with a slash, to which the links of the page are relative."""
    return RedirectResponse("openapi/", HTTPStatus.PERMANENT_REDIRECT)


@router.api_route("/openapi/{name:path}", methods=["GET", "HEAD"])
async def openapi_page(name: str) -> Response:
    """Returns the page, or one of the files that it loads."""
    folder = _assets_folder()

    if folder is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_INSTALLED)

    response: Response

    if not name:
        response = HTMLResponse(_PAGE)
    elif name == "start.js":
        response = Response(_START, media_type="text/javascript")
    elif name in _FILES:
        response = FileResponse(folder / name, media_type=_FILES[name])
    else:
        raise HTTPException(HTTPStatus.NOT_FOUND)

    response.headers["Content-Security-Policy"] = _POLICY
    return response


def _assets_folder() -> Path | None:
    package = importlib.util.find_spec(_PACKAGE)

    if package is None or package.origin is None:
        return None

    return Path(package.origin).parent / "resources"
