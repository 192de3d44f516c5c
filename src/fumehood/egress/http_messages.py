"""A request to the proxy: its head parsed strictly and rewritten, its body carried to its end and no further.

A form that two parsers could read differently is refused and not repaired: line ends without a carriage return, folded
lines, contradicting lengths, a Host that is not the target. Chunks are rewritten: extensions between a size and the
end of its line are not passed on, and a body that breaks the rules ends the connection.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fumehood.egress.pipes import PIECE_BYTES, Pipe, PipeEndError, PipeReader
from fumehood.values.domain_names import Target, TargetError, read_authority

MAX_HEAD_BYTES = 1 << 15
HEAD_END = b"\r\n\r\n"
_MAX_HEADERS = 200
_TOKEN = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_REQUEST_LINE = re.compile(rb"(%s) ([\x21-\x7e]+) HTTP/1\.([01])" % _TOKEN)
# Possessive: a line that fails at its end would otherwise be matched again from each of its spaces.
_HEADER_LINE = re.compile(rb"(%s):[ \t]*+([\x20-\x7e\x80-\xff\t]*+)" % _TOKEN)
_LENGTH = re.compile(rb"[0-9]{1,18}")
# They would show the guest a secret that was added.
_ECHOING = (b"TRACE", b"TRACK")
_METHOD = re.compile(r"[A-Za-z]{1,20}")
# Headers of one hop (RFC 9110, section 7.6.1), and those that would change the protocol.
_HOP_BY_HOP = {
    "connection",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


class HeadError(ValueError):
    """The request is ambiguous or malformed."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of one request.

    Attributes:
        method: Its method.
        target: Its request target, as it was written.
        headers: Names in lower case, and values.
        body_bytes: The length of its body; None: it comes in chunks.
        expects_continue: Whether the client waits for `100 Continue` before it sends the body.
        is_old: Whether it is HTTP/1.0, and so may not understand an answer in chunks.
    """

    method: str
    target: str
    headers: tuple[tuple[str, bytes], ...] = field(repr=False)
    body_bytes: int | None
    expects_continue: bool
    is_old: bool

    def hosts(self) -> list[str]:
        """Returns the values of its Host headers."""
        return [value.decode("latin-1") for name, value in self.headers if name == "host"]


def read_request_head(data: bytes) -> RequestHead:
    """Returns the head in `data`, which ends with the empty line.

    Raises:
        HeadError: The head is malformed or ambiguous.
    """
    lines = data.removesuffix(HEAD_END).split(b"\r\n")
    first = _REQUEST_LINE.fullmatch(lines[0])

    if first is None or not _METHOD.fullmatch(first[1].decode("ascii")):
        raise HeadError("the request line is malformed")

    if first[1].upper() in _ECHOING:
        raise HeadError("a method that has a server repeat the request")

    # In other spellings, or with a path, servers differ in its meaning: for some it has no body.
    if first[1].upper() == b"CONNECT" and (first[1] != b"CONNECT" or b"/" in first[2]):
        raise HeadError("a CONNECT in another form than CONNECT NAME:PORT")

    if len(lines) > _MAX_HEADERS:
        raise HeadError(f"more than {_MAX_HEADERS} headers")

    headers = tuple(_read_header(line) for line in lines[1:])
    named: dict[str, list[bytes]] = {}

    for name, value in headers:
        named.setdefault(name, []).append(value)

    if len(named.get("host", ())) > 1:
        raise HeadError("more than one Host header")

    return RequestHead(
        method=first[1].decode("ascii"),
        target=first[2].decode("ascii"),
        headers=headers,
        body_bytes=_body_bytes(named, is_old=first[3] == b"0"),
        expects_continue=_expects_continue(named),
        is_old=first[3] == b"0",
    )


def target_of_absolute(head: RequestHead) -> tuple[Target, str]:
    """Returns the target of a request in absolute form, and the path to request there.

    Raises:
        HeadError: The target has another form, or the Host header names another host.
    """
    if not head.target.startswith("http://"):
        if head.target.startswith("/"):
            raise HeadError("this is a proxy and no web server: ask for http://NAME/, or CONNECT NAME:PORT")

        raise HeadError("only http:// is asked for in this form; for https, CONNECT NAME:443")

    if "#" in head.target or "\\" in head.target:
        raise HeadError("the address has a fragment or a backslash")

    authority, slash, rest = head.target.removeprefix("http://").partition("/")

    if "?" in authority:
        raise HeadError("a path is missing before the question mark")

    target = _read_target(authority, 80)
    check_host(head, target, 80)
    return target, f"{slash}{rest}" or "/"


def check_host(head: RequestHead, target: Target, default_port: int) -> None:
    """Checks the Host header, where there is one, against the target.

    Raises:
        HeadError: The head names another host or port.
    """
    for text in head.hosts():
        if _read_target(text, default_port) != target:
            raise HeadError(f"the Host header does not name {target.authority}, to which this request goes")


def path_of_origin(head: RequestHead) -> str:
    """Returns the path of a request in origin form, as a server receives it.

    Raises:
        HeadError: The target has another form, or there is no Host header.
    """
    if not head.target.startswith("/") or "#" in head.target:
        raise HeadError("inside of a tunnel only a path is asked for")

    if not head.hosts():
        raise HeadError("the Host header is missing")

    return head.target


def write_request_head(
    head: RequestHead, target: Target, path: str, default_port: int, injected: Mapping[str, str]
) -> bytes:
    """Returns the head that is sent to the server: of this request alone, with secrets in place of the guest's headers.

    Args:
        head: The head from the guest.
        target: The server.
        path: The path to request there.
        default_port: The port that Host need not name.
        injected: Headers that the policy adds.
    """
    host = target.bracketed if target.port == default_port else target.authority
    replaced = {name.lower() for name in injected} | {"host"}
    version = "1.0" if head.is_old else "1.1"
    lines = [f"{head.method} {path} HTTP/{version}", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in injected.items()]

    if head.body_bytes is None:
        lines.append("Transfer-Encoding: chunked")

    raw = [line.encode("latin-1") for line in lines]
    raw += [b"%s: %s" % (name.encode(), value) for name, value in _passed_on(head) if name not in replaced]
    return b"\r\n".join(raw) + HEAD_END


def _passed_on(head: RequestHead) -> Iterable[tuple[str, bytes]]:
    named: set[str] = set()

    for name, value in head.headers:
        if name == "connection":
            named.update(part.strip().lower() for part in value.decode("latin-1").split(","))

    # The server must know where the body ends, even if the guest names the length as a hop-by-hop header.
    dropped = _HOP_BY_HOP | (named - {"content-length"})
    return [(name, value) for name, value in head.headers if name not in dropped]


def _read_header(line: bytes) -> tuple[str, bytes]:
    match = _HEADER_LINE.fullmatch(line)

    if match is None:
        raise HeadError("a header line is malformed")

    return match[1].decode("ascii").lower(), match[2].rstrip(b" \t")


def _body_bytes(named: Mapping[str, list[bytes]], is_old: bool) -> int | None:
    lengths, encodings = named.get("content-length", []), named.get("transfer-encoding", [])

    if lengths and encodings:
        raise HeadError("both Content-Length and Transfer-Encoding")

    if encodings:
        if [value.lower() for value in encodings] != [b"chunked"] or is_old:
            raise HeadError("a Transfer-Encoding other than chunked")

        return None

    if not lengths:
        return 0

    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HeadError("a Content-Length that is no number, or more than one")

    return int(lengths[0])


def _expects_continue(named: Mapping[str, list[bytes]]) -> bool:
    expected = named.get("expect", [])

    if expected and [value.lower() for value in expected] != [b"100-continue"]:
        raise HeadError("an expectation other than 100-continue")

    return bool(expected)


def _read_target(text: str, default_port: int) -> Target:
    try:
        return read_authority(text, default_port)
    except TargetError as error:
        raise HeadError(f"the host that is asked for is {error}") from None


_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})\r\n")
_MAX_SIZE_LINE_BYTES = 16
_MAX_TRAILER_BYTES = 1 << 13
_LAST_CHUNK = b"0\r\n\r\n"


async def send_body(
    incoming: PipeReader, head: RequestHead, upstream: Pipe, count: Callable[[int], Awaitable[None]]
) -> None:
    """Carries the body of one request.

    Args:
        incoming: Reads the body.
        head: The head of the request, which determines the length of the body.
        upstream: Receives the body.
        count: Called with the number of bytes of each piece; it may wait.

    Raises:
        HeadError: The body breaks the rules of its encoding.
        PipeEndError: The body ends too early.
    """
    if head.body_bytes is not None:
        await _copy(incoming, head.body_bytes, upstream, count)
        return

    while size := await _chunk_size(incoming):
        await upstream.send(b"%x\r\n" % size)
        await _copy(incoming, size, upstream, count)

        if await incoming.take(2) != b"\r\n":
            raise HeadError("a chunk that does not end where it should")

        await upstream.send(b"\r\n")

    await _drop_trailer(incoming)
    await upstream.send(_LAST_CHUNK)


async def _copy(
    incoming: PipeReader, left: int, upstream: Pipe, count: Callable[[int], Awaitable[None]]
) -> None:
    while left:
        data = await incoming.take_some(min(left, PIECE_BYTES))

        if not data:
            raise PipeEndError

        await upstream.send(data)
        await count(len(data))
        left -= len(data)


async def _chunk_size(incoming: PipeReader) -> int:
    line = _CHUNK_SIZE.fullmatch(await incoming.take_through(b"\r\n", _MAX_SIZE_LINE_BYTES))

    if line is None:
        raise HeadError("the size of a chunk is malformed")

    return int(line[1], 16)


async def _drop_trailer(incoming: PipeReader) -> None:
    taken = 0

    while (line := await incoming.take_through(b"\r\n", _MAX_TRAILER_BYTES)) != b"\r\n":
        taken += len(line)

        if taken > _MAX_TRAILER_BYTES:
            raise HeadError("the end of the body is too long")
