"""Rules: what the value of one field may be.

A rule is called with a value out of a decoded header and returns what is wrong with it, or None. The
message tables are made of rules, in the host and in the guest. A rule must never convert or repair: it asks
for the exact type, so that a bool is no integer, and it has a bound for every kind of value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Optional

__all__ = [
    "Rule",
    "any_object",
    "anything",
    "entries",
    "flag",
    "integer",
    "is_mime_name",
    "items",
    "mime_sizes",
    "nothing",
    "nullable",
    "number",
    "one_of",
    "record",
    "text",
]

# type-name "/" subtype-name of RFC 6838 section 4.2, without parameters.
_MIME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")

Rule = Callable[[object], Optional[str]]


def text(max_chars: int, pattern: re.Pattern[str] | None = None) -> Rule:
    """A string of at most `max_chars` characters that the pattern, if any, matches as a whole."""

    def fault(value: object) -> str | None:
        if type(value) is not str:
            return "is not a string"

        if len(value) > max_chars:
            return f"has {len(value)} characters, limit {max_chars}"

        if pattern is not None and pattern.fullmatch(value) is None:
            return f"does not match {pattern.pattern!a}"

        return None

    return fault


def one_of(*values: str) -> Rule:
    """Returns a rule that accepts exactly these strings."""
    allowed = frozenset(values)

    def fault(value: object) -> str | None:
        if type(value) is str and value in allowed:
            return None

        return f"is none of {', '.join(values)}"

    return fault


def integer(low: int, high: int) -> Rule:
    """A whole number between two bounds, both allowed."""

    def fault(value: object) -> str | None:
        if type(value) is int and low <= value <= high:
            return None

        return f"is not an integer from {low} to {high}"

    return fault


def number(low: float, high: float) -> Rule:
    """A finite number between two bounds, both allowed."""

    def fault(value: object) -> str | None:
        if (type(value) is float or type(value) is int) and low <= value <= high:
            return None

        return f"is not a number from {low:g} to {high:g}"

    return fault


def flag(*, only: bool | None = None) -> Rule:
    """True or false; with `only`, just that value."""

    def fault(value: object) -> str | None:
        if type(value) is not bool:
            return "is not true or false"

        if only is not None and value is not only:
            return f"is not {str(only).lower()}"

        return None

    return fault


def anything(value: object) -> str | None:
    """Any value at all; only the decoder's bounds hold. This is a rule itself."""
    return None


def any_object(value: object) -> str | None:
    """An object with any content; only the decoder's bounds hold. This is a rule itself."""
    return None if type(value) is dict else "is not an object"


def nothing(value: object) -> str | None:
    """The value null. This is a rule itself."""
    return None if value is None else "is not null"


def nullable(rule: Rule) -> Rule:
    """The value null, or one that follows the rule."""

    def fault(value: object) -> str | None:
        return None if value is None else rule(value)

    return fault


def items(rule: Rule, max_items: int) -> Rule:
    """A list of values that all follow one rule."""

    def fault(value: object) -> str | None:
        if type(value) is not list:
            return "is not a list"

        if len(value) > max_items:
            return f"has {len(value)} items, limit {max_items}"

        return next((f"item {wrong}" for wrong in map(rule, value) if wrong), None)

    return fault


def entries(key: Rule, content: Rule, max_entries: int) -> Rule:
    """An object used as a mapping: one rule for all keys, and one for all values."""

    def fault(value: object) -> str | None:
        if type(value) is not dict:
            return "is not an object"

        if len(value) > max_entries:
            return f"has {len(value)} entries, limit {max_entries}"

        wrongs = (key(name) or content(item) for name, item in value.items())
        return next((f"entry {wrong}" for wrong in wrongs if wrong), None)

    return fault


def mime_sizes(max_items: int, max_bytes: int) -> Rule:
    """A list of [MIME name, byte count] pairs, no name twice."""

    def fault(value: object) -> str | None:
        if type(value) is not list or len(value) > max_items:
            return f"is not a list of at most {max_items} items"

        names = set()

        for pair in value:
            if type(pair) is not list or len(pair) != 2:
                return "item is not a [name, bytes] pair"

            name, size_bytes = pair

            if type(name) is not str or not is_mime_name(name):
                return "item has no MIME name"

            if type(size_bytes) is not int or not 0 <= size_bytes <= max_bytes:
                return f"item has no byte count up to {max_bytes}"

            names.add(name)

        return None if len(names) == len(value) else "has a MIME name twice"

    return fault


def record(
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] | None = None,
    *,
    exclusive: Mapping[str, Rule] | None = None,
) -> Rule:
    """An object with named fields: all the required ones, perhaps optional ones, and no others.

    Exactly one of the exclusive fields must be present, if there are any.
    """
    required_names = frozenset(required)
    exclusive_names = frozenset(exclusive or ())
    rules: dict[str, Rule] = {**required, **(optional or {}), **(exclusive or {})}

    def fault(value: object) -> str | None:
        if type(value) is not dict:
            return "is not an object"

        for name, item in value.items():
            rule = rules.get(name)

            if rule is None:
                return f"has an unknown field {name[:40]!a}"

            wrong = rule(item)

            if wrong is not None:
                return f'field "{name}" {wrong}'

        if not required_names.issubset(value):
            return f"lacks {', '.join(sorted(required_names.difference(value)))}"

        if exclusive_names and len(exclusive_names.intersection(value)) != 1:
            return f"has not exactly one of {', '.join(sorted(exclusive_names))}"

        return None

    return fault


def is_mime_name(name: str) -> bool:
    """Return whether a name may stand for a part: type and subtype, without parameters."""
    return _MIME_NAME.fullmatch(name) is not None
