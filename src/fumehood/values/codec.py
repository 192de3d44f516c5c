"""Reads public values back from the plain data that `fumehood.values.plain_data` makes.

Data from a server is checked: a field that is missing, or of another type, raises DataError with its name. Unknown
fields are ignored, since a newer server may have more.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fumehood.values.charts import JsonValue
from fumehood.values.execution import Logs
from fumehood.values.results import FORMATS, Result

_T = TypeVar("_T")
_MIMES = {name: mime for mime, name in FORMATS.items()}
_BINARY = ("png", "jpeg", "pdf")
_JSON = ("json", "data", "chart")


class DataError(ValueError):
    """The data does not describe a value of this class."""


def read_value(kind: type[_T], data: object) -> _T:
    """Returns the value of a public dataclass from its plain data.

    Raises:
        DataError: The data does not fit the class.
    """
    return cast("_T", _read(kind, data, kind.__name__))


def _read(hint: Any, data: object, where: str) -> object:
    if hint is Result:
        return _result(_mapping(data, where), where)

    if dataclasses.is_dataclass(hint):
        return _dataclass(cast("type", hint), _mapping(data, where), where)

    origin, parts = get_origin(hint), get_args(hint)

    if origin in (Union, types.UnionType):
        return None if data is None and type(None) in parts else _read_one_of(parts, data, where)

    if origin is Literal:
        return _expect(data in parts, data, where, data)

    if origin in (tuple, list, Sequence):
        items = _expect(isinstance(data, list), data, where, cast("list[object]", data))
        return tuple(_read(parts[0], item, where) for item in items)

    if origin is not None and issubclass(origin, Mapping):
        given = _mapping(data, where).items()
        return {name: _read(parts[1], item, f"{where}.{name}") for name, item in given}

    return _plain(hint, data, where)


def _read_one_of(parts: tuple[Any, ...], data: object, where: str) -> object:
    kinds = [part for part in parts if part is not type(None)]
    # The only union of several types is JsonValue: any JSON value.
    return data if len(kinds) > 1 else _read(kinds[0], data, where)


def _plain(hint: Any, data: object, where: str) -> object:
    if hint is datetime:
        return _time(data, where)

    if hint is bytes:
        return _bytes(data, where)

    if hint is float:
        return _float(data, where)

    if hint in (str, int, bool):
        fits = isinstance(data, hint) and (hint is bool or not isinstance(data, bool))
        return _expect(fits, data, where, data)

    # JsonValue, and types without bounds of their own.
    return data


def _dataclass(kind: type, data: Mapping[str, object], where: str) -> object:
    given = {}

    for name, hint, is_required in _fields(kind):
        if name in data:
            given[name] = _read(hint, data[name], f"{where}.{name}")
        elif is_required:
            raise DataError(f"{where}.{name} is missing")

    return kind(**given)


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    # The other fields of the logs are derived from their entries.
    return tuple(
        (
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if kind is not Logs or field.name == "entries"
    )


def _result(data: Mapping[str, object], where: str) -> Result:
    parts = {_MIMES[name]: _part(name, data[name], where) for name in _MIMES if data.get(name) is not None}

    # "parts" is what a host daemon sends, see `fumehood.values.carried`.
    for name in ("extra", "parts"):
        given = _mapping(data.get(name, {}), where)
        parts |= {mime: _bytes(part, where) for mime, part in given.items()}

    return Result(
        parts=parts,
        metadata=cast("dict[str, JsonValue]", _mapping(data.get("metadata", {}), where)),
        is_main_result=bool(data.get("is_main_result")),
        display_id=cast("str | None", _read(str | None, data.get("display_id"), where)),
        truncated=cast("dict[str, int]", _read(Mapping[str, int], data.get("truncated", {}), where)),
    )


def _part(name: str, data: object, where: str) -> bytes:
    if name in _JSON:
        return json.dumps(data).encode()

    if name in _BINARY:
        return _bytes(data, where)

    return _expect(isinstance(data, str), data, where, str(data)).encode("utf-8", "replace")


def _float(data: object, where: str) -> float:
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    try:
        return float(_expect(is_number, data, where, cast("float", data)))
    except OverflowError:
        raise DataError(f"{where} is a number that is too large") from None


def _time(data: object, where: str) -> datetime:
    try:
        return datetime.fromisoformat(cast("str", data))
    except (TypeError, ValueError):
        raise DataError(f"{where} is no time") from None


def _bytes(data: object, where: str) -> bytes:
    try:
        return base64.b64decode(cast("str", data), validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise DataError(f"{where} is no base64") from None


def _mapping(data: object, where: str) -> Mapping[str, object]:
    return _expect(isinstance(data, dict), data, where, cast("dict[str, object]", data))


def _expect(fits: bool, data: object, where: str, value: _T) -> _T:
    if not fits:
        raise DataError(f"{where} is {type(data).__name__}, which does not fit")

    return value
