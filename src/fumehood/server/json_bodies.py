"""JSON bodies for dialects: bounds their size in memory, and reads their fields as a pydantic model.

Used in the server process. A byte of JSON can cost thirty in memory, and the loop stands still meanwhile, so the
values of a large body are counted before anything parses it; text and files are long, but take only their own size. A
refusal names the first invalid field, in the order of the model, and the values that it accepts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    InstanceOf,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.requests import Request

from fumehood.errors import InvalidArgumentError, RequestTooLargeError
from fumehood.server.admission import sent_while_right_lasts
from fumehood.values.json_values import check_values

_SHOWN_BYTES = 80


class DialectBody(BaseModel):
    """The body of a request in another protocol; fields that are not needed are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


_Body = TypeVar("_Body", bound=DialectBody)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Annotates the type of a field with a description of allowed values, which every refusal of a value contains."""

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema of the type, with one error that replaces all of the type's own errors."""
        return core_schema.custom_error_schema(handler(source), "refused", custom_error_message=self.text)


# Lone surrogates pass here, as everywhere; the code that uses the text refuses them where it must.
AnyText = InstanceOf[str]
Text = Annotated[AnyText, Allowed("text")]
# Many clients send null, or nothing of another type, for what they do not use.
NothingIsEmptyList = BeforeValidator(lambda value: value or [])
NothingIsFalse = BeforeValidator(lambda value: value or False)


def required() -> Any:
    """Returns the default of a required field: a missing field is refused like null."""
    return Field(default=None, validate_default=True)


def refused(field: str | None, value: object, allowed: str) -> InvalidArgumentError:
    """Returns the refusal of a field."""
    return InvalidArgumentError(field=field or "body", value=value, allowed=allowed)


def wrong_form(allowed: str) -> PydanticCustomError:
    """Returns the exception that a validator raises for an invalid value; the refusal contains the value's place."""
    return PydanticCustomError("refused", "{allowed}", {"allowed": allowed})


async def bounded_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body of a request.

    Raises:
        RequestTooLargeError: The body is larger than `max_bytes`.
        FumehoodError: The caller's credential stopped being valid while it sent the body.
    """
    body = bytearray()

    async for piece in sent_while_right_lasts(request.stream()):
        body += piece

        if len(body) > max_bytes:
            raise RequestTooLargeError(what="request", maximum=max_bytes)

    return bytes(body)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body.

    Raises:
        InvalidArgumentError: The body is not a JSON object.
    """
    check_values(body)

    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None

    if not isinstance(value, dict):
        raise refused("body", body[:_SHOWN_BYTES].decode("utf-8", "replace"), "a JSON object")

    return value


def read_body(kind: type[_Body], body: bytes) -> _Body:
    """Returns the body of a request as a model.

    Raises:
        InvalidArgumentError: The body is not a JSON object, or a field is missing or has the wrong form.
    """
    return read_fields(kind, read_object(body))


def read_fields(kind: type[_Body], values: dict[str, Any]) -> _Body:
    """Returns an object as a model.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")

        if isinstance(cause, InvalidArgumentError):
            raise cause from None

        raise refused(_place(first["loc"]), first["input"], first["msg"]) from None


def _place(names: tuple[str | int, ...]) -> str:
    """Returns the place of a field, as `steps[0].args`."""
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names).removeprefix(".")
