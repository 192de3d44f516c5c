"""Reads an image from a registry: the pull half of the OCI distribution protocol, by the standard library.

Runs in the host process. Answers are bounded, in bytes and in time; their digests are checked by the caller. A login
goes to the registry and its token service only; a redirect to a store of content is followed without it. Plain HTTP is
used for registries of this machine only.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from fumehood.errors import ImageAccessError, ImageError, ImageNotFoundError
from fumehood.templates.images.credentials import RegistryLogin
from fumehood.templates.images.reference import DOCKER_HUB, Reference

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MOST_BYTES = 4 << 20
# Time limits of one read, and of a whole manifest with its token: a server that sends a byte now and then never exceeds
# the first.
_SECONDS = 60.0
# The time limit of all layers of a pull.
_PULL_SECONDS = 7200.0
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class RegistrySource:
    """One repository of a registry.

    Args:
        reference: The image in it.
        login: The credentials, or None for public ones.
        seconds: The time limit of a manifest, and that of all content together.
    """

    def __init__(
        self,
        reference: Reference,
        login: RegistryLogin | None,
        seconds: tuple[float, float] = (_SECONDS, _PULL_SECONDS),
    ) -> None:
        host = "registry-1.docker.io" if reference.place == DOCKER_HUB else reference.place
        self._is_local = host.rpartition(":")[0] in _LOCAL or host in _LOCAL
        self._base = f"{'http' if self._is_local else 'https'}://{host}/v2/{reference.name}"
        self._reference = reference
        self._login = login
        self._authorization = ""
        self._manifest_seconds, self._pull_seconds = seconds
        self._started = time.monotonic()
        self._clock = _Clock()
        self._opener = urllib.request.build_opener(*_handlers(self._is_local, self._clock))

    def read_manifest(self, version: str) -> bytes:
        """Returns a manifest or an index by its tag or digest."""
        with self._open(f"/manifests/{version}", ", ".join(MANIFEST_TYPES), self._manifest_seconds) as answer:
            return self._bounded(answer)

    @contextmanager
    def open_blob(self, digest: str) -> Iterator[BinaryIO]:
        """Opens content by its digest."""
        left = self._started + self._pull_seconds - time.monotonic()

        with self._open(f"/blobs/{digest}", "*/*", left) as answer:
            yield answer

    @contextmanager
    def _open(self, path: str, accept: str, seconds: float) -> Iterator[Any]:
        with self._clock.within(seconds):
            try:
                with self._answered(path, accept) as answer:
                    yield answer
            except (OSError, http.client.HTTPException):
                if not self._clock.is_over:
                    raise

            # A body that broke off at the time limit may look complete.
            if self._clock.is_over:
                raise ImageError(
                    image=self._reference.text,
                    reason=f"its registry {self._reference.place} took longer than {max(seconds, 0):g} s "
                    f"for {path.strip('/').replace('/', ' ')}",
                    hint="pull it on a better connection, or from another registry",
                )

    @contextmanager
    def _answered(self, path: str, accept: str) -> Iterator[Any]:
        request = urllib.request.Request(self._base + path, headers={"Accept": accept})  # noqa: S310 - http or https

        if not self._authorization and self._login is not None and self._is_local:
            self._authorization = self._login.basic

        try:
            answer = self._answer(request, path)
        except (OSError, http.client.HTTPException) as error:
            if self._clock.is_over:
                raise

            raise self._unreachable(error) from None

        with answer:
            yield answer

    def _answer(self, request: urllib.request.Request, path: str) -> Any:
        """Sends a request, and repeats it with the authorization that the registry demands."""
        try:
            return self._ask(request)
        except urllib.error.HTTPError as error:
            # The challenge of a redirect's target is ignored: it is not the registry, and must not get its login.
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
            # This header is not sent to the target of a redirect.
            request.add_unredirected_header("Authorization", self._authorization)

        return self._opener.open(request, timeout=_SECONDS)

    def _asked(self, challenge: str) -> str:
        """Returns the Authorization header that answers a registry's challenge; empty if there is no login for it."""
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
    """Follows redirects, except from https to another scheme, where the content could be replaced in transit."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Returns the next request; raises URLError for one that is refused."""
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError("it redirects from https to another scheme")

        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Clock:
    """Closes all connections of a request that takes too long, whichever call they block in.

    Attributes:
        is_over: Whether the time limit has passed.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bounds the time of the block, and closes the connections that were made in it."""
        self.is_over = False
        timer = threading.Timer(max(seconds, 0.0), self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

            while self._open:
                self._open.pop().close()

    def connect(self, *given: Any, **named: Any) -> socket.socket:
        """Makes a connection, as `socket.create_connection`."""
        sock = socket.create_connection(*given, **named)

        with self._lock:
            # A duplicate, because TLS takes the descriptor away from the original socket.
            self._open.append(sock.dup())

            if self.is_over:
                sock.close()
                raise TimeoutError("it takes too long")

        return sock

    def _end(self) -> None:
        with self._lock:
            self.is_over = True

            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _handlers(is_local: bool, clock: _Clock) -> list[urllib.request.BaseHandler]:
    context = ssl.create_default_context()

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(timed(http.client.HTTPConnection), req)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(timed(http.client.HTTPSConnection), req, context=context)

    def timed(kind: type[http.client.HTTPConnection]) -> Any:
        def made(*given: Any, **named: Any) -> http.client.HTTPConnection:
            connection = kind(*given, **named)
            # The one place where the connection is made, before TLS and after a proxy was chosen.
            connection._create_connection = clock.connect  # type: ignore[attr-defined]
            return connection

        return made

    return [
        *([urllib.request.ProxyHandler({})] if is_local else []),
        Plain(),
        Secure(context=context),
        _SafeRedirects(),
    ]
