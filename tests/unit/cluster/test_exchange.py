"""What adapters and servers say to each other: packed and unpacked, and refused when it is something else."""

from __future__ import annotations

import pytest

from fumehood.cluster.exchange import (
    ExchangeReply,
    NotAnAnswerError,
    pack,
    pack_headers,
    unpack,
    unpack_headers,
)


def test_an_answer_comes_out_as_it_went_in() -> None:
    """Status, headers with colons in them, and a body of any bytes."""
    headers = [(b"content-type", b"a: b"), (b"x", b"")]
    body = bytes(range(256))
    assert unpack(pack(201, headers, body)) == ExchangeReply(201, headers, body)
    assert unpack_headers(pack_headers([])) == []


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        (200, b""),
        b"",
        b"\x00",
        pack(200, [(b"a", b"b")], b"")[:-1],
        b"\x00\xc8\xff\xff\xff\xff",
    ],
)
def test_other_data_is_no_answer(data: object) -> None:
    """An object that is not bytes is never looked into, and cut-off bytes are noticed."""
    with pytest.raises(NotAnAnswerError):
        unpack(data)


def test_a_header_without_a_colon_is_none() -> None:
    """Lines of another form are refused, not guessed."""
    with pytest.raises(NotAnAnswerError):
        unpack_headers(b"no colon here\r\n")
