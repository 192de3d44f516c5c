"""The documentation at /docs/: the static site of the distribution `fumehood-docs`, or the one built in a checkout.

Needs no token, since the site is the same at every server. It serves files of that one folder, and its pages may load
from this server alone.
"""

from __future__ import annotations

import importlib.util
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)
_PACKAGE = "fumehood_docs"
_CHECKOUT = Path(__file__).resolve().parents[4]
# The theme sets colours by a script and styles within the page.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_NOT_INSTALLED = (
    "the documentation is not installed at this server: pip install 'fumehood[docs]', or `make docs` in a checkout; "
    "it is also at https://github.com/fumehood/fumehood/blob/main/docs/README.md"
)


# For a browser: the same as a page.
_NOT_INSTALLED_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>No documentation here</title>
<h1>The documentation is not installed at this server</h1>
<p>Its operator installs the extra <code>docs</code> beside fumehood, and needs no restart:</p>
<pre>pip install 'fumehood[docs]'</pre>
<p>In a checkout, <code>make docs</code> builds it. It is also
<a href="https://github.com/fumehood/fumehood/blob/main/docs/README.md">in the repository</a>.
The description of the API is at this server: <a href="../openapi.json">openapi.json</a>.</p>
</html>
"""


def site_folder() -> Path | None:
    """Returns the folder of the site, or None where it is neither installed nor built."""
    package = importlib.util.find_spec(_PACKAGE)
    installed = [] if package is None or package.origin is None else [Path(package.origin).parent / "site"]
    folders = [*installed, _CHECKOUT / "build" / "site"]
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def bare_docs() -> Response:
    """Redirects to the address with a slash, to which the links of the first page are relative."""
    return RedirectResponse("docs/", HTTPStatus.PERMANENT_REDIRECT)


@router.api_route("/docs/{path:path}", methods=["GET", "HEAD"])
async def docs(path: str, request: Request) -> Response:
    """Returns a file of the site; for a folder, its `index.html`."""
    folder = site_folder()

    if folder is None:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(
                _NOT_INSTALLED_PAGE, HTTPStatus.NOT_FOUND, {"Content-Security-Policy": _POLICY}
            )

        raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_INSTALLED)

    response = await StaticFiles(directory=folder, html=True).get_response(path or ".", request.scope)
    response.headers["Content-Security-Policy"] = _POLICY
    return response
