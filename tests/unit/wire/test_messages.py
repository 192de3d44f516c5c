"""Messages: accepted as their tables have them, refused with anything missing, added or out of bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fumehood_wire import init_messages, messages
from fumehood_wire.frames import Decoder, ProtocolError, encode
from fumehood_wire.init_messages import check_value
from fumehood_wire.messages import (
    EXECUTION_FLAGS,
    check,
    parse_traceback,
    read_text,
    split_parts,
)
from fumehood_wire.payloads import parse_comm, parse_matches, parse_telemetry, split_comm
from fumehood_wire.rules import is_mime_name

TABLES = {
    "host to context": messages.HOST_TO_CONTEXT,
    "context to host": messages.CONTEXT_TO_HOST,
    "host to checkpoint": messages.HOST_TO_CHECKPOINT,
    "checkpoint to host": messages.CHECKPOINT_TO_HOST,
    "checkpoint's look to host": messages.CHECKPOINT_LOOK_TO_HOST,
    "host to init": init_messages.HOST_TO_INIT,
    "greeting of init": init_messages.INIT_GREETING,
    "init to host": init_messages.INIT_TO_HOST,
}
# Which fields of which real message may be left out.
OPTIONAL = {
    "proceed": {"id"},
    "kill_context": {"spare"},
    "execute_request": set(EXECUTION_FLAGS),
    "execute_request-tools": {"tools", "tool_calls", *EXECUTION_FLAGS},
    "input_reply-eof": {"eof"},
    "stream-unread": {"unread_stdout", "unread_stderr"},
    "display_data-cut": {"truncated", "display_id"},
    "execute_result": {"display_id"},
    "list": {"offset"},
    "start_process": {"pty"},
    "refusal": {"errno"},
    "variables_request": {"marks"},
    "compare_snapshot": {"later"},
}
# Values that no field of any message accepts, unless it accepts everything.
NEVER = [-1, 2**63, 1e300, "x" * 300_000, [[]], [None], {"": None, "\0": 1}]
# The exceptions: a guest may set a file's clock to anything, and say anything about what it shows.
WELCOME = {("modified_at", int), ("modified_ns", int), ("metadata", dict)}


def refusal(sample: Any) -> str:
    """Return the code that a message is refused with."""
    with pytest.raises(ProtocolError) as caught:
        check(sample.table, sample.header, sample.payload)

    assert caught.value.detail.isascii()
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 1000
    return caught.value.code


def places(value: Any, free: tuple[str, ...] = ("metadata",)) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a header with each of its keys; nothing inside fields that accept anything."""
    if isinstance(value, dict):
        for key in list(value):
            yield value, key

            if key not in free:
                yield from places(value[key])

    elif isinstance(value, list):
        for index in range(len(value)):
            yield value, index
            yield from places(value[index])


def check_all(sample: Any) -> None:
    """Hold a message against all the rules that the host applies to it."""
    check(sample.table, sample.header, sample.payload)

    if sample.name.startswith("reply-"):
        check_value(sample.name.removeprefix("reply-"), sample.header["value"])


class TestTables:
    def test_every_real_message_is_accepted(self, sample: Any) -> None:
        """What an honest peer sends passes, after a trip over the wire."""
        [(header, payload)] = Decoder().feed(encode(sample.header, sample.payload))

        check_all(sample._replace(header=header, payload=payload))

    def test_the_corpus_has_every_message(self, samples: list[Any]) -> None:
        """No type and no form is without a real example, so none is missed by the tests."""
        for table in TABLES.values():
            forms = {
                (kind, form) for kind, entry in table.items() for form in getattr(entry, "messages", [None])
            }
            seen = {
                (sample.header["type"], sample.header.get(getattr(table[sample.header["type"]], "field", "")))
                for sample in samples
                if sample.table is table
            }
            assert seen == forms

    def test_a_missing_field_is_refused(self, sample: Any) -> None:
        """Every field is needed, apart from those that are known to be optional."""
        for name in sample.header.keys() - {"type"}:
            short = {key: value for key, value in sample.header.items() if key != name}

            if name in OPTIONAL.get(sample.name, ()):
                check(sample.table, short, sample.payload)
            else:
                assert refusal(sample._replace(header=short)) == "field"

    def test_an_unknown_field_is_refused(self, sample: Any) -> None:
        """Nothing can ride along unseen, at the top or inside."""
        assert refusal(sample._replace(header={**sample.header, "extra\n": 1})) == "field"

    def test_a_value_out_of_bounds_is_refused(self, sample: Any) -> None:
        """H03: no field, however deep, accepts nonsense or what is far too large."""
        for number in range(len(list(places(sample.header)))):
            for nonsense in NEVER:
                mutant = sample.copy()
                container, key = list(places(mutant.header))[number]
                was, container[key] = container[key], nonsense

                if key == "type" or (key, type(nonsense)) in WELCOME:
                    continue

                with pytest.raises(ProtocolError) as caught:
                    check_all(mutant)

                assert caught.value.code == "field", (key, was, nonsense)

    def test_a_bool_is_no_number_and_a_number_is_no_bool(self, sample: Any) -> None:
        """H03: Python would take the one for the other."""
        for number in range(len(list(places(sample.header)))):
            mutant = sample.copy()
            container, key = list(places(mutant.header))[number]

            if isinstance(container[key], bool):
                container[key] = int(container[key])
            elif isinstance(container[key], (int, float)):
                container[key] = bool(container[key])
            else:
                continue

            with pytest.raises(ProtocolError):
                check_all(mutant)

    def test_a_payload_that_does_not_belong_is_refused(self, sample: Any) -> None:
        """Each payload has its bound, which is nothing where none is expected."""
        excess = b"x" * (messages.MAX_ARGUMENTS_BYTES + 1)

        if sample.name.startswith(("execute_request", "comm_")):
            return

        assert refusal(sample._replace(payload=sample.payload + excess)) == "payload"

        if not sample.payload and sample.name not in ("write", "start_process", "input_reply-eof"):
            assert refusal(sample._replace(payload=b"x")) == "payload"

    @pytest.mark.parametrize("direction", TABLES)
    def test_an_unknown_type_is_refused(self, direction: str) -> None:
        """A table names all that may come."""
        for kind in ("", "exec", "STREAM", "stream ", "\u2028"):
            with pytest.raises(ProtocolError) as caught:
                check(TABLES[direction], {"type": kind}, b"")

            assert caught.value.code == "unknown_type"

    def test_a_message_of_another_direction_is_refused(self, sample: Any) -> None:
        """A guest cannot speak as the host, nor a context as init."""
        for table in TABLES.values():
            if table is not sample.table:
                # Comms have the same words in both directions, with other fields.
                both_ways = sample.name.startswith("comm_") and sample.header["type"] in table
                assert refusal(sample._replace(table=table)) == ("field" if both_ways else "unknown_type")

    @pytest.mark.parametrize("form", [None, 1, [], {}, "", "eval", 1.0])
    @pytest.mark.parametrize(
        ("table", "kind", "field"),
        [
            (init_messages.HOST_TO_INIT, "request", "verb"),
            (init_messages.INIT_TO_HOST, "reply", "ok"),
            (init_messages.INIT_TO_HOST, "event", "event"),
        ],
    )
    def test_an_unknown_form_is_refused(
        self, table: messages.Table, kind: str, field: str, form: object
    ) -> None:
        """A type with several forms has no others, whatever stands in the field that tells them apart."""
        with pytest.raises(ProtocolError) as caught:
            check(table, {"type": kind, "id": 1, field: form}, b"")

        assert caught.value.code == "field"

    @pytest.mark.parametrize("event", ["process_exit"])
    def test_a_process_ends_in_exactly_one_way(self, event: str, samples: list[Any]) -> None:
        """An exit code or a signal: not both, and not neither."""
        [sample] = [one for one in samples if one.header.get("event") == event]
        ends = {"exit_code": 1, "signal": 9}
        rest = {key: value for key, value in sample.header.items() if key not in ends}

        for name, value in ends.items():
            check(sample.table, {**rest, name: value}, b"")

        assert refusal(sample._replace(header=rest)) == "field"
        assert refusal(sample._replace(header={**rest, **ends})) == "field"

    @pytest.mark.parametrize("envs", [{"A=B": ""}, {"": "x"}, {"A\0": ""}, {"A": "\0"}, {"A": None}])
    def test_environments_that_no_process_can_have_are_refused(
        self, envs: object, samples: list[Any]
    ) -> None:
        """They would fail later, and elsewhere."""
        [sample] = [one for one in samples if one.name == "execute_request"]

        assert refusal(sample._replace(header={**sample.header, "envs": envs})) == "field"


class TestValues:
    def test_every_verb_has_its_answer(self, values: dict[str, Any]) -> None:
        """What init may be asked and what it may answer are the same list."""
        assert values.keys() == init_messages.HOST_TO_INIT["request"].messages.keys()

        for verb, value in values.items():
            check_value(verb, value)

    def test_an_answer_to_another_question_is_refused(self, values: dict[str, Any]) -> None:
        """H04: an answer of the wrong shape is no answer."""
        for verb in values:
            for other in [*values.values(), True, "x", 0, [[]]]:
                if json.dumps(other) in {json.dumps(value) for value in (values[verb], None)}:
                    continue

                if (
                    isinstance(other, dict)
                    and isinstance(values[verb], dict)
                    and other.keys() == values[verb].keys()
                ):
                    continue

                with pytest.raises(ProtocolError) as caught:
                    check_value(verb, other)

                assert caught.value.code == "field"


class TestParts:
    def header(self, parts: object) -> dict[str, Any]:
        return {"type": "display_data", "id": "x-1", "at": 1.0, "parts": parts, "metadata": {}}

    def test_parts_come_apart_as_they_were_put_together(self) -> None:
        """Each format gets its own bytes, empty ones too."""
        header = self.header([["text/plain", 2], ["text/html", 0], ["image/png", 3]])
        check(messages.CONTEXT_TO_HOST, header, b"42\0\1\2")

        assert split_parts(header, b"42\0\1\2") == [
            ("text/plain", b"42"),
            ("text/html", b""),
            ("image/png", b"\0\1\2"),
        ]

    @pytest.mark.parametrize(
        ("parts", "payload", "code"),
        [
            ([["text/plain", 3]], b"42", "payload"),
            ([["text/plain", 1]], b"42", "payload"),
            ([], b"42", "payload"),
            ([["text/plain", 2**63 - 1], ["text/html", 2**63 - 1]], b"42", "payload"),
            ([["text/plain", -1], ["text/html", 3]], b"42", "field"),
            ([["text/plain", True], ["text/html", True]], b"42", "field"),
            ([["text/plain", 2.0]], b"42", "field"),
            ([["text/plain", "2"]], b"42", "field"),
            ([["text/plain", 1], ["text/plain", 1]], b"42", "field"),
            ([["text/plain"]], b"42", "field"),
            ([["text/plain", 2, 0]], b"42", "field"),
            ([[2, "text/plain"]], b"42", "field"),
            ([{"text/plain": 2}], b"42", "field"),
            ({"text/plain": 2}, b"42", "field"),
            ([["plain", 2]], b"42", "field"),
            ([[f"text/{number}", 0] for number in range(messages.MAX_PARTS + 1)], b"", "field"),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, parts: object, payload: bytes, code: str) -> None:
        """No part can reach beyond the payload, be counted twice, or leave bytes over."""
        with pytest.raises(ProtocolError) as caught:
            check(messages.CONTEXT_TO_HOST, self.header(parts), payload)

        assert caught.value.code == code

    @pytest.mark.parametrize(
        "name",
        [
            "text/plain",
            "image/svg+xml",
            "application/vnd.plotly.v1+json",
            "application/vnd.jupyter.widget-view+json",
        ],
    )
    def test_mime_names_in_use_are_names(self, name: str) -> None:
        """What display libraries send today may be sent."""
        assert is_mime_name(name)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "/",
            "text",
            "text/",
            "/plain",
            "text/plain\n",
            "text/plain\0",
            "text/plain; charset=utf-8",
            "text//plain",
            "text/plain/x",
            "../etc/passwd",
            "text/..",
            "text/<script>",
            "text/plаin",
            "x" * 128 + "/y",
            "x/" + "y" * 128,
        ],
    )
    def test_what_is_no_mime_name_is_refused(self, name: str) -> None:
        """H08: a name is safe in a header, a log and a page."""
        assert not is_mime_name(name)


class TestText:
    def test_traceback_lines_are_read(self) -> None:
        """Lines come out as they were, lone surrogates too."""
        lines = ["Traceback", "", "ValueError: \udc80 é"]

        assert parse_traceback(json.dumps(lines).encode()) == lines

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            (b"", "syntax"),
            (b"plain text", "syntax"),
            (b"{}", "payload"),
            (b'"line"', "payload"),
            (b'["line", 1]', "payload"),
            (b'[["line"]]', "payload"),
            (b"[" * 100_000, "depth"),
            (b'["\xff"]', "encoding"),
            (b"[NaN]", "number"),
            (json.dumps(["x"] * (messages.MAX_TRACEBACK_LINES + 1)).encode(), "payload"),
        ],
    )
    def test_what_is_no_traceback_is_refused(self, payload: bytes, code: str) -> None:
        """The lines are parsed under the same bounds as a header."""
        with pytest.raises(ProtocolError) as caught:
            parse_traceback(payload)

        assert caught.value.code == code

    def test_text_is_strict(self) -> None:
        """A payload that should be text is UTF-8, or refused."""
        assert read_text("é€😀".encode()) == "é€😀"

        for payload in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", "é".encode()[:1]):
            with pytest.raises(ProtocolError) as caught:
                read_text(payload)

            assert caught.value.code == "encoding"


class TestAnswersAndComms:
    def test_matches_are_read(self) -> None:
        """Names of any alphabet, and none at all."""
        for matches in ([], ["print", "größe", "\udc80"]):
            assert parse_matches(json.dumps(matches).encode()) == matches

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            (b"", "syntax"),
            (b"{}", "payload"),
            (b"[1]", "payload"),
            (b'["a", null]', "payload"),
            (b"\xff", "encoding"),
            (json.dumps(["x" * (messages.MAX_MATCH_CHARS + 1)]).encode(), "payload"),
            (json.dumps(["x"] * (messages.MAX_MATCHES + 1)).encode(), "payload"),
            (b"[" * 100 + b"]" * 100, "depth"),
        ],
    )
    def test_what_are_no_matches_is_refused(self, payload: bytes, code: str) -> None:
        """H03: the payload of a completion is a bounded list of bounded strings."""
        with pytest.raises(ProtocolError) as caught:
            parse_matches(payload)

        assert caught.value.code == code

    @pytest.mark.parametrize(
        "said",
        [
            {},
            [1],
            [{"event": "open", "detail": "x"}],
            [{"event": "open", "detail": "x", "count": 0}],
            [{"event": "open", "detail": "x", "count": True}],
            [{"event": "open", "detail": "x", "count": 1, "more": 1}],
            [{"event": "open", "detail": "x" * (messages.MAX_TELEMETRY_CHARS + 1), "count": 1}],
            [{"event": "open", "detail": "x", "count": 1}] * (messages.MAX_TELEMETRY + 1),
        ],
    )
    def test_what_is_no_telemetry_is_refused(self, said: object) -> None:
        """So many lines of so many characters, and nothing else."""
        with pytest.raises(ProtocolError):
            parse_telemetry(json.dumps(said).encode())

    @pytest.mark.parametrize("buffers", [[], [b""], [b"\0" * 5, b"", b"xyz"]])
    def test_a_comm_message_comes_apart_as_it_was_put_together(self, buffers: list[bytes]) -> None:
        """The buffers lie behind the JSON text, whatever they hold."""
        content = b'{"data":{"a":[1]},"metadata":{"b":null}}'
        header = {"type": "comm_msg", "buffers": [len(one) for one in buffers]}
        text, found = split_comm(header, content + b"".join(buffers))
        assert (text, found) == (content, buffers)
        assert parse_comm(text) == ({"a": [1]}, {"b": None})

    def test_buffers_beyond_the_payload_are_refused(self) -> None:
        """H03: a size that the guest claims is never believed."""
        for sizes in ([3], [2**63 - 1], [1, 1, 1]):
            with pytest.raises(ProtocolError) as caught:
                split_comm({"type": "comm_msg", "buffers": sizes}, b"{}")

            assert caught.value.code == "payload"

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (b"", "syntax"),
            (b"[]", "payload"),
            (b"{}", "payload"),
            (b'{"data":{}}', "payload"),
            (b'{"data":[],"metadata":{}}', "payload"),
            (b'{"data":{},"metadata":{},"more":1}', "payload"),
            (b'{"data":{"x":NaN},"metadata":{}}', "number"),
            (b'{"data":{},"data":{},"metadata":{}}', "duplicate_key"),
            (b'{"data":{},"metadata":{}}x', "syntax"),
        ],
    )
    def test_what_is_no_comm_message_is_refused(self, content: bytes, code: str) -> None:
        """H03: two objects, strictly read."""
        with pytest.raises(ProtocolError) as caught:
            parse_comm(content)

        assert caught.value.code == code
