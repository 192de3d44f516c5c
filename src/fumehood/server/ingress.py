"""The ingress: checks every request before a route sees it, and adds headers to every response.

Runs in the server process, as plain ASGI, for HTTP and WebSocket alike. It gives each request an id, refuses Hosts that
are not ours (DNS rebinding) and browsers of other origins (CSRF), bounds the body as it streams, and puts the headers
on responses that keep browsers from guessing. It never reads a body or knows a route.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from fumehood.errors import ServerEndingError
from fumehood.log import events
from fumehood.log.request_ids import LoggedRequest, logged_request
from fumehood.server.admission import CallerCheck
from fumehood.server.anonymous import AnonymousRequests, credential_of
from fumehood.server.body_limits import (
    BodyTooLargeError,
    Incoming,
    UnknownBodies,
    is_departure,
    too_large,
)
from fumehood.server.drain import RETRY_SECONDS, Drain
from fumehood.server.ports.access import guest_of_host
from fumehood.server.ports.proxy import is_answer_of_guest
from fumehood.server.problems import MEDIA_TYPE, headers_of, plain_problem, problem_data
from fumehood.server.rate_limits import client_of, network_of
from fumehood.server.responses import GONE
from fumehood.server.settings import ServerSettings

_FAULT = "the server failed; its log says more under this request's id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:@/\[\]]*))(?::[0-9]{1,5})?", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# Signed addresses of ports: what answers there is a guest.
SIGNED_PORTS = "/p/"
# Requested every few seconds, by programs.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# RFC 6455, 7.4.1, and the registry of IANA.
_SERVICE_RESTART = 1012
_HINTS = {
    "misdirected_request": "use the address that the server names at its start, or let its operator add this Host with "
    "--allowed-hosts (FUMEHOOD_ALLOWED_HOSTS)",
    "rate_limited": "send a token, as Authorization: Bearer TOKEN, or wait",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Behind an address: requests that pages of other sites have its browser send.
_FOREIGN = "by pages of other sites"
# Called with the method, the route's own path, the status and the seconds it took.
Observer = Callable[[str, str, int, float], None]


class Ingress:
    """The outermost part of the app.

    Args:
        app: The app behind it.
        settings: The allowed hosts, origins and sizes.
        drain: Whether new work is taken; counts each request.
        observe: Called for each request when it was answered.
        is_upload: Whether a request of this method and path sends a file, which has a different bound.
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
        self._anonymous = AnonymousRequests()
        self._hosts = _LOOPBACK | {settings.host.lower()} | {name.lower() for name in settings.allowed_hosts}
        self._any_host = settings.host in ("0.0.0.0", "::") and not settings.allowed_hosts  # noqa: S104
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes one request on, or refuses it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id

        with logged_request(request_id) as logged, client_of(scope):
            await self._answer(scope, receive, send, headers, logged)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes], logged: LoggedRequest
    ) -> None:
        refusal = self._refusal(scope, headers)

        if refusal is not None:
            await _refuse(scope, send, *refusal, logged.id)
            return

        if self._drain.refuses(scope["type"], scope.get("method", ""), scope["path"]):
            await _refuse_as_ending(scope, send, logged.id)
            return

        # Before the app, which takes a token out of the address.
        credential = credential_of(scope)
        client = self._counted_client(scope, headers, credential)

        if client and (seconds := self._anonymous.retry_after_seconds(client, credential)):
            await _refuse_as_too_many(scope, send, seconds, logged.id)
            return

        if scope["type"] == "websocket":
            with CallerCheck() as admission:
                status = await self._through_websocket(scope, receive, send, logged)
        else:
            with self._drain.request():
                status, admission = await self._through(scope, receive, send, logged)

        if is_answer_of_guest(scope):
            # Its caller was let through, whatever the guest says to it.
            status = HTTPStatus.OK

        if client:
            self._anonymous.note(client, credential, status, admission)

    async def _through_websocket(
        self, scope: Scope, receive: Receive, send: Send, logged: LoggedRequest
    ) -> int:
        answer = _Answer(scope, logged, self._settings.slow_request_seconds)

        async def send_on(message: Message) -> None:
            if message["type"] == "websocket.accept":
                answer.begin(HTTPStatus.SWITCHING_PROTOCOLS)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", logged.id.encode())]
            elif message["type"] == "websocket.http.response.start":
                answer.begin(message["status"])
                message["headers"] = [*message["headers"], (b"x-request-id", logged.id.encode())]

            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except WebSocketDisconnect:
            answer.status = answer.status or GONE
        except Exception as error:
            if is_departure(error):
                answer.status = answer.status or GONE
            else:
                events.REQUEST_FAILED.log(exc_info=error, method="WEBSOCKET", route=answer.route)
                raise
        finally:
            answer.end(answer.status or HTTPStatus.FORBIDDEN)

        return answer.status or HTTPStatus.FORBIDDEN

    def _counted_client(self, scope: Scope, headers: dict[bytes, bytes], credential: bytes | None) -> str:
        """Returns the client address to count a refusal for.

        Empty for a local socket, and if the refusal is not counted.

        Requests caused by pages of other sites are counted separately. Answers of a guest's server, and reads without a
        credential, are not counted.
        """
        if self._is_for_guest(scope, headers):
            return ""

        if credential is None and (scope["type"] == "websocket" or scope["method"] in _SAFE_METHODS):
            return ""

        client = network_of((scope.get("client") or ("",))[0])
        # Any page may have a browser send such requests: they leave no mark on the address's own.
        is_foreign = headers.get(b"sec-fetch-site") == b"cross-site" and client
        return f"{client} {_FOREIGN}" if is_foreign else client

    def _is_for_guest(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Returns whether this is for a guest's server, without a credential of ours in the headers.

        Requests to `/v1/sandboxes/ID/ports/` and those with headers of a dialect need one; see `is_answer_of_guest`.
        """
        host = guest_of_host(headers[b"host"].decode("latin-1"), self._settings.domain)
        return host is not None or scope["path"].startswith(SIGNED_PORTS)

    async def _through(
        self, scope: Scope, receive: Receive, send: Send, logged: LoggedRequest
    ) -> tuple[int, CallerCheck]:
        answer = _Answer(scope, logged, self._settings.slow_request_seconds)
        incoming = Incoming(scope, receive, self._bound(scope), self._unknown_bodies)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.begin(message["status"])
                given = {name for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS if name not in given]

                if self._drain.begun:
                    # The client must send its next request to the server that replaces this one.
                    added.append((b"connection", b"close"))

                message["headers"] = [
                    *message["headers"],
                    *added,
                    (b"x-request-id", logged.id.encode()),
                ]

            await send(message)

        try:
            with incoming:
                await self._app(scope, incoming, send_on)
        except BodyTooLargeError as error:
            if not answer.status:
                answer.begin(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                await _refuse(scope, send, 413, "request_too_large", too_large(error.maximum), logged.id)
        except Exception as error:
            if is_departure(error):
                # The client has disconnected: no answer can reach it, and it is no fault of the server.
                answer.status = answer.status or GONE
                return answer.status, incoming.admission

            events.REQUEST_FAILED.log(exc_info=error, method=scope["method"], route=answer.route)

            if answer.status:
                # The client must not take the part that it has for the whole.
                raise

            answer.begin(HTTPStatus.INTERNAL_SERVER_ERROR)
            await _send(send, plain_problem(500, "internal", _FAULT, logged.id), {}, logged.id)
        finally:
            seconds = answer.end(answer.status)
            self._observe(scope["method"], answer.route, answer.status, seconds)

        return answer.status, incoming.admission

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

        # Each of them must be allowed; a browser sends only one.
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

        if text == "null" and path.startswith(SIGNED_PORTS):
            # A page of a guest, in an opaque origin: the signed address is what admits it.
            return True

        return text in self._origins or text.partition("://")[2] == host.decode("latin-1").lower()


class _Answer:
    """The log fields of one response.

    Args:
        scope: The request.
        logged: Its id and its caller.
        slow_seconds: After how many seconds without a beginning of the response it counts as slow; 0: never.
    """

    def __init__(self, scope: Scope, logged: LoggedRequest, slow_seconds: float) -> None:
        self.status = 0
        self._scope = scope
        self._logged = logged
        self._slow_seconds = slow_seconds
        self._asked_at = time.monotonic()
        self._begun_at: float | None = None

    @property
    def route(self) -> str:
        """The pattern of the route of this path; empty where no route matches."""
        return getattr(self._scope.get("route"), "path", "")

    def begin(self, status: int) -> None:
        """Records the status of the response, whose first bytes are being sent."""
        self.status = status
        self._begun_at = time.monotonic()

    def end(self, status: int) -> float:
        """Logs the request, and returns the seconds that it took."""
        now = time.monotonic()
        seconds = now - self._asked_at
        waited_seconds = (self._begun_at or now) - self._asked_at
        is_slow = 0 < self._slow_seconds < waited_seconds

        if is_slow:
            events.REQUEST_SLOW.log(
                **self._fields(status, waited_seconds), threshold_seconds=self._slow_seconds
            )

        if self.route in _PROBES:
            events.PROBE_SERVED.log(**self._fields(status, seconds))
        elif self._logged.key_id is None:
            events.REQUEST_ANONYMOUS.log(**self._fields(status, seconds))
        else:
            events.REQUEST_SERVED.log(**self._fields(status, seconds))

        return seconds

    def _fields(self, status: int, seconds: float) -> dict[str, Any]:
        scope = self._scope
        sandbox_id = str(scope.get("path_params", {}).get("sandbox_id", ""))
        # Never the address itself: some hold tokens and signatures.
        return {
            "method": scope.get("method", "WEBSOCKET"),
            "route": self.route or "-",
            "status": int(status),
            "duration_seconds": seconds,
            "address": (scope.get("client") or (None,))[0],
            "key_id": self._logged.key_id,
            "sandbox_id": sandbox_id if _SANDBOX_ID.fullmatch(sandbox_id) else None,
        }


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


async def _refuse(scope: Scope, send: Send, status: int, code: str, detail: str, request_id: str) -> None:
    hint = _HINTS.get(code, "")
    _log_refusal(scope, status, detail)

    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": detail})
        return

    await _send(send, plain_problem(status, code, detail, request_id, hint), {}, request_id)


async def _refuse_as_ending(scope: Scope, send: Send, request_id: str) -> None:
    error = ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=False)
    _log_refusal(scope, HTTPStatus.SERVICE_UNAVAILABLE, error.message)

    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _SERVICE_RESTART, "reason": "the server is ending"})
        return

    await _send(send, problem_data(error, request_id), headers_of(error), request_id)


async def _refuse_as_too_many(scope: Scope, send: Send, seconds: float, request_id: str) -> None:
    detail = "too many requests without a right credential were refused to this address"
    _log_refusal(scope, HTTPStatus.TOO_MANY_REQUESTS, detail)

    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": detail})
        return

    problem = plain_problem(
        HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", detail, request_id, _HINTS["rate_limited"]
    )
    await _send(send, problem, {"Retry-After": str(math.ceil(seconds))}, request_id)


def _log_refusal(scope: Scope, status: int, reason: str) -> None:
    events.REQUEST_REFUSED.log(method=scope.get("method", "WEBSOCKET"), status=int(status), reason=reason)


async def _send(send: Send, problem: Mapping[str, Any], headers: Mapping[str, str], request_id: str) -> None:
    body = json.dumps(problem).encode()
    given = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        # The rest of the body is not read.
        (b"connection", b"close"),
        *((name.lower().encode(), value.encode()) for name, value in headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem["status"], "headers": given})
    await send({"type": "http.response.body", "body": body})
