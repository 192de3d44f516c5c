"""One connection of a guest: parsed, decided, dialled, copied, counted.

HTTP in absolute form, CONNECT and SOCKS 5 use the same socket. One request is passed on for each connection to a
server, its end known before it is sent, so that no second one can be smuggled behind it. In a tunnel the first bytes
must fit the decision: the name in TLS, the Host in plain HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress

from fumehood.cancellation import cancel_and_wait
from fumehood.egress import socks
from fumehood.egress.client_hello import HelloError, begins_tls
from fumehood.egress.dialer import UnreachableError, dial
from fumehood.egress.first_flight import NoRequest, check_hello, looks_like_http, read_hello
from fumehood.egress.gateway import Entry, Gateway, Kind
from fumehood.egress.http_messages import (
    HEAD_END,
    MAX_HEAD_BYTES,
    HeadError,
    RequestHead,
    check_host,
    path_of_origin,
    read_request_head,
    send_body,
    target_of_absolute,
    write_request_head,
)
from fumehood.egress.pipes import Pipe, PipeEndError, PipeReader, SocketPipe, TlsPipe, TooLongError
from fumehood.egress.policy import RefusedError
from fumehood.values.domain_names import Address, Target, TargetError, read_authority
from fumehood.values.network import SecretPlace

_HTTP_PORT, _TLS_PORT = 80, 443
_DRAIN_BYTES = 1 << 20
_DRAIN_SECONDS = 2.0
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MALFORMED = (HeadError, TargetError, HelloError, socks.SocksError, TooLongError)


async def serve(gateway: Gateway, sock: socket.socket) -> None:
    """Serves one connection of a guest to its end, and closes it.

    Args:
        gateway: The gateway of its sandbox.
        sock: The host's end.
    """
    proxied = ProxyConnection(gateway, sock)

    with sock, gateway.judging(proxied):
        await proxied.run()


class ProxyConnection:
    """One connection.

    Args:
        gateway: The gateway of its sandbox.
        sock: The host's end.
    """

    def __init__(self, gateway: Gateway, sock: socket.socket) -> None:
        self._gateway = gateway
        self._client: Pipe = SocketPipe(sock)
        self._incoming = PipeReader(self._client)
        self._task = asyncio.current_task()
        self._kind: Kind = "http"
        self._entry: Entry | None = None
        # Its target and the dialled addresses; names requested in a tunnel to an address.
        self._way: tuple[Target, Sequence[Address]] | None = None
        self._named: list[Target] = []
        self._deadline: asyncio.Timeout | None = None
        self._is_answered = False
        self._asked = ""

    async def run(self) -> None:
        """Serves the connection; an error is reported to the guest if possible, and not raised."""
        try:
            try:
                await self._serve()
            except RefusedError as refusal:
                self._note_refusal(refusal.reason)
                await self._answer(403, refusal.reason, socks.NOT_ALLOWED)
            except UnreachableError as failure:
                await self._answer(502, failure.reason, socks.UNREACHABLE)
            except _MALFORMED as fault:
                reason = str(fault) or "the head is too long"
                self._note_refusal(reason)
                await self._answer(400, reason, getattr(fault, "code", None))
            except TimeoutError:
                await self._answer(408, "nothing came for too long", None)
        except (PipeEndError, ssl.SSLError):
            return  # one of the two has gone, and the other hears of it by the end

    def judge_again(self) -> None:
        """Closes this connection unless the changed policy still allows it."""
        if self._way is None:
            return

        target, addresses = self._way
        try:
            for each in (target, *self._named):
                self._gateway.policy.admit(each)

            for address in addresses:
                self._gateway.policy.admit_address(target, address)
        except RefusedError as refusal:
            self._gateway.journal.note_denied(self._kind, target, refusal.reason)
            self.abort()

    def abort(self) -> None:
        """Closes the connection."""
        if self._task is not None:
            self._task.cancel()

    # -- the request

    async def _serve(self) -> None:
        async with asyncio.timeout(self._gateway.limits.head_seconds):
            if not await self._incoming.more():
                return

            first = self._incoming.held[:1]
            is_socks = first[0] == socks.VERSION

            if not is_socks and not first.isalpha():
                raise HeadError("neither HTTP nor SOCKS 5 is spoken here")

            self._kind = "socks" if is_socks else "http"
            head = None if is_socks else await self._read_head()

            if head is not None and head.method == "CONNECT":
                self._kind = "connect"

            target = await self._read_target(head)

        if head is not None and target is None:
            await self._serve_absolute(head)
            return

        assert target is not None
        upstream = await self._open(target)
        try:
            await self._client.send(socks.write_reply(socks.SUCCEEDED) if is_socks else _ESTABLISHED)
            self._is_answered = True
            await self._within_idle_time(self._tunnel(target, upstream))
        finally:
            upstream.close()

    async def _read_head(self) -> RequestHead:
        head = read_request_head(await self._incoming.take_through(HEAD_END, MAX_HEAD_BYTES))
        self._asked = head.target
        return head

    async def _read_target(self, head: RequestHead | None) -> Target | None:
        """Returns the target of a tunnel; None for a plain request."""
        if head is None:
            await self._client.send(await socks.read_greeting(self._incoming))
            return await socks.read_request(self._incoming)

        return _read_connect(head) if head.method == "CONNECT" else None

    async def _serve_absolute(self, head: RequestHead) -> None:
        target, path = target_of_absolute(head)
        upstream = await self._open(target)
        try:
            injected = self._secrets("http", target)
            request = write_request_head(head, target, path, _HTTP_PORT, injected)
            await self._within_idle_time(
                _together(
                    self._send(head, request, upstream), self._pump_down(upstream), ends_with_answer=True
                )
            )
        finally:
            upstream.close()

    async def _open(self, target: Target) -> SocketPipe:
        """Decides, and dials the target."""
        self._way = None
        self._asked = target.authority
        gateway = self._gateway
        gateway.check_budget()
        try:
            rule = gateway.policy.admit(target)
            addresses = await gateway.addresses_of(target)
            # The policy may have changed during the lookup; the addresses were checked against the new one.
            rule = gateway.policy.admit(target)
        except RefusedError as refusal:
            gateway.journal.note_denied(self._kind, target, refusal.reason)
            await self._answer(403, refusal.reason, socks.NOT_ALLOWED)
            raise PipeEndError from None
        except UnreachableError:
            gateway.journal.note_allowed(self._kind, target, rule)
            raise

        self._entry = gateway.journal.note_allowed(self._kind, target, rule)
        # From here on a change of the policy concerns this connection, also while it is dialled.
        self._way = (target, addresses)
        sock, address = await dial(addresses, target.port)
        self._way = (target, [address])
        self._entry.note_address(address)
        return SocketPipe(sock)

    # -- the data

    async def _tunnel(self, target: Target, upstream: Pipe) -> None:
        if self._secrets("https", target):
            await self._intercept(target, upstream)
        elif target.port == _HTTP_PORT:
            await self._carry_request(target, upstream, _HTTP_PORT, self._secrets("http", target))
        else:
            await _together(self._up(target, upstream), self._pump_down(upstream))

    async def _up(self, target: Target, upstream: Pipe) -> None:
        """Copies the guest's bytes into a tunnel: the first ones are checked, the rest is copied unparsed."""
        if not self._incoming.held and not await self._incoming.more():
            await upstream.end()
            return

        is_tls = begins_tls(self._incoming.held)

        if is_tls:
            self._named += check_hello(await read_hello(self._incoming), target, self._gateway.policy)
        elif target.port == _TLS_PORT:
            raise HelloError("through port 443 only TLS may be spoken")
        elif await looks_like_http(self._incoming):
            await self._send_request(target, upstream, _HTTP_PORT, self._secrets("http", target))
            return

        # TLS encrypts everything after the server name, which was checked.
        unread = None if is_tls else NoRequest()

        while data := await self._incoming.take_some(_DRAIN_BYTES):
            if unread is not None:
                unread.check(data)

            await upstream.send(data)
            await self._count(len(data), is_out=True)

        await upstream.end()

    async def _carry_request(
        self, target: Target, upstream: Pipe, default_port: int, injected: Mapping[str, str]
    ) -> None:
        await _together(
            self._send_request(target, upstream, default_port, injected),
            self._pump_down(upstream),
            ends_with_answer=True,
        )

    async def _send_request(
        self, target: Target, upstream: Pipe, default_port: int, injected: Mapping[str, str]
    ) -> None:
        """Passes on one request in origin form, whose Host must be the decided one."""
        head = await self._read_head()
        path = path_of_origin(head)
        named = target

        if target.address is None:
            check_host(head, target, default_port)
        else:
            named = read_authority(head.hosts()[0], default_port)

            if named != target:
                # The tunnel was to an address; a name in the request must be allowed by itself.
                self._gateway.policy.admit(named)
                self._named.append(named)

        await self._send(head, write_request_head(head, named, path, default_port, injected), upstream)

    async def _send(self, head: RequestHead, request: bytes, upstream: Pipe) -> None:
        if head.expects_continue and head.body_bytes != 0:
            await self._client.send(_CONTINUE)

        await upstream.send(request)
        await self._count(len(request), is_out=True)
        await send_body(self._incoming, head, upstream, lambda count: self._count(count, is_out=True))

        # A second request would need another decision: the client must open another connection.
        if self._incoming.held or await self._incoming.more():
            raise PipeEndError

    async def _pump_down(self, upstream: Pipe) -> None:
        while data := await upstream.receive():
            await self._client.send(data)
            self._is_answered = True
            await self._count(len(data), is_out=False)

        await self._client.end()

    async def _intercept(self, target: Target, upstream: Pipe) -> None:
        """Terminates the guest's TLS here and opens another one, so that a secret can be added."""
        gateway = self._gateway
        authority, trust = gateway.route.authority, gateway.route.trust
        assert authority is not None, "a secret for https without an authority"
        assert trust is not None, "a secret for https without anybody to trust"

        if not self._incoming.held and not await self._incoming.more():
            return

        check_hello(await read_hello(self._incoming), target, gateway.policy)
        inner = TlsPipe(self._client, authority.context_for(target.host), None, received=self._incoming.held)
        await inner.shake_hands()
        self._client, self._incoming = inner, PipeReader(inner)
        # A response can be sent again: within the new TLS.
        self._is_answered = False
        self._kind = "connect"
        outer = TlsPipe(upstream, trust, target.host)
        try:
            await outer.shake_hands()
        except ssl.SSLCertVerificationError as error:
            raise UnreachableError(
                f"the certificate of {target.host} is not to be trusted: {error.verify_message}"
            ) from None

        await self._carry_request(target, outer, _TLS_PORT, self._secrets("https", target))

    # -- helpers

    async def _within_idle_time(self, work: Awaitable[None]) -> None:
        async with asyncio.timeout(self._gateway.limits.idle_seconds) as self._deadline:
            await work

    async def _count(self, byte_count: int, *, is_out: bool) -> None:
        if self._entry is not None and is_out:
            self._entry.sent += byte_count
        elif self._entry is not None:
            self._entry.received += byte_count

        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._gateway.limits.idle_seconds)

        await self._gateway.count(byte_count)

    def _secrets(self, scheme: str, target: Target) -> Mapping[str, str]:
        place = SecretPlace("https" if scheme == "https" else "http", target.host, target.port)
        return self._gateway.route.secrets.get(place, {})

    def _note_refusal(self, reason: str) -> None:
        if self._way is None:
            self._gateway.journal.note_malformed(self._kind, self._asked, reason)
        else:
            self._gateway.journal.note_denied(self._kind, self._way[0], reason)

    async def _answer(self, status: int, reason: str, code: int | None) -> None:
        """Sends the reason of a refusal, if a response is still possible, and reads the rest of the guest's bytes."""
        if not self._is_answered:
            self._is_answered = True
            await self._client.send(
                _http_answer(status, reason)
                if self._kind != "socks"
                else b""
                if code is None
                else socks.write_reply(code)
            )

        await self._client.end()

        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                taken = 0

                while taken < _DRAIN_BYTES and (data := await self._client.receive()):
                    taken += len(data)


async def _together(up: Awaitable[None], down: Awaitable[None], *, ends_with_answer: bool = False) -> None:
    """Copies both directions; an error in one ends the other."""
    tasks = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
    try:
        await asyncio.wait(
            tasks, return_when=asyncio.FIRST_EXCEPTION if not ends_with_answer else "FIRST_COMPLETED"
        )

        if ends_with_answer and not tasks[1].done() and tasks[0].exception() is None:
            await asyncio.wait(tasks[1:])
    finally:
        await cancel_and_wait(*tasks)

    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _read_connect(head: RequestHead) -> Target:
    target = read_authority(head.target)
    check_host(head, target, target.port)

    if head.body_bytes != 0:
        raise HeadError("a CONNECT with a body")

    return target


def _http_answer(status: int, reason: str) -> bytes:
    """Returns a response with the reason in its first line too: of a refused CONNECT, clients show nothing else."""
    line = "".join(char if " " <= char <= "~" else "?" for char in reason)[:300]
    body = f"{line}\n".encode()
    return (
        f"HTTP/1.1 {status} {line}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body
