"""The building blocks of models of requests and responses: types of fields, and models made from dataclasses.

The bounds of `fumehood.values.requests` stand here as JSON Schema, so that clients can read them and every fault
of a body is named at once; the port checks again, in bytes. A response is `fumehood.values.plain_data.as_data` of a
value, so its description is derived from the same class: names, types and the texts of its docstring. No response
passes through these models; they describe, and tests compare the responses to them.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from fumehood.values.requests import MAX_CODE_BYTES

_NO_NUL = r"^[^\x00]*$"
_STRING_CHARACTERS = 128 * 1024
# Pydantic leaves this out beside `patternProperties`: no other names.
_CLOSED = Field(json_schema_extra={"additionalProperties": False})

Text = Annotated[str, Field(max_length=_STRING_CHARACTERS, pattern=_NO_NUL)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_NO_NUL)]
GuestPath = Annotated[str, Field(min_length=1, max_length=4096, pattern=_NO_NUL)]
Code = Annotated[str, Field(max_length=MAX_CODE_BYTES)]
Seconds = Annotated[float, Field(ge=0.001, le=86_400 * 365)]
ExecutionSeconds = Annotated[float, Field(ge=0.001, le=86_400)]
Envs = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^=\x00]+$")], Text], _CLOSED
]
Labels = Annotated[dict[Annotated[str, Field(min_length=1, max_length=4096, pattern=_NO_NUL)], Text], _CLOSED]
BASE64_PATTERN = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class Body(BaseModel):
    """A request body: these fields, of these types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_kind_of_number(cls, given: object) -> object:
        """Accepts a whole float for an int: JSON has one kind of number."""
        if not isinstance(given, dict):
            return given

        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in given.items()
        }


Base64 = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
_ATTRIBUTE = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
_PLAIN = (str, int, float, bool, type(None), datetime)
_made: dict[type, type[BaseModel]] = {}
_B = TypeVar("_B", bound=BaseModel)
_T = TypeVar("_T")


def model_of(
    source: type, *, kind: str | None = None, other: Mapping[str, Any] | None = None
) -> type[BaseModel]:
    """Returns the model of the plain data that `as_data` makes from a dataclass.

    Args:
        source: The dataclass.
        kind: If given, the model has a field `type` with this value, as lines of a stream have.
        other: Types of fields that are added, or that differ from the annotation.
    """
    if source in _made and kind is None and other is None:
        return _made[source]

    words = described_fields(source)
    hints = {**get_type_hints(source), **(other or {})}
    given: dict[str, Any] = {"type": Literal[kind]} if kind else {}
    # Init-only arguments have no field.
    given |= {
        name: _type_of(hint) for name, hint in hints.items() if not isinstance(hint, dataclasses.InitVar)
    }

    described: Any = {name: (hint, Field(description=words.get(name))) for name, hint in given.items()}
    summary = (source.__doc__ or "").partition("\n")[0]
    model = create_model(source.__name__, __doc__=summary, __module__=__name__, **described)
    return model if kind else _made.setdefault(source, model)


def described_fields(source: type) -> dict[str, str]:
    """Returns the description of each attribute of a class, from its docstring or its declaration."""
    text = (source.__doc__ or "").partition("Attributes:\n")[2]
    words = {name: " ".join(words.split()) for name, words in _ATTRIBUTE.findall(textwrap.dedent(text))}
    declared = dataclasses.fields(source) if dataclasses.is_dataclass(source) else ()
    return words | {item.name: item.metadata["description"] for item in declared if item.metadata}


def with_flags_of(source: type, *, without: Collection[str] = ()) -> Callable[[type[_B]], type[_B]]:
    """Adds to a body the fields of a request that are True or False, as the request declares and describes them.

    Args:
        source: The class of the request.
        without: The fields that a caller may not set.
    """

    def extended(body: type[_B]) -> type[_B]:
        words = described_fields(source)
        flags: Any = {
            item.name: (bool, Field(item.default, description=words[item.name]))
            for item in dataclasses.fields(source)
            if isinstance(item.default, bool) and item.name not in {*body.model_fields, *without}
        }
        return create_model(
            body.__name__, __base__=body, __doc__=body.__doc__, __module__=body.__module__, **flags
        )

    return extended


def request_of(source: type[_T], body: BaseModel, **given: Any) -> _T:
    """Returns the request that a body describes: its fields by name, except those in `given`."""
    names = {item.name for item in dataclasses.fields(source) if item.init} - given.keys()  # type: ignore[arg-type]
    return source(**{name: getattr(body, name) for name in names}, **given)


def _type_of(hint: Any) -> Any:
    """Returns the type of `as_data(value)` for a value of this type."""
    origin, parts = get_origin(hint), get_args(hint)

    if hint is bytes:
        return Base64

    if hint in _PLAIN or origin is Literal or origin is Annotated or _is_model(hint):
        return hint

    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return model_of(hint)

    if origin in (Union, types.UnionType):
        return Union[tuple(_type_of(part) for part in parts)]  # noqa: UP007 - made at run time

    if origin in (tuple, list, Sequence):
        return list[_type_of(parts[0])]  # type: ignore[misc]

    if origin is not None and issubclass(origin, Mapping):
        return dict[str, _type_of(parts[1])]  # type: ignore[misc]

    # JSON of the guest, of any form.
    return Any


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)
