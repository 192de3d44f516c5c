"""Schemas of tools: made from hints, checked strictly, and never half checked."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from fumehood import InvalidArgumentError
from fumehood.api.tool_schemas import check_of, schema_of


class Place(TypedDict):
    """What a tool may take."""

    city: str
    country: NotRequired[str]


def everything(
    text: Annotated[str, "What to look for."],
    count: int,
    share: float = 0.5,
    flag: bool = False,
    nothing: None = None,
    either: int | str | None = None,
    names: list[str] = [],  # noqa: B006
    numbers: Sequence[int] = (),
    table: dict[str, list[float]] | None = None,
    loose: Mapping[str, Any] | None = None,
    order: Literal["up", "down", 3] = "up",
    place: Place | None = None,
    anything: object = None,
    unhinted=None,
) -> str:
    """Takes one of each."""
    raise NotImplementedError


SCHEMA = schema_of(everything, "tools['everything']")


def test_hints_become_a_schema():
    """What has no default is required; what is not named is not allowed."""
    assert SCHEMA["type"] == "object"
    assert SCHEMA["required"] == ["text", "count"]
    assert SCHEMA["additionalProperties"] is False
    properties = SCHEMA["properties"]
    assert properties["text"] == {"type": "string", "description": "What to look for."}
    assert properties["count"] == {"type": "integer"}
    assert properties["flag"] == {"type": "boolean", "default": False}
    assert properties["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}, {"type": "null"}]
    assert properties["table"]["anyOf"][0] == {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "number"}},
    }
    assert properties["order"]["enum"] == ["up", "down", 3]
    assert properties["place"]["anyOf"][0]["required"] == ["city"]
    assert (properties["anything"], properties["unhinted"]) == ({"default": None}, {"default": None})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count": "3"}, "the argument 'count' is of type string, and must be of type integer"),
        ({"count": True}, "'count' is of type boolean"),
        ({"count": 1.0}, "'count' is of type number"),
        ({"text": 1}, "'text' is of type integer"),
        ({"flag": 0}, "'flag' is of type integer"),
        ({"nothing": 0}, "'nothing'"),
        ({"either": 1.5}, "'either' is of type number, and must be of type integer or"),
        ({"names": ["a", 1]}, "'names[1]' is of type integer"),
        ({"numbers": {}}, "'numbers' is of type object"),
        ({"table": {"a": [1, "b"]}}, "'table.a[1]' is of type string"),
        ({"order": "sideways"}, "'order' is none of 'up', 'down', 3"),
        ({"order": True}, "'order' is none of"),
        ({"place": {"country": "x"}}, "'place.city' is missing"),
        ({"place": {"city": "x", "more": 1}}, "'place.more' is not known"),
        ({"wrong": 1}, "'wrong' is not known; known are: text, count"),
        ({"a\x1b" * 99: 1}, r"a\x1b"),
    ],
)
def test_what_does_not_fit_is_named(wrong, words):
    """Strictly, with its place, in one line."""
    fault = check_of(SCHEMA, "x")({"text": "t", "count": 1, **wrong})
    assert fault is not None
    assert words in fault
    assert fault.isprintable()


def test_what_fits_passes():
    """The control."""
    check = check_of(SCHEMA, "x")
    assert check({"text": "t", "count": 1}) is None
    given = {
        "text": "",
        "count": -1,
        "share": 2,
        "flag": True,
        "nothing": None,
        "either": None,
        "names": ["a"],
    }
    assert check({**given, "numbers": [1], "table": {"a": [1, 1.5]}, "loose": {"x": {}}, "order": 3}) is None
    assert check({**given, "place": {"city": "x"}, "anything": [{}], "unhinted": 7}) is None
    assert check({"text": "t"}) == "the argument 'count' is missing"


def test_other_callables_have_schemas_too():
    """A part of a function, a method, an object that is called, one that takes any name."""

    class Store:
        def get(self, key: str) -> None: ...

        def __call__(self, key: int) -> None: ...

    def loose(a: int, **others: str) -> None: ...

    assert list(schema_of(Store().get, "x")["properties"]) == ["key"]
    assert schema_of(Store(), "x")["properties"] == {"key": {"type": "integer"}}
    bound = schema_of(functools.partial(everything, count=1), "x")
    assert bound["required"] == ["text"]
    check = check_of(schema_of(loose, "x"), "x")
    assert check({"a": 1, "b": "text"}) is None
    assert check({"a": 1, "b": 2}) == "the argument 'b' is of type integer, and must be of type string"


def positional(a, /): ...
def many(*a): ...
def of_set(a: set[str]): ...
def of_bytes(a: bytes): ...
def of_tuple(a: tuple[int, int]): ...
def of_keys(a: dict[int, str]): ...
def unknown(a: Missing): ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [positional, many, of_set, of_bytes, of_tuple, of_keys, unknown, print])
def test_what_json_cannot_give_is_refused_at_once(function):
    """Before any code runs, with the way out."""
    if function is print:
        function = int  # the signature of a type that has none

    with pytest.raises(InvalidArgumentError, match="parameters=SCHEMA"):
        schema_of(function, "tools['x']")


@pytest.mark.parametrize("library", [True, False])
def test_other_keywords_need_the_library(library, monkeypatch):
    """With it they are checked; without it they are refused, and not passed over."""
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^[a-z]+$"}, "one": {"$ref": "#/$defs/one"}},
        "$defs": {"one": {"type": "integer"}},
    }

    if not library:
        monkeypatch.setitem(sys.modules, "jsonschema", None)

        with pytest.raises(InvalidArgumentError, match=r"fumehood\[tools\]") as caught:
            check_of(schema, "tools['x'].parameters")

        assert "pattern" in str(caught.value)
        return

    pytest.importorskip("jsonschema")
    check = check_of(schema, "x")
    assert check({"code": "abc", "one": 1}) is None
    assert "'code'" in (check({"code": "ABC"}) or "")
    assert "'one'" in (check({"one": "1"}) or "")


def test_a_reference_elsewhere_is_not_fetched():
    """A schema names what is in it."""
    pytest.importorskip("jsonschema")
    check = check_of({"$ref": "http://127.0.0.1:9/schema"}, "x")

    with pytest.raises(Exception, match=r"(?i)unresolvable"):
        check({})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"properties": []},
        {"properties": {"a": 1}},
        {"required": "a"},
        {"anyOf": {}},
        {"minimum": "1"},
        {"type": "object", "allOf": 3},
    ],
)
def test_what_is_no_schema_is_refused(schema):
    """At registration, not at the first call."""
    with pytest.raises(InvalidArgumentError):
        check_of(schema, "x")


def test_bounds_hold():
    """The few that need no library."""
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5},
            "s": {"type": "string", "minLength": 1, "maxLength": 3},
            "l": {"type": "array", "minItems": 1, "maxItems": 2},
            "c": {"const": 1},
            "no": False,
        },
    }
    check = check_of(schema, "x")
    assert check({"n": 5, "s": "abc", "l": [1], "c": 1}) is None

    for wrong in (
        {"n": 0},
        {"n": 6},
        {"s": ""},
        {"s": "abcd"},
        {"l": []},
        {"l": [1, 2, 3]},
        {"c": True},
        {"no": 1},
    ):
        assert check(wrong) is not None, wrong
