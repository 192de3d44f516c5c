"""Frames: what is written is read again, in any pieces, and all that is hostile ends in a ProtocolError."""

from __future__ import annotations

import contextlib
import gc
import json
import struct
import time
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood_wire.frames import (
    MAX_DEPTH,
    MAX_HEADER_BYTES,
    MAX_NODES,
    MAX_PAYLOAD_BYTES,
    Decoder,
    Frame,
    ProtocolError,
    encode,
    parse_json,
)

MIB = 1 << 20

# Characters that could lead a counter of brackets astray, and some that are hard to carry. Of surrogates only
# low ones: a high one with a low one after it is a character, in JSON as in UTF-16.
tricky_text = st.text(st.sampled_from('"\\[]{},: \t\n\0a/u0é€😀\udc80\udfff'))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20) + 1, 10**20 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | tricky_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(tricky_text, inner, max_size=5),
    max_leaves=20,
)
headers = st.builds(
    lambda fields, kind: {**fields, "type": kind},
    st.dictionaries(tricky_text.filter(lambda key: key != "type"), json_values, max_size=5),
    st.text(max_size=64),
)
frames = st.lists(st.tuples(headers, st.binary(max_size=200)), max_size=6)


def raw_frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(payload)) + header + payload


def feed_in_pieces(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Frame]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [frame for start, end in pairwise(edges) for frame in decoder.feed(data[start:end])]


def refusal(header: bytes) -> str:
    """Decode a header alone and return the code that it is refused with."""
    with pytest.raises(ProtocolError) as caught:
        Decoder().feed(raw_frame(header))

    return caught.value.code


class TestLayout:
    def test_a_frame_is_two_lengths_a_header_and_a_payload(self) -> None:
        """The bytes on the wire are these and no others."""
        assert encode({"type": "x"}, b"\0raw") == b'\0\0\0\x0c\0\0\0\x04{"type":"x"}\0raw'

    @given(frames, st.lists(st.integers(0, 10_000), max_size=20))
    def test_round_trip_in_any_pieces(self, sent: list[Frame], cuts: list[int]) -> None:
        """Whatever was encoded comes out equal and in order, however the stream is cut."""
        decoder = Decoder()
        stream = b"".join(encode(header, payload) for header, payload in sent)

        assert feed_in_pieces(decoder, stream, cuts) == sent
        assert decoder.pending_bytes == 0

    @given(frames.filter(bool))
    def test_round_trip_byte_by_byte(self, sent: list[Frame]) -> None:
        """The smallest pieces there are give the same frames."""
        decoder = Decoder()
        stream = b"".join(encode(header, payload) for header, payload in sent)

        assert [frame for byte in stream for frame in decoder.feed(bytes([byte]))] == sent

    def test_lone_surrogates_survive(self) -> None:
        """A file name or text that is not Unicode crosses the wire unchanged, as an escape."""
        header = {"type": "x", "name": "\udc80 and \ud800"}

        assert encode(header).isascii()
        assert Decoder().feed(encode(header)) == [(header, b"")]

    def test_payloads_are_not_interpreted(self) -> None:
        """A payload that looks like frames stays a payload."""
        inner = encode({"type": "x"}) * 3

        assert Decoder().feed(encode({"type": "y"}, inner)) == [({"type": "y"}, inner)]

    def test_pending_bytes_tell_a_cut_stream(self) -> None:
        """At the end of a stream the reader can see whether a frame was cut off."""
        decoder = Decoder()
        frame = encode({"type": "x"}, b"payload")

        assert decoder.feed(frame[:-1]) == []
        assert decoder.pending_bytes == len(frame) - 1
        assert decoder.feed(frame[-1:] + b"\0\0") == [({"type": "x"}, b"payload")]
        assert decoder.pending_bytes == 2


class TestEncode:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_numbers_that_json_lacks_are_refused(self, value: float) -> None:
        """A sender hears at once that its header cannot travel."""
        with pytest.raises(ValueError, match="JSON compliant"):
            encode({"type": "x", "n": value})

    def test_a_header_that_no_peer_takes_is_refused(self) -> None:
        """The limit holds for the sender too, to the byte."""
        room = MAX_HEADER_BYTES - len('{"type":""}')
        frame = encode({"type": "t" * room})

        assert struct.unpack_from("!II", frame) == (MAX_HEADER_BYTES, 0)

        with pytest.raises(ProtocolError) as caught:
            encode({"type": "t" * (room + 1)})

        assert caught.value.code == "header_size"

    def test_objects_that_are_not_json_are_refused(self) -> None:
        """Nothing is turned into a string behind the sender's back."""
        with pytest.raises(TypeError):
            encode({"type": "x", "value": {1, 2}})


class TestSizes:
    @pytest.mark.parametrize(
        ("header_bytes", "payload_bytes", "code"),
        [
            (MAX_HEADER_BYTES + 1, 0, "header_size"),
            (2**31, 0, "header_size"),
            (2**32 - 1, 2**32 - 1, "header_size"),
            (12, MAX_PAYLOAD_BYTES + 1, "payload_size"),
            (12, 2**31, "payload_size"),
            (12, 2**32 - 1, "payload_size"),
        ],
    )
    def test_oversize_is_refused_before_any_allocation(
        self, header_bytes: int, payload_bytes: int, code: str
    ) -> None:
        """H01: the eight bytes of a prefix are enough to refuse a frame, and cost no memory."""
        prefix = struct.pack("!II", header_bytes, payload_bytes)
        decoder = Decoder()
        assert decoder.feed(prefix[:7]) == []
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError) as caught:
                decoder.feed(prefix[7:])

            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert caught.value.code == code
        assert peak_bytes < 64 * 1024

    def test_a_claim_alone_takes_no_memory(self) -> None:
        """H01: a legal length is believed only as far as bytes have come."""
        prefix = struct.pack("!II", MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)
        tracemalloc.start()
        try:
            decoders = [Decoder() for _ in range(100)]
            waiting = [decoder.feed(prefix + b"{") for decoder in decoders]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert not any(waiting)
        assert peak_bytes < 256 * 1024

    def test_the_largest_legal_frame_takes_two_of_its_size(self) -> None:
        """Harmless async version of the above: it is read, in constant memory above its own."""
        frame = encode({"type": "x", "pad": "p" * (MAX_HEADER_BYTES - 100)}, bytes(MAX_PAYLOAD_BYTES))
        pieces = [frame[start : start + 65_536] for start in range(0, len(frame), 65_536)]
        decoder = Decoder()
        tracemalloc.start()
        try:
            received = [one for piece in pieces for one in decoder.feed(piece)]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert [len(payload) for _, payload in received] == [MAX_PAYLOAD_BYTES]
        assert peak_bytes < 2.3 * len(frame)

    def test_an_endless_stream_leaves_nothing_behind(self) -> None:
        """A peer that never stops fills no buffer: what is complete leaves the decoder."""
        decoder = Decoder()
        frame = encode({"type": "stream"}, bytes(1000))
        stream = frame * 100
        tracemalloc.start()
        try:
            count = sum(len(decoder.feed(stream[:-1])) + len(decoder.feed(stream[-1:])) for _ in range(50))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert count == 5000
        assert peak_bytes < 5 * len(stream)

    def test_limits_can_be_set(self) -> None:
        """A channel with small messages refuses large ones early; the limit itself is allowed."""
        limited = {"max_header_bytes": 12, "max_payload_bytes": 3}

        assert Decoder(**limited).feed(raw_frame(b'{"type":"x"}', b"abc")) == [({"type": "x"}, b"abc")]

        for frame, code in [
            (raw_frame(b'{"type":"xy"}'), "header_size"),
            (raw_frame(b'{"type":"x"}', b"abcd"), "payload_size"),
        ]:
            with pytest.raises(ProtocolError) as caught:
                Decoder(**limited).feed(frame)

            assert caught.value.code == code


class TestHeaders:
    @pytest.mark.parametrize(
        ("header", "code"),
        [
            (b"", "syntax"),
            (b"{", "syntax"),
            (b"nonsense", "syntax"),
            (b'{"type":"x"} ', "syntax"),
            (b' {"type":"x"}', "syntax"),
            (b'{"type":"x"}{"type":"x"}', "syntax"),
            (b'{"type":"x",}', "syntax"),
            (b"{'type':'x'}", "syntax"),
            (b'{"type":"x","a":[1,2}', "syntax"),
            (b'{"type":"x","a":01}', "syntax"),
            (b'{"type":"x","a":+1}', "syntax"),
            (b'{"type":"x","a":.5}', "syntax"),
            (b'{"type":"line\nbreak"}', "syntax"),
            (b'{"type":"nul\0"}', "syntax"),
            (b'{"type":"\\q"}', "syntax"),
            (b'{"type":"\\u12"}', "syntax"),
            (b'{"type":"x"', "syntax"),
            (b'\xef\xbb\xbf{"type":"x"}', "syntax"),
            (b'{"type":"\xff"}', "encoding"),
            (b'{"type":"\xc0\x80"}', "encoding"),
            (b'{"type":"\xed\xa0\x80"}', "encoding"),
            (b'{"type":"\xe2\x82"}', "encoding"),
            (b'{\0"\0t\0y\0', "syntax"),
            (b'{"type":"x","a":NaN}', "number"),
            (b'{"type":"x","a":Infinity}', "number"),
            (b'{"type":"x","a":-Infinity}', "number"),
            (b'{"type":"x","a":1e999}', "number"),
            (b'{"type":"x","a":-1e999}', "number"),
            (b'{"type":"x","a":' + b"1" * 21 + b"}", "number"),
            (b'{"type":"x","a":-' + b"1" * 21 + b"}", "number"),
            (b'{"type":"x","a":' + b"1" * 100_000 + b"}", "number"),
            (b'{"type":"x","a":0.' + b"1" * 100_000 + b"}", "number"),
            (b'{"type":"x","a":1e' + b"0" * 100_000 + b"}", "number"),
            (b'{"type":"x","type":"x"}', "duplicate_key"),
            (b'{"type":"x","a":{"b":1,"c":2,"b":1}}', "duplicate_key"),
            (b'{"type":"x","\\u0061":1,"a":2}', "duplicate_key"),
            (b'["type","x"]', "not_object"),
            (b'"type"', "not_object"),
            (b"null", "not_object"),
            (b"7", "not_object"),
            (b"{}", "type"),
            (b'{"Type":"x"}', "type"),
            (b'{"type":null}', "type"),
            (b'{"type":1}', "type"),
            (b'{"type":["x"]}', "type"),
            (b'{"type":"' + b"x" * 65 + b'"}', "type"),
        ],
    )
    def test_what_is_no_header_is_refused(self, header: bytes, code: str) -> None:
        """H03: each kind of nonsense has its code."""
        assert refusal(header) == code

    @pytest.mark.parametrize(
        ("header", "value"),
        [
            (b'{"type":"x","a":-99999999999999999999}', -(10**20) + 1),
            (b'{"type":"x","a":99999999999999999999}', 10**20 - 1),
            (b'{"type":"x","a":1.7976931348623157e+308}', 1.7976931348623157e308),
            (b'{"type":"x","a":"\\u0000\\ud800"}', "\0\ud800"),
            (b'{"type":"x","a":"\xf0\x9f\x98\x80"}', "😀"),
            (b'{"type":"x", "a" : [ ] }', []),
        ],
    )
    def test_what_is_unusual_but_right_is_read(self, header: bytes, value: object) -> None:
        """The rules refuse nothing that an honest peer may need."""
        assert Decoder().feed(raw_frame(header)) == [({"type": "x", "a": value}, b"")]

    def test_details_are_short_and_plain(self) -> None:
        """H08: what a peer wrote cannot forge a line of a log."""
        with pytest.raises(ProtocolError) as caught:
            Decoder().feed(raw_frame(b'{"type":"x","a":1e' + b"9" * 50 + b"}"))

        assert str(caught.value).isascii()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


class TestStructure:
    @pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
    def test_depth_is_bounded(self, opening: bytes, closing: bytes) -> None:
        """H02: the deepest legal header is read, the next one is refused."""

        def nested(depth: int) -> bytes:
            inner = opening * (depth - 1) + b"0" + closing * (depth - 1)
            return b'{"type":"x","a":' + inner + b"}"

        assert len(Decoder().feed(raw_frame(nested(MAX_DEPTH)))) == 1
        assert refusal(nested(MAX_DEPTH + 1)) == "depth"
        assert refusal(nested(10_000)) == "depth"

    def test_nodes_are_bounded(self) -> None:
        """H02: the largest legal header is read, the next one is refused."""

        def listed(count: int) -> bytes:
            return b'{"type":"x","a":[' + b",".join([b"0"] * count) + b"]}"

        # Two opening brackets, the comma before "a", and one fewer between the items.
        most = MAX_NODES - 2
        [(header, _)] = Decoder().feed(raw_frame(listed(most)))

        assert len(header["a"]) == most
        assert refusal(listed(most + 1)) == "nodes"

    def test_brackets_in_strings_do_not_count(self) -> None:
        """Text full of brackets, quotes and backslashes is text."""
        text = '[{"\\' * 20_000
        header = {"type": "x", "text": text, text: [text], "end": "\\"}

        assert Decoder().feed(encode(header)) == [(header, b"")]

    @given(st.lists(tricky_text, max_size=30), st.integers(1, 2 * MAX_DEPTH))
    def test_depth_is_counted_exactly(self, texts: list[str], depth: int) -> None:
        """No text before, beside or after deep nesting hides it or adds to it."""
        deep: Any = texts

        for _ in range(depth - 1):
            deep = [*texts[:2], deep, *texts[2:4]]

        # Makes sure that brackets have to be counted exactly.
        data = json.dumps([deep, [[]] * MAX_DEPTH]).encode()

        if depth + 1 <= MAX_DEPTH:
            assert parse_json(data) == json.loads(data)
            return

        with pytest.raises(ProtocolError) as caught:
            parse_json(data)

        assert caught.value.code == "depth"

    @given(st.text(st.sampled_from('"\\[]{},: 01-.eEutfn\n'), max_size=300))
    def test_nonsense_never_gets_past(self, nonsense: str) -> None:
        """Text made of JSON's own characters is read as json reads it, or refused."""
        data = ("[" * 20 + nonsense).encode()
        with contextlib.suppress(ProtocolError):
            assert parse_json(data) == json.loads(data)

    @pytest.mark.parametrize(
        "header",
        [
            b"[" * MIB,
            b'{"a":' * (MIB // 5),
            b"]" * MIB,
            b'""' * (MIB // 2),
            b'"",' * (MIB // 3),
            b'"' + b'\\"' * (MIB // 2 - 1),
            b'"' + b"\\" * (MIB - 1),
            b'["' + b'","' * (MIB // 3 - 2) + b'"]',
            b'{"type":"x"' + b"".join(b',"%d":0' % number for number in range(99_990)) + b"}",
            b'{"type":"x","a":[' + b",".join([b"[]"] * 49_000) + b"]}",
        ],
        ids=[
            "lists",
            "objects",
            "closers",
            "strings",
            "commas",
            "quotes",
            "slashes",
            "items",
            "keys",
            "empties",
        ],
    )
    def test_the_worst_headers_cost_little_time(self, header: bytes) -> None:
        """H02: no header of legal length holds the reader up, whether it is refused or read."""
        decoder = Decoder()
        frame = raw_frame(header)
        # What other threads do, and what looks through the objects of all tests, is not its time.
        gc.disable()
        started = time.thread_time()

        try:
            with contextlib.suppress(ProtocolError):
                decoder.feed(frame)
        finally:
            gc.enable()

        # Some 60 ms; a quadratic scan would take minutes.
        assert time.thread_time() - started < 1


class TestFailure:
    def test_a_failure_is_final(self) -> None:
        """After a fault nothing is read any more, not even a frame that would be right."""
        decoder = Decoder()

        with pytest.raises(ProtocolError) as first:
            decoder.feed(raw_frame(b"[]"))

        with pytest.raises(ProtocolError) as second:
            decoder.feed(encode({"type": "x"}))

        assert first.value.args == second.value.args
        assert decoder.pending_bytes == 0

    def test_a_failure_inside_a_buffered_frame_frees_it(self) -> None:
        """A fault that is found late gives back all that was held."""
        decoder = Decoder()
        frame = raw_frame(b'{"type":"\xff"}', bytes(MIB))

        assert decoder.feed(frame[:-1]) == []

        with pytest.raises(ProtocolError):
            decoder.feed(frame[-1:])

        assert decoder.pending_bytes == 0

    @given(
        st.lists(st.integers(0, 10_000), max_size=5), st.sampled_from([b"[]", b'{"type":1}', b"{", b"\xff"])
    )
    def test_a_fault_does_not_depend_on_the_pieces(self, cuts: list[int], header: bytes) -> None:
        """The same stream is refused for the same reason, however it is cut."""
        stream = encode({"type": "x"}, b"before") + raw_frame(header, b"payload") + encode({"type": "x"})

        with pytest.raises(ProtocolError) as whole:
            Decoder().feed(stream)

        with pytest.raises(ProtocolError) as pieces:
            feed_in_pieces(Decoder(), stream, cuts)

        assert whole.value.args == pieces.value.args


class TestTime:
    def test_single_bytes_take_linear_time(self) -> None:
        """H05: a peer that sends byte by byte costs what its bytes cost, not their square."""
        decoder = Decoder()
        frame = encode({"type": "x"}, bytes(MIB))
        started = time.process_time()
        received = [one for start in range(len(frame)) for one in decoder.feed(frame[start : start + 1])]

        assert len(received) == 1
        # Some 0.3 s; copying the buffer for each byte would take more than a minute.
        assert time.process_time() - started < 10

    def test_many_frames_in_one_piece_take_linear_time(self) -> None:
        """A hundred thousand frames that arrive together are cut apart without moving the rest each time."""
        decoder = Decoder()
        stream = encode({"type": "x"}) * 100_000
        started = time.process_time()

        assert decoder.feed(stream[:5]) == []
        assert len(decoder.feed(stream[5:])) == 100_000
        # Some 0.3 s; moving the rest for each frame would take minutes.
        assert time.process_time() - started < 10
