"""The page and its assets: files of `dist/`, under the policy of the page.

Every address of the page gives the same document, whose script reads the address; shares have a document of their own,
without any controls that act. The names of assets hold a digest of their content, so that a browser may keep them for
good.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_DIST = Path(__file__).parent / "dist"
# What the build says of its chunks, and the view whose code is large and has a chunk of its own.
_CHUNKS = _DIST / "chunks.json"
_DOCUMENT_CHUNK, _SANDBOX_CHUNK = "index.html", "src/views/Sandbox.tsx"
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


def page(name: Literal["index.html", "share.html"] = "index.html", *, of_sandbox: bool = False) -> Response:
    """Returns the document of the console, or of the page that the reader of a share sees.

    Args:
        name: The document.
        of_sandbox: Whether its address shows one sandbox. The code of that view is then named beside the document:
            the browser loads it together with the page's own, not after that has run.

    Raises:
        HTTPException: The console was not built.
    """
    document = _DIST / name

    if not document.is_file():
        raise HTTPException(HTTPStatus.NOT_FOUND, _NOT_BUILT)

    # A page of an older build works as well; it says nothing of its chunks.
    headers = HEADERS | {"Link": _sandbox_code()} if of_sandbox and _CHUNKS.is_file() else HEADERS
    return Response(document.read_bytes(), media_type="text/html", headers=headers)


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


def _sandbox_code() -> str:
    """Returns the value of `Link` that names the code of the view of a sandbox, without what the document names."""
    chunks = json.loads(_CHUNKS.read_bytes())
    named = _imported(chunks, _SANDBOX_CHUNK) - _imported(chunks, _DOCUMENT_CHUNK)
    files = sorted(chunks[chunk]["file"] for chunk in named)
    return ", ".join(f"</console/{file}>; rel=modulepreload; crossorigin" for file in files)


def _imported(chunks: dict[str, dict[str, Any]], name: str) -> set[str]:
    found, left = {name}, [name]

    while left:
        new = set(chunks[left.pop()].get("imports", ())) - found
        found |= new
        left += new

    return found
