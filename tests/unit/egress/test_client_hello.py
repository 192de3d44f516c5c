"""N08: the name in the first message of a TLS client, however it is cut, and never a crash over what is none."""

from __future__ import annotations

import random
import ssl

import pytest

from fumehood.egress.client_hello import HelloError, begins_tls, read_client_hello


def hello(name: str | None) -> bytes:
    """A real client's first bytes."""
    context = ssl.create_default_context()
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)

    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()

    return outgoing.read()


def in_records(data: bytes, size: int) -> bytes:
    """The same message spread over records of so many bytes."""
    body = data[5:]
    cut = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part for part in cut)


def with_extension(data: bytes, kind: int, body: bytes) -> bytes:
    """The same message with one more extension at its end."""
    extension = kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body
    message = data[9:]
    at = 34
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    length = int.from_bytes(message[at : at + 2], "big") + len(extension)
    message = message[:at] + length.to_bytes(2, "big") + message[at + 2 :] + extension
    handshake = b"\x01" + len(message).to_bytes(3, "big") + message
    return data[:3] + len(handshake).to_bytes(2, "big") + handshake


@pytest.mark.parametrize("name", ["example.com", "a.b.c.example.org", None])
def test_the_name_is_read(name):
    """As a real client sends it, and none where there is none."""
    data = hello(name)
    assert begins_tls(data)
    found = read_client_hello(data)
    assert found is not None
    assert (found.server_name, found.hides_name) == (name, False)


@pytest.mark.parametrize("size", [10, 11, 13, 50, 300])
def test_it_may_come_in_any_pieces(size):
    """Records as small as may be; until the last byte is there, more is asked for."""
    data = in_records(hello("example.com"), size)
    found = read_client_hello(data)
    assert found is not None
    assert found.server_name == "example.com"
    assert all(read_client_hello(data[:end]) is None for end in range(len(data)))


def test_it_does_not_come_in_endless_pieces():
    """With each byte that comes all is read again."""
    with pytest.raises(HelloError):
        read_client_hello(in_records(hello("example.com"), 1))

    with pytest.raises(HelloError):
        read_client_hello(b"\x16\x03\x01\x40\x00\x01\x01\x00\x00")


def test_a_hidden_name_is_seen():
    """An encrypted one may be another than the one outside."""
    found = read_client_hello(with_extension(hello("example.com"), 0xFE0D, b"\0" * 32))
    assert found is not None
    assert found.hides_name


def test_two_names_are_none():
    """Two servers would not agree which of them counts."""
    name = b"\x00\x0e\x00\x00\x0bexample.net"

    with pytest.raises(HelloError):
        read_client_hello(with_extension(hello("example.com"), 0, name))

    with pytest.raises(HelloError):
        read_client_hello(with_extension(hello(None), 0, b"\x00\x12\x00\x00\x03a.b\x00\x00\x09evil.test"))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02\x00\x00\x01\x01",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x01\x02",
        b"\x15\x03\x01\x00\x02\x01\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x80\x2e\x01\x03\x01",
    ],
)
def test_what_is_none_is_refused(data):
    """Other records, other messages, other versions, lengths that are too long."""
    with pytest.raises(HelloError):
        read_client_hello(data)


def test_whatever_comes_is_read_or_refused():
    """20,000 mutations of a real one: nothing but an answer, a question for more, or the one error."""
    chance = random.Random(7)
    whole = hello("example.com")

    for _ in range(20_000):
        data = bytearray(whole)

        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)

        try:
            read_client_hello(bytes(data[: chance.randrange(1, len(data) + 1)]))
        except HelloError:
            continue
