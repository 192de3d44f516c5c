"""H11: mutated messages, thousands of them, through all that the host does with a frame.

Seeded, so that a failure can be repeated. Each mutant starts from a real message. `make fuzz` sends tens of thousands.
"""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

from fumehood_wire.frames import CODES, Decoder, Header, ProtocolError, encode
from fumehood_wire.init_messages import INIT_TO_HOST, check_value
from fumehood_wire.messages import (
    CONTEXT_TO_HOST,
    check,
    parse_traceback,
    read_text,
    split_parts,
)
from fumehood_wire.payloads import parse_comm, parse_matches, split_comm
from fumehood_wire.states import Conversation

MUTANTS = 30_000 if os.environ.get("EVERY_CASE") else 6_000
SEED = 20_250_101

NASTY = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"9" * 25,
    b"18446744073709551616",
    b"true",
    b"null",
    b'""',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\x00"',
    b'"\xff"',
    b'"' + b"x" * 5000 + b'"',
    b"[" * 40 + b"]" * 40,
    b"[" * 2000,
    b'{"a":1,"a":2}',
    b"[" + b"0," * 3000 + b"0]",
    b'"type":"stream",',
    b"//",
]

Mutation = Callable[[random.Random, bytes, bytes], bytes]


def frame(header: bytes, payload: bytes) -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


def flip_bytes(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    data = bytearray(frame(header, payload))

    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)

    return bytes(data)


def flip_header(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    data = bytearray(header)
    data[rng.randrange(len(data))] = rng.choice(b'"\\{}[],:0129eE-.tfn\0\xff ')
    return frame(bytes(data), payload)


def cut_header(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    start, end = sorted(rng.choices(range(len(header) + 1), k=2))
    return frame(header[:start] + header[end:], payload)


def repeat_header(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    start, end = sorted(rng.choices(range(len(header) + 1), k=2))
    return frame(header[:end] + header[start:end] * rng.randint(1, 30) + header[end:], payload)


def insert_nasty(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    at = rng.randrange(len(header) + 1)
    return frame(header[:at] + rng.choice(NASTY) + header[at:], payload)


def replace_value(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    fields = json.loads(header)
    name = rng.choice(list(fields))
    parts = [
        json.dumps(key).encode() + b":" + json.dumps(value).encode()
        for key, value in fields.items()
        if key != name
    ]
    parts.insert(rng.randrange(len(parts) + 1), json.dumps(name).encode() + b":" + rng.choice(NASTY))
    return frame(b"{" + b",".join(parts) + b"}", payload)


def replace_header(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    if rng.random() < 0.01:
        return frame(b"[" + b"0," * 100_000 + b"0]", payload)

    return frame(
        rng.choice([b"[" + header + b"]", b'{"a":' + header + b"}", b"null", b"7", b'""', b""]), payload
    )


def change_types(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    fields = json.loads(header)
    name = rng.choice([key for key in fields if key != "type"] or ["type"])
    fields[name] = rng.choice(
        [True, False, None, 0, -1, 1, 2**62, 0.5, "", "x", [], [[]], {}, [["text/plain", 1]], name]
    )
    return encode(fields, payload)


def change_payload(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    changed = rng.choice(
        [b"", payload[:-1], payload + b"\xff", payload * 2, b"[" * 100, b"[1]", b'["\\ud800"]']
    )
    return frame(header, changed)


def lie_about_length(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    lengths = [0, 1, len(header), len(payload), len(header) + 1, 2**20, 2**20 + 1, 2**24, 2**31, 2**32 - 1]
    return struct.pack("!II", rng.choice(lengths), rng.choice(lengths)) + header + payload


def keep(rng: random.Random, header: bytes, payload: bytes) -> bytes:
    return frame(header, payload)


QUESTIONS = {f"{name}_reply": f"{name}_request" for name in ("complete", "inspect", "is_complete")}
MUTATIONS: list[Mutation] = [
    flip_bytes,
    flip_header,
    cut_header,
    repeat_header,
    insert_nasty,
    replace_value,
    replace_header,
    change_types,
    change_payload,
    lie_about_length,
    keep,
]


class HostSide:
    """All that the host does with the bytes of one channel, up to the values that it hands on."""

    def __init__(self, request: str = "execute_request") -> None:
        self.decoder = Decoder()
        self.conversation = Conversation("f81d4fae7dec11d0")
        self.request = request

    def receive(self, data: bytes) -> int:
        """Take bytes and return the number of messages that were accepted."""
        received = self.decoder.feed(data)

        for header, payload in received:
            if header["type"] in INIT_TO_HOST:
                self.accept_from_init(header, payload)
            else:
                self.accept_from_context(header, payload)

        return len(received)

    def accept_from_init(self, header: Header, payload: bytes) -> None:
        check(INIT_TO_HOST, header, payload)

        if header["type"] == "reply" and header["ok"]:
            check_value("stat", header["value"])

    def accept_from_context(self, header: Header, payload: bytes) -> None:
        check(CONTEXT_TO_HOST, header, payload)
        self.conversation.received(header)

        if header["type"] == "status":
            request = {"type": self.request, "id": self.conversation.next_id, "allow_stdin": True}
            self.conversation.sent(request)
        elif header["type"] == "complete_reply":
            assert all(isinstance(match, str) for match in parse_matches(payload))
        elif "comm_id" in header:
            content, buffers = split_comm(header, payload)
            assert content + b"".join(buffers) == payload
            assert all(isinstance(value, dict) for value in parse_comm(content))
        elif "parts" in header:
            parts = split_parts(header, payload)
            assert b"".join(content for _, content in parts) == payload
        elif header["type"] == "error":
            assert all(isinstance(line, str) for line in parse_traceback(payload))
        else:
            read_text(payload)


def send_mutant(rng: random.Random, sample: Any, mutation: Mutation, seen: Counter[str]) -> None:
    header = encode(sample.header)[8:]
    data = mutation(rng, header, sample.payload)
    side = HostSide(QUESTIONS.get(sample.header["type"], "execute_request"))
    accepted = 0
    try:
        side.receive(encode({"type": "status", "state": "ready", "pid": 2}))
        cut = rng.randrange(len(data) + 1)
        accepted += side.receive(data[:cut])
        accepted += side.receive(data[cut:])
    except ProtocolError as error:
        seen[error.code] += 1
    else:
        seen["accepted" if accepted else "waiting"] += 1


def test_only_protocol_errors_escape(samples: list[Any]) -> None:
    """Every mutant is accepted, waited for or refused with a code; nothing else happens or piles up."""
    rng = random.Random(SEED)
    said_by_guests = [sample for sample in samples if sample.table in (CONTEXT_TO_HOST, INIT_TO_HOST)]
    seen: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for _ in range(MUTANTS):
            send_mutant(rng, rng.choice(said_by_guests), rng.choice(MUTATIONS), seen)

        left_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert seen.total() == MUTANTS
    # No rule was out of reach, and what was harmless was let through.
    assert seen.keys() == {*CODES, "accepted", "waiting"}
    assert seen["accepted"] > MUTANTS / 20
    assert left_bytes < 1 << 20
    assert peak_bytes < 4 << 20


def test_nothing_after_a_fault_is_read(samples: list[Any]) -> None:
    """A stream of real messages with a fault in it is read up to the fault, in any pieces, and no further."""
    rng = random.Random(SEED)

    for _ in range(200):
        before = [encode(sample.header, sample.payload) for sample in rng.choices(samples, k=20)]
        fault = frame(rng.choice([b"[]", b"{}", b'{"type":NaN}', b"\xff"]), b"x")
        stream = b"".join([*before, fault, *before])
        decoder = Decoder()
        count = 0
        codes = set()

        for start in range(0, len(stream), step := rng.randint(1, 700)):
            try:
                count += len(decoder.feed(stream[start : start + step]))
            except ProtocolError as error:
                codes.add(error.code)

        assert len(codes) == 1
        assert count <= len(before)
        assert decoder.pending_bytes == 0
