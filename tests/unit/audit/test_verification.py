"""Verifying files: every line is read strictly, and what is wrong is said with the line."""

from __future__ import annotations

import io
import json

import pytest

from fumehood.audit.chain import AuditChain
from fumehood.audit.verification import MAX_LINE_BYTES, read_lines, verify_lines


def log(count: int = 4, **bounds: int):
    chain = AuditChain(**bounds)

    for number in range(count):
        chain.add("command", {"argv": ["echo", str(number)]})

    return chain.log("box")


def verified(text: str | bytes, head: str | None = None):
    data = text.encode() if isinstance(text, str) else text
    return verify_lines(read_lines(io.BytesIO(data)), head)


def test_a_whole_record_is_whole():
    record = log()
    found = verified(record.to_jsonl())
    assert (found.ok, found.entries, found.dropped, found.line, found.later) == (True, 4, 0, None, None)
    assert found.head == record.head


def test_a_known_head_is_found_and_what_came_later_counted():
    record = log()
    assert verified(record.to_jsonl(), record.entries[1].hash).later == 2
    assert verified(record.to_jsonl(), str(record.head)).later == 0
    other = verified(record.to_jsonl(), "0" * 64)
    assert not other.ok
    assert "known head" in other.reason


def test_what_left_the_memory_is_said_and_the_rest_is_whole():
    record = log(20, max_entries=3)
    found = verified(record.to_jsonl())
    assert (found.ok, found.entries, found.dropped) == (True, 3, 17)
    # The head that was the last to leave is in the marker.
    assert verified(record.to_jsonl(), record.entries[0].previous).later == 3


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def edited(line: str, **fields: object) -> str:
    return json.dumps({**json.loads(line), **fields}, sort_keys=True, separators=(",", ":")) + "\n"


BROKEN = {
    "changed": (lambda t: [t[0], t[1], edited(t[2], kind="x"), t[3]], 3, "entry 2 was changed"),
    "left out": (lambda t: [t[0], t[2], t[3]], 2, "entry 1 is missing"),
    "several left out": (lambda t: [t[0], t[3]], 2, "entries 1 to 2 are missing"),
    "the first left out": (lambda t: t[1:], 1, "entry 0 is missing"),
    "moved": (lambda t: [t[0], t[2], t[1], t[3]], 2, "entry 1 is missing"),
    "twice": (lambda t: [*t[:2], *t[1:]], 3, "entry 1 stands where entry 2 should be"),
    "of another record": (lambda t: [*t[:2], lines_of(log().to_jsonl())[2], t[3]], 3, "does not follow"),
    "no JSON": (lambda t: [t[0], "nothing\n", *t[1:]], 2, "no JSON object"),
    "half a line": (lambda t: [*t[:3], t[3][:40]], 4, "no JSON object"),
    "an empty line": (lambda t: [t[0], "\n", *t[1:]], 2, "no JSON object"),
    "no entry": (lambda t: [t[0], '{"kind":"x"}\n', *t[1:]], 2, "no entry"),
    "more than an entry": (lambda t: [edited(t[0], more=1), *t[1:]], 1, "no entry"),
    "a number of another type": (lambda t: [edited(t[0], sequence=True), *t[1:]], 1, "no entry"),
    "a time of no zone": (lambda t: [edited(t[0], at="2026-01-01T00:00:00"), *t[1:]], 1, "no entry"),
    "spaces": (lambda t: [t[0].replace(",", ", ", 1), *t[1:]], 1, "not written as it was"),
    "a key twice": (lambda t: [t[0].replace("{", '{"kind":"y",', 1), *t[1:]], 1, "not written as it was"),
    "nothing": (lambda _: [], 1, "no entry"),
    "a marker later": (lambda t: [t[0], '{"dropped":1,"kind":"truncated","previous":"x"}\n'], 2, "no entry"),
    "a bad marker": (lambda t: ['{"dropped":-1,"kind":"truncated","previous":"x"}\n', *t], 1, "no valid way"),
    "too long": (lambda t: [t[0][:-2] + " " * MAX_LINE_BYTES + "}\n", *t[1:]], 1, "longer than"),
    "deeply nested": (lambda t: [t[0], "[" * 100_000 + "\n"], 2, "no JSON object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_said_with_its_line(name):
    edit, line, reason = BROKEN[name]
    found = verified("".join(edit(lines_of(log().to_jsonl()))))
    assert not found.ok
    assert (found.line, reason in found.reason) == (line, True), found.reason


def test_bytes_that_are_no_text_are_a_fault():
    assert verified(b"\xff\xfe\n").line == 1


def test_a_number_that_json_does_not_have_is_a_fault():
    line = lines_of(log().to_jsonl())[0].replace('"fields":{', '"fields":{"x":NaN,')
    assert "was changed" in verified(line).reason
