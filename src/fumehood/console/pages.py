"""The page and its assets: files of `dist/`, under the policy of the page.

Every address of the page gives the same document, whose script reads the address; shares have a document of their own,
without any controls that act. The names of assets hold a digest of their content, so that a browser may keep them for
good.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_DIST = Path(__file__).parent / "dist"
_ASSET = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", re.ASCII)
_NOT_BUILT = (
    "the console is not built in this installation: `make console` in a checkout builds it (it needs npm); "
    "a wheel of fumehood has it"
)

# No script but the page's own files, which take no text for markup (Trusted Types); no address but this server.
# Styles are allowed within the page: the primitives set them on elements. No markup of a guest enters the document.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; frame-src 'self'; worker-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types fumehood dompurify"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), usb=(), serial=(), bluetooth=(), "
    "display-capture=(), clipboard-read=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-store",
}
# A worker takes its policy from its own answer.
ASSET_HEADERS = HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}


def page(name: Literal["index.html", "share.html"] = "index.html") -> Response:
    """Returns the document of the console, or of the page that the reader of a share sees.

    Raises:
        HTTPException: The console was not built.
    """
    document = _DIST / name

    if not document.is_file():
        raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_BUILT)

    return Response(document.read_bytes(), media_type="text/html", headers=HEADERS)


async def asset(name: str, scope: Scope) -> Response:
    """Returns a file that the page loads.

    Raises:
        HTTPException: There is no asset of that name.
    """
    folder = _DIST / "assets"

    if not _ASSET.fullmatch(name) or not folder.is_dir():
        raise HTTPException(HTTPStatus.NOT_FOUND)

    response = await StaticFiles(directory=folder).get_response(name, scope)
    response.headers.update(ASSET_HEADERS)
    return response
