"""The connection to a server: requests, streams of lines and tunnels, over TCP or a unix socket.

Runs in the caller's process, on one loop. Problem details become the error that the server raised, with the same class
and fields; a server that cannot be reached, or breaks off, is a HostUnavailableError that says whether the request may
have been carried out. Lines of a server's streams become events again. This module also computes the paths of a
server's resources.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import re
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any
from urllib.parse import quote

import httpx2
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from fumehood import errors
from fumehood.errors import (
    FumehoodError,
    HostUnavailableError,
    HostVersionError,
    InvalidArgumentError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
    ServiceError,
)
from fumehood.log.request_ids import request_id
from fumehood.log.traces import TRACE_HEADER, TRACES
from fumehood.off_loop import SMALL_BYTES, off_loop
from fumehood.port.backend import ByteStream
from fumehood.values import carried
from fumehood.values.codec import DataError, read_value
from fumehood.values.events import (
    ClearOutputEvent,
    CommEvent,
    CommitRequestEvent,
    ErrorEvent,
    Event,
    ExecutionFinished,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
    ToolCallEvent,
)
from fumehood.values.requests import ProcessEvent, ProcessExited, ProcessOutput

_CONNECT_SECONDS = 10.0
# A stream sends a line at least every 15 s.
_SILENCE_SECONDS = 60.0
_WRITE_SECONDS = 60.0
_STREAM_TIMES = httpx2.Timeout(_CONNECT_SECONDS, read=_SILENCE_SECONDS, write=_WRITE_SECONDS)
_MAX_CONNECTIONS = 10_000
# More than any line has: all files of a run, and all that it printed.
_MAX_LINE_BYTES = 512 << 20
# By its name on Linux, or on macOS.
_TCP_IDLE: int = getattr(socket, "TCP_KEEPIDLE", None) or socket.TCP_KEEPALIVE  # type: ignore[attr-defined,unused-ignore]
# A machine that vanishes is noticed in half a minute.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, _TCP_IDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
# The extension of a request whose answer is read whole, for transports that can do that in one step.
WHOLE_ANSWER = "fumehood.whole_answer"
# RFC 6455, 7.4.1: the first ends a tunnel whose other end has ended, the second one whose sandbox has.
_NORMAL = 1000
_REFUSED = 1008
_TUNNEL_BYTES = 64 * 1024
# A server also sends no larger piece at a time.
_MAX_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a server.

    Attributes:
        url: Its URL; for a unix socket the part before the path has no meaning.
        token: Its token.
        socket_path: The unix socket that it listens on, or None for TCP.
        is_host: Whether it is a host daemon, which a server asks on behalf of others.
    """

    url: str
    token: str = ""
    socket_path: str | None = None
    is_host: bool = False

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InvalidArgumentError(
                field="url", value=self.url, allowed="http://HOST:PORT or https://HOST"
            )

        # A line break remains from reading the token from a file. The token must not be in a message.
        if not all("!" <= character <= "~" for character in self.token):
            raise InvalidArgumentError(
                field="api_key",
                value="(not shown)",
                allowed="the token alone: printable ASCII without spaces and line breaks",
            )

    @property
    def name(self) -> str:
        """The name of the address in messages; a server's messages reach its clients, which must not see its paths."""
        return "the host of the sandboxes" if self.is_host else self.url

    @property
    def has_tls(self) -> bool:
        """Whether connections use TLS and check the server's certificate."""
        return self.url.startswith("https://")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**headers, carried.HEADER: carried.PARTS} if self.is_host else headers


async def _name_request(request: httpx2.Request) -> None:
    """Gives a request to a host daemon the id and the trace of the current one, so that they belong together."""
    if name := request_id():
        request.headers["X-Request-Id"] = name

    if parent := TRACES.parent():
        request.headers[TRACE_HEADER] = parent


def _trust_in_none() -> ssl.SSLContext:
    """Returns a context without authorities, for addresses without TLS.

    Reading the machine's authorities takes about 35 ms.

    The context accepts no certificate at all.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Carrier(ABC):
    """A transport to a server other than TCP and unix sockets."""

    @abstractmethod
    def transport(self) -> httpx2.AsyncBaseTransport:
        """Returns the HTTP transport, which the caller closes."""

    @abstractmethod
    async def open_socket(self) -> socket.socket:
        """Returns a socket that is connected to the server.

        Raises:
            OSError: The server cannot be reached.
        """


class HttpConnection:
    """The connections of one loop to a server.

    Args:
        address: The address of the server.
        carrier: The transport of requests; None: TCP, or the unix socket of the address.
    """

    def __init__(self, address: ServerAddress, carrier: Carrier | None = None) -> None:
        self.address = address
        self._carrier = carrier
        limits = httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=100)
        self._client = httpx2.AsyncClient(
            base_url=address.url.rstrip("/"),
            headers=address.headers,
            event_hooks={"request": [_name_request] if address.is_host else []},
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=None, write=_WRITE_SECONDS),
            transport=carrier.transport()
            if carrier
            else httpx2.AsyncHTTPTransport(
                verify=True if address.has_tls else _trust_in_none(),
                limits=limits,
                uds=address.socket_path,
                socket_options=None if address.socket_path else _KEEPALIVE,
            ),
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return its answer: a JSON value, or None for an empty one.

        Raises:
            FumehoodError: The server refused, or could not be reached.
        """
        with self._watched():
            response = await self._client.request(method, path, extensions={WHOLE_ANSWER: True}, **options)

        if response.is_error:
            raise await self._refusal_to(f"{method} {path}", response.status_code, response.content)

        return self._value(response.content) if response.content else None

    async def lines(self, method: str, path: str, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request and yield the lines of its answer; leaving early ends its work on the server.

        Raises:
            FumehoodError: The server refused at once or on the way, or broke off.
        """
        headers = {"Accept": "application/x-ndjson", **options.pop("headers", {})}

        async with self.stream(method, path, headers=headers, timeout=_STREAM_TIMES, **options) as response:
            async for text in self._text_lines(response):
                if (line := self._line(text.encode())) is not None:
                    yield line

    async def bursts(
        self, path: str, method: str = "GET", **options: Any
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield the lines of an answer as `lines` does, grouped as they have arrived."""
        headers = {"Accept": "application/x-ndjson"}
        pieces: list[bytes] = []
        held_bytes = 0

        async with self.stream(method, path, headers=headers, timeout=_STREAM_TIMES, **options) as response:
            async for data in response.aiter_bytes():
                pieces.append(data)
                held_bytes += len(data)

                if b"\n" not in data and held_bytes <= _MAX_LINE_BYTES:
                    continue

                *whole, rest = b"".join(pieces).split(b"\n")
                pieces, held_bytes = [rest], len(rest)
                found, refusal = await self._lines_in(whole, held_bytes)

                if found:
                    yield found

                if refusal is not None:
                    raise refusal

    async def _lines_in(
        self, texts: list[bytes], held_bytes: int
    ) -> tuple[list[dict[str, Any]], FumehoodError | None]:
        """Returns the lines up to the first that is a refusal, and the refusal."""
        found: list[dict[str, Any]] = []

        try:
            for text in filter(None, texts):
                if (line := await self._line_of(text)) is not None:
                    found.append(line)
        except FumehoodError as error:
            return found, error

        return found, self._too_long() if held_bytes > _MAX_LINE_BYTES else None

    async def _line_of(self, text: bytes) -> dict[str, Any] | None:
        """Does what `_line` does, in another thread if the line is long."""
        return self._line(text) if len(text) <= SMALL_BYTES else await off_loop("answers", self._line, text)

    def _too_long(self) -> HostUnavailableError:
        reason = f"a line of its answer has more than {_MAX_LINE_BYTES:,} bytes"
        return HostUnavailableError(host=self.address.name, reason=reason, outcome_unknown=True)

    def _line(self, text: bytes) -> dict[str, Any] | None:
        """Returns a line, or None for one that only keeps the connection open."""
        line: dict[str, Any] = self._value(text)

        if line.get("type") == "problem":
            raise error_of(line["problem"])

        return None if line.get("type") == "keepalive" else line

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, past_the_end: tuple[int, ...] = (), **options: Any
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield its answer as it arrives; statuses in `past_the_end` do not raise an error."""
        with self._watched():
            async with self._client.stream(method, path, **options) as response:
                if response.is_error and response.status_code not in past_the_end:
                    body = await response.aread()
                    raise await self._refusal_to(f"{method} {path}", response.status_code, body)

                yield response

    async def tunnel(self, path: str, sandbox_id: str) -> ByteStream:
        """Open a tunnel into a sandbox."""
        url = "ws" + self.address.url.removeprefix("http").rstrip("/") + path
        options: dict[str, Any] = {
            "additional_headers": self.address.headers,
            "compression": None,
            "max_size": _MAX_MESSAGE_BYTES,
            "open_timeout": _CONNECT_SECONDS,
            # A pong behind unread data is not read: a pause would look like a dead connection.
            "ping_interval": None,
        }

        try:
            if self._carrier:
                options["sock"] = await self._carrier.open_socket()
                connection = await connect(url, proxy=None, **options)
            elif self.address.socket_path:
                connection = await unix_connect(self.address.socket_path, url, **options)
            else:
                connection = await connect(url, proxy=None, **options)
                _keep_alive(connection)
        except InvalidStatus as refused:
            raise self._refusal(refused.response.status_code, bytes(refused.response.body or b"")) from None
        except (OSError, InvalidHandshake) as error:
            raise self._unreachable(error, outcome_unknown=False) from None

        return _Tunnel(connection, sandbox_id, self._unreachable)

    async def _text_lines(self, response: httpx2.Response) -> AsyncGenerator[str, None]:
        async for text in response.aiter_lines():
            if text:
                yield text

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turns errors of the transport into errors of ours."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise self._unreachable(error, outcome_unknown=False) from None
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise self._unreachable(error, outcome_unknown=True) from None

    def _unreachable(self, error: Exception, *, outcome_unknown: bool) -> HostUnavailableError:
        reason = str(error) or type(error).__name__
        return HostUnavailableError(host=self.address.name, reason=reason, outcome_unknown=outcome_unknown)

    async def _refusal_to(self, asked: str, status: int, body: bytes) -> FumehoodError:
        """Returns the error for a refusal; a host daemon that does not know what it was asked has another version."""
        problem = _problem_in(body)
        unknown = _unknown_in(problem, asked) if self.address.is_host else ""

        if not unknown:
            return self._refusal(status, body)

        return HostVersionError(
            asked=unknown, host_version=await self._version(), server_version=metadata.version("fumehood")
        )

    async def _version(self) -> str:
        """Returns the version of the server, which each version answers."""
        with suppress(httpx2.HTTPError, httpx2.StreamError, ValueError, KeyError, TypeError):
            answer = await self._client.get("/v1/capacity", extensions={WHOLE_ANSWER: True})
            return str(answer.json()["version"])[:_MAX_VERSION]

        return "of another version"

    def _refusal(self, status: int, body: bytes) -> FumehoodError:
        if (problem := _problem_in(body)) is not None:
            return error_of(problem)

        reason = f"it answered with status {status}, and not as a fumehood server does"
        return HostUnavailableError(host=self.address.name, reason=reason, outcome_unknown=status >= 500)

    def _value(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise HostUnavailableError(
                host=self.address.name, reason="its answer is no JSON", outcome_unknown=True
            ) from None


class _Tunnel(ByteStream):
    """A connection to a port of a sandbox, through the server; an empty message ends one direction."""

    def __init__(
        self, connection: ClientConnection, sandbox_id: str, unreachable: Callable[..., HostUnavailableError]
    ) -> None:
        self._connection = connection
        self._sandbox_id = sandbox_id
        self._unreachable = unreachable
        self._may_write = True
        self._is_closed = False

    async def read(self) -> bytes:
        """Return received bytes.

        Raises:
            HostUnavailableError: The connection to the server broke off: the received bytes may not be all.
        """
        try:
            message = await self._connection.recv()
        except ConnectionClosed as closed:
            code = None if closed.rcvd is None else closed.rcvd.code

            if self._is_closed or code == _NORMAL:
                return b""

            if code == _REFUSED:
                raise SandboxClosedError(sandbox_id=self._sandbox_id, reason="died") from None

            raise self._unreachable(closed, outcome_unknown=True) from None

        return message if isinstance(message, bytes) else message.encode()

    async def write(self, data: bytes) -> None:
        if not self._may_write:
            raise BrokenPipeError("the direction was ended")

        try:
            for start in range(0, len(data), _TUNNEL_BYTES):
                await self._connection.send(data[start : start + _TUNNEL_BYTES])
        except ConnectionClosed:
            raise BrokenPipeError("the other side takes no more") from None

    async def end(self) -> None:
        if self._may_write:
            self._may_write = False

            try:
                await self._connection.send(b"")
            except ConnectionClosed:
                return

    async def close(self) -> None:
        self._may_write = False
        self._is_closed = True
        await self._connection.close()


def _keep_alive(connection: ClientConnection) -> None:
    sock = connection.transport.get_extra_info("socket")

    for option in _KEEPALIVE:
        sock.setsockopt(*option)


def query_of(**values: object) -> Mapping[str, str]:
    """Return a query without parameters of the value None."""
    return {name: str(value) for name, value in values.items() if value is not None}


_EVENTS: dict[str, type[Event]] = {
    "started": ExecutionStarted,
    "stdout": StdoutEvent,
    "stderr": StderrEvent,
    "result": ResultEvent,
    "clear_output": ClearOutputEvent,
    "error": ErrorEvent,
    "input_request": InputRequestEvent,
    "tool_call": ToolCallEvent,
    "comm": CommEvent,
    "commit_request": CommitRequestEvent,
    "finished": ExecutionFinished,
}


def event_of(line: dict[str, Any]) -> Event:
    """Returns the event of a line; raises DataError for any other line."""
    kind = _EVENTS.get(str(line.get("type")))

    if kind is None:
        raise DataError(f"a line of type {line.get('type')!r} is not known")

    return read_value(kind, line)


def process_event_of(line: dict[str, Any]) -> ProcessEvent:
    """Returns the event of a command in a line; raises DataError for any other line."""
    kind = line.get("type")

    if kind == "exited":
        return read_value(ProcessExited, line)

    if kind not in ("stdout", "stderr", "pty"):
        raise DataError(f"a line of type {kind!r} is not known")

    skipped_bytes = line.get("skipped_bytes", 0)

    if not isinstance(skipped_bytes, int) or skipped_bytes < 0:
        raise DataError("the number of bytes that a line left out is malformed")

    if isinstance(text := line.get("text"), str):
        return ProcessOutput(stream=kind, data=text.encode(), skipped_bytes=skipped_bytes)

    try:
        data = base64.b64decode(str(line.get("data")), validate=True)
    except (ValueError, binascii.Error):
        raise DataError("a line has neither text nor bytes") from None

    return ProcessOutput(stream=kind, data=data, skipped_bytes=skipped_bytes)


# Error codes of a server for a sandbox that does not live.
GONE = (SandboxNotFoundError, SandboxClosedError, ProtocolViolationError)
_MAX_TEXT = 10_000
_MAX_VERSION = 100
# The codes of a server that has no such route, or none for the method.
_UNKNOWN_ROUTES = ("not_found", "method_not_allowed")
# The reason that a server gives for a field that it does not know.
UNKNOWN_FIELD = "there is no such field"
# The errno of classes that have only one. Servers of version 0.1.0 send none.
_ERRNO: Mapping[str, int] = {
    "path_not_found": errno.ENOENT,
    "path_exists": errno.EEXIST,
    "path_is_directory": errno.EISDIR,
    "path_not_directory": errno.ENOTDIR,
    "path_permission": errno.EACCES,
    "disk_full": errno.ENOSPC,
    "process_not_found": errno.ESRCH,
    "port_closed": errno.ECONNREFUSED,
}


def _problem_in(body: bytes) -> dict[str, Any] | None:
    """Returns the problem details in the body of a refusal; None for what no fumehood server sends."""
    try:
        problem = json.loads(body)
    except ValueError:
        return None

    return problem if isinstance(problem, dict) and "code" in problem else None


def _unknown_in(problem: Mapping[str, Any] | None, asked: str) -> str:
    """Returns the route or the fields that a server does not know, by its refusal; "" for any other refusal."""
    if problem is None:
        return ""

    if problem["code"] in _UNKNOWN_ROUTES:
        return asked

    fields = problem.get("fields")
    faults = fields.get("faults") if isinstance(fields, dict) else None

    if problem["code"] != InvalidArgumentError.code or not isinstance(faults, list):
        return ""

    unknown = [
        str(fault.get("field", ""))[:_MAX_TEXT]
        for fault in faults
        if isinstance(fault, dict) and fault.get("reason") == UNKNOWN_FIELD
    ]
    return f"{', '.join(unknown)} of {asked}" if unknown else ""


def error_of(problem: Mapping[str, Any]) -> FumehoodError:
    """Returns the error that a body of problem details describes."""
    code = str(problem.get("code", ""))
    detail = str(problem.get("detail", ""))[:_MAX_TEXT]
    fields = problem.get("fields")
    given = fields if isinstance(fields, dict) else {}

    if code == InvalidArgumentError.code and "field" not in given:
        # The server's own check of the form of a request names what is wrong in a list.
        return InvalidArgumentError(field="request", value=detail, allowed="what the server describes")

    kind = _kinds().get(code, ServiceError)
    error = kind.__new__(kind, detail)
    error.args = (detail,)
    error.message = detail
    error.hint = str(problem.get("hint", ""))[:_MAX_TEXT]
    error.outcome_unknown = problem.get("outcome_unknown") is True

    for name, value in given.items():
        if not hasattr(kind, name):
            setattr(error, name, value)

    if isinstance(error, OSError):
        error.errno = _errno_of(code, given.get("errno"))

    return error


def _errno_of(code: str, given: object) -> int | None:
    """Returns the errno of an error: that of its class or, where the class has none, that of the server."""
    if isinstance(given, bool) or not isinstance(given, int) or given not in errno.errorcode:
        return _ERRNO.get(code)

    return _ERRNO.get(code, given)


@cache
def _kinds() -> dict[str, type[FumehoodError]]:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return {kind.code: kind for kind in kinds if issubclass(kind, FumehoodError)}


_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def sandbox_path(sandbox_id: str, *parts: str) -> str:
    """Returns the path of a part of a sandbox.

    Raises:
        SandboxNotFoundError: The text cannot be the id of a sandbox.
    """
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        # In a path such a name might lead elsewhere.
        raise SandboxNotFoundError(sandbox_id=sandbox_id)

    return "/".join(["/v1/sandboxes", quoted(sandbox_id), *map(quoted, parts)])


def quoted(part: str) -> str:
    """Returns a name as one part of a path.

    Raises:
        InvalidArgumentError: The name is `.` or `..`, which would change the path of the request.
    """
    if part in (".", ".."):
        raise InvalidArgumentError(field="name", value=part, allowed="a name that is neither '.' nor '..'")

    return quote(part, safe="")
