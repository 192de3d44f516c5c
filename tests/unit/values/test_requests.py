"""Tools in the words of the port: what is made is right, and JSON is JSON."""

from __future__ import annotations

import pytest

from fumehood import InvalidArgumentError
from fumehood.values.json_values import NotJsonError, json_of
from fumehood.values.plain_data import as_data
from fumehood.values.requests import ExecuteRequest, ToolAnswer, ToolSpec


def answer(**fields):
    return ToolAnswer(execution_id="e", request_id="e/tool-1", **fields)


def nested(depth):
    value: object = 1

    for _ in range(depth):
        value = [value]

    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("inf"), "value is inf"),
        ([1, {"a": float("nan")}], "value[1]['a'] is nan"),
        ({"a": {2: 3}}, "value['a'] has the key 2"),
        ({"a": b"x"}, "value['a'] is of type bytes"),
        (10**20, "more than 20 digits"),
        (nested(31), "nested more than 30 deep"),
        ([0] * 60_000, "more than 50,000 values"),
        ("x" * (4 << 20), "bytes as JSON"),
        (["a\ud800"], "value[0] is text that UTF-8 cannot hold"),
        ({"\udfff": 1}, "UTF-8"),
        ({"\x1b]0;x\x07": object()}, "\\x1b]0;x\\x07"),
    ],
)
def test_what_is_no_json_is_refused_by_its_place(value, words):
    """The message names it, and shows no control character."""
    with pytest.raises(InvalidArgumentError) as caught:
        answer(value=value)

    assert words in str(caught.value).replace("\\\\", "\\")
    assert "\x1b" not in str(caught.value)


def test_json_passes():
    """The control: all that JSON has, and a tuple as a list."""
    value = {"a": [None, True, 1, -1.5, "ä😀", (1, 2)], "": nested(20), "n": 10**20 - 1}
    assert answer(value=value).value == value
    assert json_of([1, (2,)], "x", 100) == b"[1,[2]]"

    with pytest.raises(NotJsonError, match="takes 5 bytes"):
        json_of("abc", "x", 4)


def test_an_error_is_bounded_text():
    """Nothing else is one."""
    assert answer(error="x" * 16_000).error

    for wrong in ("x" * 16_001, 5, b"x", "\ud800"):
        with pytest.raises(InvalidArgumentError, match="error"):
            answer(error=wrong)


def test_the_arguments_of_a_tool_are_in_its_schema():
    """Those that must be given, in order, then those that may be."""
    schema = {"properties": {"c": {}, "a": {}, "b": {}}, "required": ["b", "x"]}
    tool = ToolSpec(name="t", parameters=schema)
    assert (tool.required, tool.optional) == (("b", "x"), ("c", "a"))
    assert (ToolSpec(name="t").required, ToolSpec(name="t").optional) == ((), ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a" * 65},
        {"name": "é"},
        {"name": "None"},
        {"name": "ToolError"},
        {"name": 5},
        {"description": "x" * 4097},
        {"parameters": []},
        {"parameters": {"type": "string"}},
        {"parameters": {"properties": {f"p{n}": {} for n in range(65)}}},
        {"parameters": {"properties": {"x" * 129: {}}}},
        {"parameters": {"required": [1]}},
        {"parameters": {"default": float("nan")}},
        {"parameters": {"description": "x" * 70_000}},
        {"awaited": 1},
        {"timeout_seconds": 0},
        {"timeout_seconds": None},
        {"timeout_seconds": float("inf")},
        {"max_calls": 0},
        {"max_calls": 10_001},
        {"max_calls": True},
    ],
)
def test_what_cannot_be_a_tool_is_refused(wrong):
    """By name, before anything is sent."""
    with pytest.raises(InvalidArgumentError):
        ToolSpec(**{"name": "t", **wrong})


def test_the_tools_of_an_execution_are_bounded_together():
    """In number, in names and in bytes: they share one message."""
    long = {"description": "x" * 60_000}

    for wrong in (
        [ToolSpec(name="t")],
        (ToolSpec(name="t"), ToolSpec(name="t")),
        tuple(ToolSpec(name=f"t{n}") for n in range(65)),
        tuple(ToolSpec(name=f"t{n}", parameters=long) for n in range(5)),
        ("t",),
    ):
        with pytest.raises(InvalidArgumentError, match="tools"):
            ExecuteRequest(code="1", tools=wrong)

    with pytest.raises(InvalidArgumentError, match="tools"):
        ExecuteRequest(code="1", language="bash", tools=(ToolSpec(name="t"),))


def test_calls_are_bounded_together():
    """A hundred, or what the most generous tool allows."""
    few, many = ToolSpec(name="a", max_calls=3), ToolSpec(name="b", max_calls=500)
    assert ExecuteRequest(code="1", tools=(few,)).max_tool_calls == 100
    assert ExecuteRequest(code="1", tools=(few, many)).max_tool_calls == 500


def test_a_tool_crosses_a_border():
    """As plain data of its fields."""
    assert as_data(ToolSpec(name="t", parameters={"type": "object"})) == {
        "name": "t",
        "description": "",
        "parameters": {"type": "object"},
        "awaited": False,
        "timeout_seconds": 30.0,
        "max_calls": 100,
    }
