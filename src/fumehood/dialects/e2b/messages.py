"""The base class of E2B's messages, and the types of their fields as in protobuf's JSON.

Pure, used in the server process. Names are taken as `camelCase` or `snake_case`, and null counts as a missing field.
Protobuf writes whole numbers of 64 bits as text, enumerations by name or number, and bytes as base64.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    AliasGenerator,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    model_validator,
)
from pydantic.alias_generators import to_camel

from fumehood.server.json_bodies import Allowed, AnyText, DialectBody, wrong_form

# JSON has infinity, by 1e999, and whole numbers of a thousand digits, too large for a float.
_MOST = 1 << 64
_MAX_DIGITS = 20
_DIGITS = re.compile("-?[0-9]+")
_MAX_SECONDS = 86_400 * 365


class ClientMessage(DialectBody):
    """Base of JSON bodies: names in camelCase or snake_case; null counts as absent."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=lambda name: AliasChoices(to_camel(name), name))
    )

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None}


def _whole(value: object) -> int:
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _DIGITS.fullmatch(value):
        return int(value)

    is_number = isinstance(value, int | float) and not isinstance(value, bool)

    if not is_number or not -_MOST < value < _MOST or value != value // 1:  # type: ignore[operator]
        raise ValueError

    return int(value)


def _name_or_number(value: object) -> str | int:
    return value if isinstance(value, str) else _whole(value)


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError

    return base64.b64decode(value.replace("-", "+").replace("_", "/") + "==")


def _tuple(value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError

    return tuple(value)


def _object(value: object) -> object:
    if not isinstance(value, dict):
        raise wrong_form("an object")

    return value


def objects(most: int) -> BeforeValidator:
    """Returns a validator for a list of messages (`AnObject` is the one for a single message).

    The number of items is checked before they become models, each of which costs as much as a hundred bytes of JSON.
    """

    def check(value: object) -> object:
        if (
            not isinstance(value, list)
            or len(value) > most
            or not all(isinstance(one, dict) for one in value)
        ):
            raise wrong_form(f"a list of at most {most} objects")

        return value

    return BeforeValidator(check)


def messages_by_name(most: int) -> BeforeValidator:
    """Returns a validator for an object whose values are messages, which bounds the number of its fields."""

    def check(value: object) -> object:
        if not isinstance(value, dict) or len(value) > most:
            raise wrong_form(f"an object of at most {most} fields")

        return value

    return BeforeValidator(check)


Whole = Annotated[int, BeforeValidator(_whole), Allowed("a whole number")]
NameOrNumber = Annotated[str | int, BeforeValidator(_name_or_number), Allowed("a name or a whole number")]
Number = Annotated[float, Field(gt=-_MOST, lt=_MOST, allow_inf_nan=False), Allowed("a number")]
Seconds = Annotated[
    float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False), Allowed("seconds from 0 to a year")
]
Flag = Annotated[bool, Allowed("true or false")]
Texts = Annotated[tuple[AnyText, ...], BeforeValidator(_tuple), Allowed("a list of texts")]
TextMap = Annotated[dict[str, AnyText], Allowed("a map of texts")]
Bytes = Annotated[InstanceOf[bytes], BeforeValidator(_bytes), Allowed("base64")]
# An annotation of a message in another one: what is wrong inside is named with its place.
AnObject = BeforeValidator(_object)


def is_filled(value: object) -> bool:
    """Returns whether a value is not empty: clients send empty lists and objects for unused fields."""
    return value not in (None, "", [], {})
