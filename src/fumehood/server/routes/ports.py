"""Web servers inside sandboxes: reached by path with a token, by a signed address, or by a host name of their own.

Pages of a guest in the server's own origin get an opaque origin by a sandbox policy; with a domain each sandbox has its
own origin anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from fastapi import Path
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from fumehood.cancellation import cancel_and_wait, first_of
from fumehood.errors import FumehoodError, OverloadedError, SandboxError
from fumehood.port.backend import ARRIVED, Backend, ByteStream
from fumehood.server.admission import admit_every_caller, while_right_lasts
from fumehood.server.auth import CallersBackend, ServicesOf, principal_of, refusal_of, until_refused
from fumehood.server.port_rules import PortRules
from fumehood.server.ports.access import (
    MAX_PORT,
    SandboxPort,
    guest_of_host,
    read_port,
    read_signed_part,
    signed_part,
)
from fumehood.server.ports.browsers import check_is_no_part_of_ours
from fumehood.server.ports.headers import PortTarget
from fumehood.server.ports.proxy import proxy_http, proxy_websocket
from fumehood.server.principal import Principal
from fumehood.server.problems import (
    MEDIA_TYPE,
    answer_error,
    headers_of,
    problem_data,
    request_id_of,
    status_of,
)
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.sandboxes import PortAnswer, PortsAnswer, SignPort
from fumehood.server.services import AppServices, services_of
from fumehood.server.signed_urls import principal_behind, signing_secret
from fumehood.values.looking import ReadPorts
from fumehood.values.sandbox import PortAddress

router = guarded_router("ports", "/v1/sandboxes/{sandbox_id}/ports")
Port = Annotated[int, Path(ge=1, le=MAX_PORT, description="A port on which something inside listens.")]
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_POLICY_VIOLATION = 1008
_MAX_WAITS_OF_KEY = 64
_RETRY_SECONDS = 5.0


@router.get("", summary="List the open ports", response_model=PortsAnswer, responses=SANDBOX_PROBLEMS)
async def list_ports(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Lists the TCP ports on which programs of a sandbox listen, as the kernel reports them.

    No code runs in the sandbox for that.

    The answer may be a second old.
    """
    ports = await backend.look(sandbox_id, ReadPorts())
    return answer(ports)


@router.post(
    "/{port}/sign",
    summary="Make an address for a browser",
    response_model=PortAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def sign_port(
    sandbox_id: SandboxId,
    port: Port,
    wanted: SignPort,
    backend: CallersBackend,
    services: ServicesOf,
    request: Request,
) -> Response:
    """Returns an address of a port that needs no token until it expires, and its host name if it has one."""
    await backend.info(sandbox_id)
    principal = await principal_of(request)
    expires = int(time.time() + wanted.expires_in_seconds)
    grant = SandboxPort(sandbox_id, port).grant(expires, principal.key_id)
    signed = signed_part(grant, signing_secret(services.state))
    settings = services.settings
    host = f"{port}-{sandbox_id}.{settings.domain}" if settings.domain else None

    if host is not None and settings.public_ports and not (await _rules(services, sandbox_id)).is_private:
        return answer(PortAddress(url=f"{request.url.scheme}://{host}/", host=host))

    base = (settings.public_url or str(request.base_url)).rstrip("/")
    return answer(PortAddress(url=f"{base}/p/{signed}/{sandbox_id}/{port}/", host=host))


def _query(connection: HTTPConnection) -> str:
    query = connection.scope.get("query_string", b"").decode("latin-1")
    return f"?{query}" if query else ""


def _target(connection: HTTPConnection, prefix: str, *, keep_credentials: bool) -> PortTarget:
    values = connection.path_params
    # As it was sent: escaped characters must reach the server inside escaped.
    raw = connection.scope.get("raw_path", connection.scope["path"].encode()).decode("latin-1")
    path = raw.partition("?")[0].split("/", prefix.count("/") + 1)[-1]
    return PortTarget(
        sandbox_id=values["sandbox_id"],
        port=read_port(values["port"]),
        path=f"/{path}{_query(connection)}",
        prefix=prefix,
        keep_credentials=keep_credentials,
    )


async def _by_token(connection: HTTPConnection) -> tuple[Backend, PortTarget]:
    principal = await principal_of(connection)
    principal.require("sandboxes")
    values = connection.path_params
    prefix = f"/v1/sandboxes/{values['sandbox_id']}/ports/{values['port']}"
    return services_of(connection).backend_for(principal), _target(connection, prefix, keep_credentials=False)


async def _by_signature(connection: HTTPConnection) -> tuple[Backend, PortTarget]:
    values = connection.path_params
    services = services_of(connection)
    address = SandboxPort(values["sandbox_id"], read_port(values["port"]))
    principal = await principal_behind(services, *read_signed_part(address, values["signed"]))
    principal.require("sandboxes")
    prefix = f"/p/{values['signed']}/{address.sandbox_id}/{address.port}"
    return services.backend_for(principal), _target(connection, prefix, keep_credentials=True)


async def _by_host(connection: HTTPConnection, address: SandboxPort) -> tuple[Backend, PortTarget]:
    services = services_of(connection)
    rules = await _rules(services, address.sandbox_id)
    is_public = services.settings.public_ports and not rules.is_private

    if is_public:
        admit_every_caller()

    backend = services.backend if is_public else await _opened(connection, address.sandbox_id)

    raw = connection.scope.get("raw_path", connection.scope["path"].encode()).decode("latin-1")
    return backend, PortTarget(
        sandbox_id=address.sandbox_id,
        port=address.port,
        path=f"{raw.partition('?')[0]}{_query(connection)}",
        own_origin=True,
        keep_credentials=is_public,
        host=rules.host,
    )


async def _rules(services: AppServices, sandbox_id: str) -> PortRules:
    """Returns the rules of a sandbox's ports: those of the first dialect that has rules for it."""
    for dialect in services.port_dialects:
        if (rules := await dialect.rules(sandbox_id)) != PortRules():
            return rules

    return PortRules()


async def _opened(connection: HTTPConnection, sandbox_id: str) -> Backend:
    """Returns the backend for a caller with a key, or with a token that a dialect gave out for this sandbox."""
    services = services_of(connection)

    for dialect in services.port_dialects:
        if (backend := await dialect.opened(connection, sandbox_id)) is not None:
            return backend

    principal = await principal_of(connection)
    principal.require("sandboxes")
    return services.backend_for(principal)


async def _token_http(request: Request) -> Response:
    check_is_no_part_of_ours(request.headers)
    return await proxy_http(*await _by_token(request), request)


async def _signed_http(request: Request) -> Response:
    check_is_no_part_of_ours(request.headers)

    if request.method == "OPTIONS" and request.headers.get("origin") == "null":
        # A CORS preflight of a page in an opaque origin, for a request to its own server.
        return PlainTextResponse(
            "",
            headers={
                "access-control-allow-origin": "null",
                "access-control-allow-methods": ", ".join(_METHODS),
                "access-control-allow-headers": request.headers.get("access-control-request-headers", ""),
            },
        )

    return await proxy_http(*await _by_signature(request), request)


async def _token_websocket(websocket: WebSocket) -> None:
    await _carry(websocket, _by_token(websocket))


async def _signed_websocket(websocket: WebSocket) -> None:
    await _carry(websocket, _by_signature(websocket))


async def _carry(websocket: WebSocket, way: Awaitable[tuple[Backend, PortTarget]]) -> None:
    """Carries a WebSocket connection; an error before the connection was accepted is reported in the refusal."""
    try:
        backend, target = await way
        await while_right_lasts(proxy_websocket(backend, target, websocket))
    except FumehoodError as error:
        await refuse_websocket(websocket, error)


async def _carry_by_host(websocket: WebSocket, address: SandboxPort) -> None:
    """Carries a WebSocket connection to a host name.

    A refusal has the form of the dialect to which the host name belongs.
    """
    try:
        backend, target = await _by_host(websocket, address)
        await while_right_lasts(proxy_websocket(backend, target, websocket))
    except FumehoodError as error:
        refusal = _refused(websocket, error, address)

        if refusal is None or websocket.application_state is not WebSocketState.CONNECTING:
            await refuse_websocket(websocket, error)
            return

        with suppress(WebSocketDisconnect, RuntimeError):
            await websocket.send_denial_response(refusal)


def _refused(connection: HTTPConnection, error: FumehoodError, address: SandboxPort) -> Response | None:
    for dialect in services_of(connection).port_dialects:
        if (refusal := dialect.refused(connection, error, address.sandbox_id, address.port)) is not None:
            return refusal

    return None


async def refuse_websocket(websocket: WebSocket, error: FumehoodError) -> None:
    """Ends a connection because of an error: by an HTTP answer before it was accepted, else by a close code."""
    try:
        if websocket.application_state is WebSocketState.CONNECTING:
            body = problem_data(error, request_id_of(websocket))
            answer = JSONResponse(body, status_of(error), headers_of(error), MEDIA_TYPE)
            await websocket.send_denial_response(answer)
        else:
            await websocket.close(_POLICY_VIOLATION, error.code)
    except (WebSocketDisconnect, RuntimeError):
        # The client has closed it already.
        return


async def _tunnel(websocket: WebSocket) -> None:
    """Carries the bytes of one connection to a port; an empty message is the end of what the client sends."""
    try:
        backend, sandbox_id, port = await _named_port(websocket)
        stream = await backend.open_port(sandbox_id, port)
    except FumehoodError as error:
        await refuse_websocket(websocket, error)
        return

    async with stream:
        await websocket.accept()
        await _carry_bytes(stream, websocket)


async def _named_port(connection: HTTPConnection) -> tuple[Backend, str, int]:
    """Returns the caller's backend, and the sandbox and port that the path names."""
    principal = await principal_of(connection)
    principal.require("sandboxes")
    values = connection.path_params
    backend = services_of(connection).backend_for(principal)
    return backend, values["sandbox_id"], read_port(values["port"])


async def _carry_bytes(stream: ByteStream, websocket: WebSocket) -> None:
    refused = asyncio.create_task(until_refused(websocket))
    tasks = [
        asyncio.create_task(_out_of(stream, websocket)),
        asyncio.create_task(_into(stream, websocket)),
    ]
    # The end of the guest's bytes ends the tunnel; the client may have ended its own side long before.
    await first_of(*tasks, refused)

    if refused.done() and not refused.cancelled():
        await refuse_websocket(websocket, refused.result())


async def _listen(request: Request) -> Response:
    """Listens on a port inside a sandbox."""
    backend, sandbox_id, port = await _named_port(request)
    await backend.listen_port(sandbox_id, port)
    return Response(status_code=204)


async def _next_arrival(websocket: WebSocket) -> None:
    """Waits for a connection that a program inside makes, reports it in one message, and then carries its bytes."""
    try:
        backend, sandbox_id, port = await _named_port(websocket)

        with _counted_wait(services_of(websocket), await principal_of(websocket)):
            await backend.listen_port(sandbox_id, port)
            # Before there is a connection: the departure of a client that waits would not be seen otherwise.
            await websocket.accept()
            stream = await _while_waiting(websocket, backend.accept_port(sandbox_id, port))
    except FumehoodError as error:
        await refuse_websocket(websocket, error)
        return

    if stream is None:
        return

    async with stream:
        # Since the last check the caller may have lost the right: nothing new is handed to it.
        if (refusal := await refusal_of(websocket)) is not None:
            await refuse_websocket(websocket, refusal)
            return

        await websocket.send_bytes(ARRIVED)
        await _carry_bytes(stream, websocket)


@contextmanager
def _counted_wait(services: AppServices, principal: Principal) -> Iterator[None]:
    """Counts a wait of a key.

    Raises:
        OverloadedError: The key already has the maximum number of waits.
    """
    key_id = principal.key_id

    if not principal.is_owner and services.waits[key_id] >= _MAX_WAITS_OF_KEY:
        reason = f"{_MAX_WAITS_OF_KEY} sockets of this key wait for connections already"
        raise OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)

    services.waits[key_id] += 1
    try:
        yield
    finally:
        services.waits -= Counter({key_id: 1})


async def _while_waiting(
    websocket: WebSocket, accepting: Coroutine[None, None, ByteStream]
) -> ByteStream | None:
    """Waits for a connection; None if the client disconnects first. A client sends nothing before it has a connection.

    Raises:
        FumehoodError: The sandbox has ended, or the client may no longer wait.
    """
    arrival = asyncio.create_task(accepting)
    departure = asyncio.create_task(websocket.receive())
    refused = asyncio.create_task(until_refused(websocket))
    is_taken = False
    try:
        await asyncio.wait((arrival, departure, refused), return_when=asyncio.FIRST_COMPLETED)

        if refused.done():
            raise refused.result()

        is_taken = not departure.done()
        return arrival.result() if is_taken else None
    finally:
        await cancel_and_wait(arrival, departure, refused)

        if not is_taken and not arrival.cancelled() and arrival.exception() is None:
            await arrival.result().close()


async def _out_of(stream: ByteStream, websocket: WebSocket) -> None:
    try:
        while data := await stream.read():
            await websocket.send_bytes(data)

        await websocket.close()
    except SandboxError as error:
        await refuse_websocket(websocket, error)


async def _into(stream: ByteStream, websocket: WebSocket) -> None:
    try:
        while (event := await websocket.receive())["type"] == "websocket.receive":
            data = event.get("bytes")

            if data:
                await stream.write(data)
            else:
                await stream.end()
                # Only the guest can end it now, or the client by disconnecting.
    except (BrokenPipeError, SandboxError):
        # The other direction reports the error.
        await asyncio.Event().wait()


_DIRECT = "/v1/sandboxes/{sandbox_id}/ports/{port}/{path:path}"
_LISTENER = "/v1/sandboxes/{sandbox_id}/listeners/{port}"
_SIGNED = "/p/{signed}/{sandbox_id}/{port}/{path:path}"
# They take every method and body, and the guest defines their meaning: not described in OpenAPI.
ROUTES: tuple[BaseRoute, ...] = (
    WebSocketRoute("/v1/sandboxes/{sandbox_id}/tunnels/{port}", _tunnel),
    Route(_LISTENER, _listen, methods=["POST"]),
    WebSocketRoute(f"{_LISTENER}/next", _next_arrival),
    Route(_DIRECT, _token_http, methods=_METHODS),
    WebSocketRoute(_DIRECT, _token_websocket),
    Route(_SIGNED, _signed_http, methods=_METHODS),
    WebSocketRoute(_SIGNED, _signed_websocket),
)


class HostNames:
    """Answers requests to host names of sandboxes, before the routes are matched.

    Args:
        app: Answers all other requests.
        domain: The domain under which sandboxes have their names.
    """

    def __init__(self, app: ASGIApp, domain: str) -> None:
        self._app = app
        self._domain = domain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        address = self._address(scope)

        if address is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _carry_by_host(WebSocket(scope, receive, send), address)
        else:
            await self._answer(Request(scope, receive, send), address, scope, receive, send)

    async def _answer(
        self, request: Request, address: SandboxPort, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            backend, target = await _by_host(request, address)
            answer = await proxy_http(backend, target, request)
        except FumehoodError as error:
            answer = _refused(request, error, address) or await answer_error(request, error)

        await answer(scope, receive, send)

    def _address(self, scope: Scope) -> SandboxPort | None:
        if scope["type"] not in ("http", "websocket"):
            return None

        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return guest_of_host(host.decode("latin-1"), self._domain)
