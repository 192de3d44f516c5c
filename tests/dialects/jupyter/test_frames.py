"""The framings, against Jupyter's own code for them, and against bytes that mean nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.dialects.jupyter.messages import compose, decode_default, decode_v1, encode_default, encode_v1
from fumehood.errors import InvalidArgumentError

BUFFERS = st.lists(st.binary(max_size=64), max_size=4).map(tuple)
TEXTS = st.text(max_size=64)
NAMES = ("header", "parent_header", "metadata", "content")


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip(
        "jupyter_server.services.kernels.connection.base",
        reason="needs jupyter_server: the dependency group `clients`",
    )


def message(text: str, buffers: tuple[bytes, ...]):
    made = compose("shell", "comm_msg", {"comm_id": "a", "data": {"text": text}}, session="mine")
    return replace(made, buffers=buffers, metadata={"n": 1})


def parts_of(made) -> dict:
    return {name: dict(getattr(made, name)) for name in NAMES}


@given(text=TEXTS, buffers=BUFFERS)
def test_jupyters_code_reads_what_we_write(theirs, text, buffers):
    made = message(text, buffers)
    frame = encode_default(made)
    read = json.loads(frame) if isinstance(frame, str) else theirs.deserialize_binary_message(frame)
    channel, parts = theirs.deserialize_msg_from_ws_v1(encode_v1(made))

    assert isinstance(frame, bytes) == bool(buffers)
    assert read["content"] == made.content
    assert [bytes(part) for part in read["buffers"]] == list(buffers)
    assert channel == "shell"
    assert dict(zip(NAMES, map(json.loads, parts[:4]), strict=True)) == parts_of(made)
    assert tuple(parts[4:]) == buffers


@given(text=TEXTS, buffers=BUFFERS)
def test_we_read_what_jupyters_code_writes(theirs, text, buffers):
    made = message(text, buffers)
    whole = {**parts_of(made), "channel": "shell", "buffers": list(buffers)}
    packed = [json.dumps(part).encode() for part in parts_of(made).values()]

    assert decode_default(theirs.serialize_binary_message(whole)) == made
    assert decode_v1(theirs.serialize_msg_to_ws_v1([*packed, *buffers], "shell")) == made


@given(frame=st.one_of(st.binary(max_size=256), st.text(max_size=64), st.just("[" * 100_000)))
def test_what_means_nothing_is_refused_and_nothing_else_happens(frame):
    for decode in (decode_default, decode_v1):
        with pytest.raises(InvalidArgumentError):
            decode(frame)


def test_what_json_has_no_word_for_is_not_sent():
    made = replace(message("", ()), content={"x": float("nan"), "half": "\ud800"})
    assert json.loads(encode_default(made))["content"] == {"x": None, "half": "?"}
    assert b"NaN" not in encode_v1(made)


def test_long_headers_are_refused_and_unknown_fields_not_repeated():
    header = {"msg_id": "a", "msg_type": "b", "more": "c" * 1000}
    assert dict(decode_default(json.dumps({"header": header})).header) == {"msg_id": "a", "msg_type": "b"}

    with pytest.raises(InvalidArgumentError, match="msg_id"):
        decode_default(json.dumps({"header": {**header, "msg_id": "a" * 1000}}))
