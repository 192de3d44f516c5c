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
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
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


class _UnfitError(Exception):
    """A part of the data that does not fit; each level that it passes through extends the path to the part."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(fault)
        self.path = path
        self.fault = fault


_Reader = Callable[[object], object]


def read_value(kind: type[_T], data: object) -> _T:
    """Returns the value of a public dataclass from its plain data.

    Raises:
        DataError: The data does not fit the class.
    """
    try:
        return cast("_T", _reader(kind)(data))  # type: ignore[arg-type]  # classes can be hashed
    except _UnfitError as unfit:
        raise DataError(f"{kind.__name__}{unfit.path} {unfit.fault}") from None


@cache
def _reader(hint: Any) -> _Reader:
    """Returns a function that reads values of a type.

    Cached, since inspecting a type takes longer than reading a value.
    """
    if hint is Result:
        return _result

    if dataclasses.is_dataclass(hint):
        return _reader_of_fields(cast("type", hint))

    origin, parts = get_origin(hint), get_args(hint)

    if origin in (Union, types.UnionType):
        return _reader_of_one(parts)

    if origin is Literal:
        return lambda data: _expect(data in parts, data, data)

    if origin in (tuple, list, Sequence):
        read_item = _reader(parts[0])
        return lambda data: tuple(
            [read_item(item) for item in _expect(isinstance(data, list), data, cast("list[object]", data))]
        )

    if origin is not None and issubclass(origin, Mapping):
        return _reader_of_mapping(_reader(parts[1]))

    return _plain_reader(hint)


def _reader_of_fields(kind: type) -> _Reader:
    # Filled by the first value and not here: a class may have fields of its own type.
    fields: list[tuple[str, _Reader, bool]] = []

    def read(data: object) -> object:
        if not fields:
            fields[:] = [(name, _reader(hint), is_required) for name, hint, is_required in _fields(kind)]

        values, given = _mapping(data), {}

        for name, read_field, is_required in fields:
            if name in values:
                try:
                    given[name] = read_field(values[name])
                except _UnfitError as unfit:
                    unfit.path = f".{name}{unfit.path}"
                    raise
            elif is_required:
                raise _UnfitError(f".{name}", "is missing")

        return kind(**given)

    return read


def _reader_of_mapping(read_item: _Reader) -> _Reader:
    def read(data: object) -> object:
        found = {}

        for name, item in _mapping(data).items():
            try:
                found[name] = read_item(item)
            except _UnfitError as unfit:
                unfit.path = f".{name}{unfit.path}"
                raise

        return found

    return read


def _reader_of_one(parts: tuple[Any, ...]) -> _Reader:
    kinds = [part for part in parts if part is not type(None)]

    # The only union of several types is JsonValue: any JSON value.
    if len(kinds) > 1:
        return _as_it_is

    read = _reader(kinds[0])
    return (lambda data: None if data is None else read(data)) if len(kinds) < len(parts) else read


def _plain_reader(hint: Any) -> _Reader:
    if hint is datetime:
        return _time

    if hint is bytes:
        return _bytes

    if hint is float:
        return _float

    if hint is bool:
        return lambda data: _expect(data is True or data is False, data, data)

    if hint in (str, int):
        return partial(_plain, hint)

    # JsonValue, and types without bounds of their own.
    return _as_it_is


def _as_it_is(data: object) -> object:
    return data


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


def _result(given: object) -> Result:
    data = _mapping(given)
    parts = {_MIMES[name]: _part(name, data[name]) for name in _MIMES if data.get(name) is not None}

    # "parts" is what a host daemon sends, see `fumehood.values.carried`.
    for name in ("extra", "parts"):
        parts |= {mime: _bytes(part) for mime, part in _mapping(data.get(name, {})).items()}

    return Result(
        parts=parts,
        metadata=cast("dict[str, JsonValue]", _mapping(data.get("metadata", {}))),
        is_main_result=bool(data.get("is_main_result")),
        display_id=cast("str | None", _reader(str | None)(data.get("display_id"))),
        truncated=cast("dict[str, int]", _reader(Mapping[str, int])(data.get("truncated", {}))),
    )


def _part(name: str, data: object) -> bytes:
    if name in _JSON:
        return json.dumps(data).encode()

    if name in _BINARY:
        return _bytes(data)

    return _expect(isinstance(data, str), data, str(data)).encode("utf-8", "replace")


def _float(data: object) -> float:
    if type(data) is float:
        return data

    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    try:
        return float(_expect(is_number, data, cast("float", data)))
    except OverflowError:
        raise _UnfitError("", "is a number that is too large") from None


def _time(data: object) -> datetime:
    try:
        return datetime.fromisoformat(cast("str", data))
    except (TypeError, ValueError):
        raise _UnfitError("", "is no time") from None


def _bytes(data: object) -> bytes:
    try:
        return base64.b64decode(cast("str", data), validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _UnfitError("", "is no base64") from None


def _plain(kind: type, data: object) -> object:
    # Most values are of exactly this type.
    if type(data) is kind:
        return data

    return _expect(isinstance(data, kind) and not isinstance(data, bool), data, data)


def _mapping(data: object) -> Mapping[str, object]:
    if type(data) is dict:
        return data

    return _expect(isinstance(data, dict), data, cast("dict[str, object]", data))


def _expect(fits: bool, data: object, value: _T) -> _T:
    if not fits:
        raise _UnfitError("", f"is {type(data).__name__}, which does not fit")

    return value
