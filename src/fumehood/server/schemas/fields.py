"""Types of fields that several bodies have: the bounds of `fumehood.values.requests` as JSON Schema.

The port checks again, in bytes; these bounds are there to be read by clients, and to name every fault of a body at
once.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

_NO_NUL = r"^[^\x00]*$"
_STRING_CHARACTERS = 128 * 1024
_CODE_CHARACTERS = 8 << 20
# Pydantic leaves this out beside `patternProperties`: no other names.
_CLOSED = Field(json_schema_extra={"additionalProperties": False})

Text = Annotated[str, Field(max_length=_STRING_CHARACTERS, pattern=_NO_NUL)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_NO_NUL)]
GuestPath = Annotated[str, Field(min_length=1, max_length=4096, pattern=_NO_NUL)]
Code = Annotated[str, Field(max_length=_CODE_CHARACTERS)]
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
