"""What is fed, from what it begins, and what it may raise: everything of the host that reads what others wrote."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz import links
from tests.fuzz.mutation import mutated
from tests.fuzz.recording import Message
from tests.unit.egress.test_client_hello import hello
from tests.unit.wire.conftest import SAMPLES, VALUES
from tests.unit.wire.test_fuzz import MUTATIONS

from fumehood.dialects.e2b import (
    build_steps,
    builds,
    control,
    creation,
    file_messages,
    interpreter,
    process_messages,
)
from fumehood.dialects.e2b.bodies import _unpacked, read_object
from fumehood.dialects.e2b.connect import frame, frames
from fumehood.dialects.e2b.messages import ClientMessage as E2BMessage
from fumehood.dialects.jupyter.messages import compose, decode_default, decode_v1, encode_default, encode_v1
from fumehood.egress.client_hello import HelloError, read_client_hello
from fumehood.egress.http_messages import (
    HEAD_END,
    HeadError,
    RequestHead,
    read_request_head,
    send_body,
    target_of_absolute,
)
from fumehood.egress.pipes import Pipe, PipeEndError, PipeReader, TooLongError
from fumehood.egress.socks import SocksError, read_greeting, read_request
from fumehood.errors import FumehoodError
from fumehood.server.json_bodies import read_fields
from fumehood.server.uploads import form_parts
from fumehood.values.domain_names import TargetError, read_authority
from fumehood_wire.frames import encode
from fumehood_wire.init_messages import INIT_TO_HOST
from fumehood_wire.messages import CHECKPOINT_TO_HOST, CONTEXT_TO_HOST

_E2B_MODULES = (builds, build_steps, control, creation, file_messages, interpreter, process_messages)
_E2B_MESSAGES = sorted(
    {
        one
        for module in _E2B_MODULES
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, E2BMessage)
    },
    key=lambda one: one.__name__,
)

Feed = Callable[[bytes, str], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that reads.

    Attributes:
        name: What it is.
        seeds: Whole messages, and of which kind each is.
        feed: Reads one, and says in a word what came of it.
        refusals: What it may raise.
        is_framed: Whether a message is a frame of the wire, whose parts can be damaged each by itself.
    """

    name: str
    seeds: list[tuple[bytes, str]]
    feed: Feed
    refusals: tuple[type[Exception], ...] = ()
    is_framed: bool = False

    async def case(self, dice: random.Random) -> str:
        """Feeds one mutant."""
        seed, kind = dice.choice(self.seeds)
        data = _mutated_frame(dice, seed) if self.is_framed and dice.random() < 0.7 else mutated(dice, seed)
        try:
            return await self.feed(data, kind)
        except self.refusals as error:
            return type(error).__name__
        except Exception as error:
            error.add_note(f"{self.name} ({kind}) was fed {data!r}")
            raise


def targets(recorded: dict[str, list[Message]]) -> list[Target]:
    """Returns all, with what was recorded among their seeds."""
    packets = links.Packets()
    return [
        Target(
            name="context", seeds=_context_seeds(recorded["context"]), feed=links.feed_context, is_framed=True
        ),
        Target(name="init", seeds=_init_seeds(recorded["init"]), feed=links.feed_init, is_framed=True),
        Target(
            name="checkpoint",
            seeds=_checkpoint_seeds(recorded["checkpoint"]),
            feed=links.feed_checkpoint,
            is_framed=True,
        ),
        Target(name="jail init and zygote", seeds=_PACKETS, feed=packets.feed),
        Target(name="egress HTTP", seeds=_with(_HEADS, "head"), feed=_feed_head, refusals=_EGRESS),
        Target(name="egress TLS", seeds=_HELLOS, feed=_feed_hello, refusals=(HelloError,)),
        Target(name="egress SOCKS", seeds=_with(_SOCKS, "socks"), feed=_feed_socks, refusals=_EGRESS),
        Target(name="names", seeds=_with(_NAMES, "name"), feed=_feed_name, refusals=(TargetError,)),
        Target(name="E2B frames", seeds=_with(_CONNECT, "frames"), feed=_feed_connect, refusals=_OURS),
        Target(name="JSON bodies", seeds=_with(_BODIES, "body"), feed=_feed_fields, refusals=_OURS),
        Target(name="forms", seeds=_with(_FORMS, "form"), feed=_feed_form, refusals=_OURS),
        Target(name="gzip", seeds=_with(_GZIP, "gzip"), feed=_feed_gzip, refusals=_OURS),
        Target(name="Jupyter frames", seeds=_JUPYTER, feed=_feed_jupyter, refusals=_OURS),
    ]


def _mutated_frame(dice: random.Random, stream: bytes) -> bytes:
    """Damages the parts of the first frame, whose lengths stay right unless they are what is damaged."""
    header_size, payload_size = struct.unpack_from("!II", stream)
    header, rest = stream[8 : 8 + header_size], stream[8 + header_size :]
    return dice.choice(MUTATIONS)(dice, header, rest[:payload_size]) + rest[payload_size:]


def _with(messages: tuple[bytes, ...], kind: str) -> list[tuple[bytes, str]]:
    return [(message, kind) for message in messages]


# -- what guests say


def _context_seeds(recorded: list[Message]) -> list[tuple[bytes, str]]:
    messages = [(sample.header, sample.payload) for sample in SAMPLES if sample.table is CONTEXT_TO_HOST]
    return [
        (encode(links.for_context(header), payload), header["type"])
        for header, payload in (*messages, *recorded)
    ]


def _init_seeds(recorded: list[Message]) -> list[tuple[bytes, str]]:
    numbers = {f"reply-{verb}": number for number, verb in enumerate(VALUES, 1)}
    messages = [
        ({**sample.header, "id": numbers.get(sample.name, 1)} if sample.header["type"] == "reply" else sample.header,
         sample.payload)
        for sample in SAMPLES
        if sample.table is INIT_TO_HOST
    ]  # fmt: skip
    return [(encode(header, payload), header["type"]) for header, payload in (*messages, *recorded)]


def _checkpoint_seeds(recorded: list[Message]) -> list[tuple[bytes, str]]:
    messages = [(sample.header, sample.payload) for sample in SAMPLES if sample.table is CHECKPOINT_TO_HOST]
    whole = [(encode(header, payload), header["type"]) for header, payload in (*messages, *recorded)]
    by_type = {kind: data for data, kind in whole}
    return [*whole, (by_type["kept"] + by_type["revived"] + by_type["ended"], "life")]


_PACKETS = [
    (json.dumps(packet).encode(), speaker)
    for speaker, packet in (
        ("jail_init", {"type": "exited", "sandbox": 1, "status": 0}),
        ("jail_init", {"type": "failed", "sandbox": 1, "errno": 12, "detail": "Cannot allocate memory"}),
        ("zygote", {"type": "ready", "python": "3.11.7", "threads": 1}),
        ("zygote", {"type": "context_exited", "number": 1, "status": -9}),
        ("zygote", {"type": "context_failed", "number": 2, "errno": 11, "detail": "Try again"}),
    )
]

# -- what goes out through the proxy

_EGRESS = (HeadError, TargetError, SocksError, PipeEndError, TooLongError)
_HEADS = (
    b"GET http://api.example.com/a?b=c HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n",
    b"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\n\r\nhello",
    b"POST http://[::1]:80/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
    b"PUT http://10.0.0.1:8080/x HTTP/1.0\r\nExpect: 100-continue\r\nConnection: close, x\r\n\r\n",
)
_SOCKS = (
    b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb",
    b"\x05\x02\x00\x02\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
    b"\x05\x01\x00\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50",
)
_NAMES = (
    b"api.example.com:443",
    b"[2001:db8::1]:80",
    b"10.0.0.1",
    b"xn--mnchen-3ya.de:8080",
    b"*.example.org:443",
)
_HELLOS = [(hello("api.example.com"), "hello"), (hello(None), "hello")]


class _Memory(Pipe):
    """A pipe whose other end has said everything already."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    async def receive(self) -> bytes:
        data, self._data = self._data[:1000], self._data[1000:]
        return data

    async def send(self, data: bytes) -> None:
        assert len(data) <= 1 << 17

    async def end(self) -> None:
        return


async def _feed_head(data: bytes, _kind: str) -> str:
    head_bytes, end, rest = data.partition(HEAD_END)
    head: RequestHead = read_request_head(head_bytes + end)

    if head.method == "CONNECT":
        read_authority(head.target, 443)
    else:
        target_of_absolute(head)

    await send_body(PipeReader(_Memory(rest)), head, _Memory(), _uncounted)
    return "taken"


async def _uncounted(_bytes: int) -> None:
    return


async def _feed_hello(data: bytes, _kind: str) -> str:
    return "waiting" if read_client_hello(data) is None else "taken"


async def _feed_socks(data: bytes, _kind: str) -> str:
    incoming = PipeReader(_Memory(data))
    await read_greeting(incoming)
    await read_request(incoming)
    return "taken"


async def _feed_name(data: bytes, _kind: str) -> str:
    read_authority(data.decode("latin-1"), 443)
    return "taken"


# -- what comes over HTTP

_OURS = (FumehoodError,)
_OBJECT = {
    "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {"A": "b"}, "cwd": "/home/user"},
    "timeoutMs": 1000,
    "pty": {"size": {"cols": 80, "rows": 24}},
    "stdin": True,
    "input": {"stdin": "aGVsbG8="},
}
_CONNECT = (frame(_OBJECT), frame({"a": 1}) + frame({"b": [1.5, None]}), frame({}))
_BODIES = (
    json.dumps(_OBJECT).encode(),
    b'{"templateID":"base","timeout":300,"metadata":{"a":"b"},"secure":true}',
    b"",
)
_FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
_FORMS = (
    _FORM_HEAD + b"hello\r\n--b--\r\n",
    _FORM_HEAD + b"one\r\n" + _FORM_HEAD.replace(b"file", b"other") + bytes(2000) + b"\r\n--b--\r\n",
)
_GZIP = (gzip.compress(b"hello" * 100), gzip.compress(bytes(1 << 20)))


async def _stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 700):
        yield data[at : at + 700]


async def _feed_connect(data: bytes, _kind: str) -> str:
    async for message in frames(_stream(data)):
        _read_as_each(message)

    return "taken"


async def _feed_fields(data: bytes, _kind: str) -> str:
    _read_as_each(read_object(data))
    return "taken"


def _read_as_each(values: dict[str, Any]) -> None:
    """Reads an object as every message of E2B: each may be what a client sends."""
    for kind in _E2B_MESSAGES:
        with contextlib.suppress(FumehoodError):
            read_fields(kind, values)


async def _feed_form(data: bytes, _kind: str) -> str:
    total = 0

    async for part in form_parts("multipart/form-data; boundary=b", _stream(data)):
        async for piece in part.pieces:
            total += len(piece)

    assert total <= len(data)
    return "taken"


async def _feed_gzip(data: bytes, _kind: str) -> str:
    async for piece in _unpacked(_stream(data)):
        assert len(piece) <= 1 << 20

    return "taken"


_MESSAGE = compose("shell", "execute_request", {"code": "1", "silent": False}, session="s")
_JUPYTER: list[tuple[bytes, str]] = [
    (str(encode_default(_MESSAGE)).encode(), "text"),
    (b"\0\0\0\2\0\0\0\x0c\0\0\0\x60" + str(encode_default(_MESSAGE)).encode() + b"buffer", "default"),
    (encode_v1(_MESSAGE), "v1"),
]


async def _feed_jupyter(data: bytes, kind: str) -> str:
    if kind == "text":
        decode_default(data.decode("utf-8", "replace"))
    elif kind == "default":
        decode_default(data)
    else:
        decode_v1(data)

    return "taken"
