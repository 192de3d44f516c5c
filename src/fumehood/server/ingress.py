"""The ingress: what every request passes before any route sees it, and every answer on its way out.

Runs in the server process, as plain ASGI, for HTTP and WebSocket alike. It gives each request an id, refuses
Hosts that are not ours (DNS rebinding) and browsers of other origins (CSRF), bounds the body as it streams,
and puts the headers on answers that keep browsers from guessing. It never reads a body or knows a route.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from fumehood.errors import ServerEndingError
from fumehood.server.drain import RETRY_SECONDS, Drain
from fumehood.server.incoming import BodyTooLargeError, Incoming, UnknownBodies, is_departure, too_large
from fumehood.server.problems import MEDIA_TYPE, headers_of, plain_problem, problem_data
from fumehood.server.settings import ServerSettings
from fumehood.server.streaming import GONE

_LOG = logging.getLogger("fumehood.server")
_FAULT = "the server failed; its log says more under this request's id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:@/\[\]]*))(?::[0-9]{1,5})?", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_SIGNED_PORTS = "/p/"
# RFC 6455, 7.4.1, and the registry of IANA.
_SERVICE_RESTART = 1012
_HINTS = {
    "misdirected_request": "use the address that the server names at its start, or let its operator add this Host with "
    "--allowed-hosts (FUMEHOOD_ALLOWED_HOSTS)",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Called with the method, the route's own path, the status and the seconds it took.
Observer = Callable[[str, str, int, float], None]


class Ingress:
    """The outermost part of the app.

    Args:
        app: What comes behind it.
        settings: Which hosts, origins and sizes are allowed.
        drain: Whether new work is taken; told of each request.
        observe: Told of each request when it was answered.
        is_upload: Whether a request of this method and path sends a file, to which another bound applies.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        drain: Drain,
        observe: Observer,
        is_upload: Callable[[str, str], bool],
    ) -> None:
        self._app = app
        self._settings = settings
        self._drain = drain
        self._observe = observe
        self._is_upload = is_upload
        self._unknown_bodies = UnknownBodies()
        self._hosts = _LOOPBACK | {settings.host.lower()} | {name.lower() for name in settings.allowed_hosts}
        self._any_host = settings.host in ("0.0.0.0", "::") and not settings.allowed_hosts  # noqa: S104
        self._origins = frozenset(origin.lower() for origin in settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets one request through, or refuses it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        refusal = self._refusal(scope, headers)

        if refusal is not None:
            await _refuse(scope, send, *refusal, request_id)
            return

        if self._drain.refuses(scope["type"], scope.get("method", ""), scope["path"]):
            await _refuse_as_ending(scope, send, request_id)
            return

        if scope["type"] == "websocket":
            with suppress(WebSocketDisconnect):
                await self._app(scope, receive, send)

            return

        with self._drain.request():
            await self._through(scope, receive, send, request_id)

    async def _through(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        begun = time.monotonic()
        status = 0
        incoming = Incoming(scope, receive, self._bound(scope), self._unknown_bodies)

        async def send_on(message: Message) -> None:
            nonlocal status

            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS if name not in given]

                if self._drain.begun:
                    # The client's next request goes to the server that comes after us.
                    added.append((b"connection", b"close"))

                message["headers"] = [
                    *message["headers"],
                    *added,
                    (b"x-request-id", request_id.encode()),
                ]

            await send(message)

        try:
            with incoming:
                await self._app(scope, incoming, send_on)
        except BodyTooLargeError as error:
            if status == 0:
                status = 413
                await _refuse(scope, send, 413, "request_too_large", too_large(error.maximum), request_id)
        except Exception as error:
            if is_departure(error):
                # No answer can reach it, and nothing went wrong here.
                status = status or GONE
                return

            _LOG.exception("request %s failed", request_id)

            if status:
                # The client must not take what it has for the whole.
                raise

            status = 500
            await _refuse(scope, send, 500, "internal", _FAULT, request_id)
        finally:
            route = getattr(scope.get("route"), "path", "")
            seconds = time.monotonic() - begun
            self._observe(scope["method"], route, status, seconds)
            # Never the address itself: tokens and signatures stand in some.
            _LOG.debug("%s %s %d in %.4f s: %s", scope["method"], route or "-", status, seconds, request_id)

    def _bound(self, scope: Scope) -> int:
        if self._is_upload(scope["method"], scope["path"]):
            return self._settings.max_upload_bytes

        return self._settings.max_body_bytes

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        given = [value for name, value in scope["headers"] if name == b"host"]

        if len(given) != 1 or not self._is_ours(given[0].decode("latin-1").lower()):
            return 421, "misdirected_request", "this server does not answer to that Host"

        origins = [value for name, value in scope["headers"] if name == b"origin"]
        is_unsafe = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS

        # Each must be one that may; a browser sends no more than one.
        if is_unsafe and not all(self._may_come(origin, given[0], scope["path"]) for origin in origins):
            return 403, "forbidden", "a browser of another origin may not do that"

        length = headers.get(b"content-length", b"")

        if scope["type"] == "http" and length.isdigit() and int(length) > self._bound(scope):
            return 413, "request_too_large", too_large(self._bound(scope))

        return None

    def _is_ours(self, host: str) -> bool:
        if self._any_host:
            return True

        found = _HOST.fullmatch(host)

        if found is None:
            return False

        name = found[1] or found[2]
        domain = self._settings.domain.lower().partition(":")[0]
        return name in self._hosts or bool(domain and (name == domain or name.endswith(f".{domain}")))

    def _may_come(self, origin: bytes, host: bytes, path: str) -> bool:
        text = origin.decode("latin-1").lower()

        if text == "null" and path.startswith(_SIGNED_PORTS):
            # A guest's page, in the origin of its own that its answer was given: the address is what lets it in.
            return True

        return text in self._origins or text.partition("://")[2] == host.decode("latin-1").lower()


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


async def _refuse(scope: Scope, send: Send, status: int, code: str, detail: str, request_id: str) -> None:
    hint = _HINTS.get(code, "")

    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": detail})
        return

    await _answer(send, plain_problem(status, code, detail, request_id, hint), {}, request_id)


async def _refuse_as_ending(scope: Scope, send: Send, request_id: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _SERVICE_RESTART, "reason": "the server is ending"})
        return

    error = ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=False)
    await _answer(send, problem_data(error, request_id), headers_of(error), request_id)


async def _answer(
    send: Send, problem: Mapping[str, Any], headers: Mapping[str, str], request_id: str
) -> None:
    body = json.dumps(problem).encode()
    given = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        # What is left of the body is not read.
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem["status"], "headers": given})
    await send({"type": "http.response.body", "body": body})
