"""Reads an image from a registry: the pull half of the OCI distribution protocol, by the standard library.

Runs in the host process. Answers are bounded and their digests are checked by the caller. A login goes to the registry
and its token service only; a redirect to a store of content is followed without it. Plain HTTP is spoken with
registries of this machine alone.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from fumehood.errors import ImageAccessError, ImageError, ImageNotFoundError
from fumehood.templates.images.credentials import Login
from fumehood.templates.images.reference import DOCKER_HUB, Reference

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MOST_BYTES = 4 << 20
_SECONDS = 60.0
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class RegistrySource:
    """One repository of a registry.

    Args:
        reference: The image in it.
        login: What opens it, or None for public ones.
    """

    def __init__(self, reference: Reference, login: Login | None) -> None:
        host = "registry-1.docker.io" if reference.place == DOCKER_HUB else reference.place
        self._is_local = host.rpartition(":")[0] in _LOCAL or host in _LOCAL
        self._base = f"{'http' if self._is_local else 'https'}://{host}/v2/{reference.name}"
        self._reference = reference
        self._login = login
        self._authorization = ""
        self._opener = urllib.request.build_opener(*_handlers(self._is_local))

    def read_manifest(self, version: str) -> bytes:
        """Returns a manifest or an index by its tag or digest."""
        with self._open(f"/manifests/{version}", ", ".join(MANIFEST_TYPES)) as answer:
            return self._bounded(answer)

    @contextmanager
    def open_blob(self, digest: str) -> Iterator[BinaryIO]:
        """Opens content by its digest."""
        with self._open(f"/blobs/{digest}", "*/*") as answer:
            yield answer

    @contextmanager
    def _open(self, path: str, accept: str) -> Iterator[Any]:
        request = urllib.request.Request(self._base + path, headers={"Accept": accept})  # noqa: S310 - http or https

        if not self._authorization and self._login is not None and self._is_local:
            self._authorization = self._login.basic

        try:
            answer = self._answer(request, path)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

        with answer:
            yield answer

    def _answer(self, request: urllib.request.Request, path: str) -> Any:
        """Asks once, and once more with the authorization that the registry has asked for."""
        try:
            return self._ask(request)
        except urllib.error.HTTPError as error:
            # What a redirect has led to is not the registry: its challenge would ask for the registry's login.
            is_own = urllib.parse.urlsplit(error.url)[:2] == urllib.parse.urlsplit(self._base)[:2]
            status, challenge = error.code, error.headers.get("WWW-Authenticate", "") if is_own else ""
            error.close()

        self._authorization = self._asked(challenge) if status == 401 else ""

        if not self._authorization:
            raise self._refusal(status, path)

        try:
            return self._ask(request)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refusal(error.code, path) from None

    def _ask(self, request: urllib.request.Request) -> Any:
        if self._authorization:
            # Not sent along to where a redirect leads.
            request.add_unredirected_header("Authorization", self._authorization)

        return self._opener.open(request, timeout=_SECONDS)

    def _asked(self, challenge: str) -> str:
        """Returns the Authorization that a registry asks for, empty if there is nothing to offer."""
        scheme, _, rest = challenge.partition(" ")

        if scheme.lower() == "basic":
            return self._login.basic if self._login is not None else ""

        if scheme.lower() != "bearer":
            return ""

        fields = {
            key.lower(): value
            for key, value in urllib.request.parse_keqv_list(urllib.request.parse_http_list(rest)).items()
        }
        realm = fields.pop("realm", "")

        if not realm.startswith("http://" if self._is_local else "https://") and not realm.startswith(
            "https://"
        ):
            raise ImageAccessError(
                image=self._reference.text,
                reason=f"its registry wants tokens from {realm!r}, not an https address",
            )

        query: dict[str, str] = {name: fields[name] for name in ("service", "scope") if name in fields}
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}")  # noqa: S310 - checked above

        if self._login is not None:
            request.add_unredirected_header("Authorization", self._login.basic)

        with self._opener.open(request, timeout=_SECONDS) as answer:
            try:
                content = json.loads(self._bounded(answer))
            except (ValueError, RecursionError):
                content = None

        token = content.get("token") or content.get("access_token") if isinstance(content, dict) else None
        return f"Bearer {token}" if isinstance(token, str) else ""

    def _bounded(self, answer: Any) -> bytes:
        content: bytes = answer.read(_MOST_BYTES + 1)

        if len(content) > _MOST_BYTES:
            raise ImageError(
                image=self._reference.text, reason=f"its manifest is larger than {_MOST_BYTES} bytes"
            )

        return content

    def _refusal(self, status: int, path: str) -> ImageError:
        text = self._reference.text

        if status in (401, 403):
            how = "with the login that is stored for it" if self._login is not None else "without a login"
            return ImageAccessError(
                image=text,
                reason=f"its registry {self._reference.place} refuses it {how} (HTTP {status})",
                hint="check the name, and log in: `docker login`, `podman login`, or DOCKER_AUTH_CONFIG",
            )

        if status == 404:
            return ImageNotFoundError(
                image=text,
                reason=f"its registry {self._reference.place} has no {path.strip('/').replace('/', ' ')} of it",
                hint="check its name and tag",
            )

        return ImageError(
            image=text,
            reason=f"its registry {self._reference.place} answered HTTP {status}",
            hint="too many pulls, or a fault of the registry: try again later"
            if status in (429, 503)
            else "",
        )

    def _unreachable(self, error: Exception) -> ImageError:
        if isinstance(error, ImageError):
            return error

        reason = getattr(error, "reason", None) or error
        return ImageError(
            image=self._reference.text,
            reason=f"its registry {self._reference.place} cannot be reached: {reason}",
            hint="check the name of the registry, and HTTPS_PROXY if this machine needs one",
        )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and none from https to another scheme: what comes from there can be replaced on its way."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Returns the next request; raises URLError for one that is refused."""
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError("it redirects from https to another scheme")

        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _handlers(is_local: bool) -> list[urllib.request.BaseHandler]:
    context = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    return [*([urllib.request.ProxyHandler({})] if is_local else []), context, _SafeRedirects()]
