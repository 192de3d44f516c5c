"""The models of the requests of SandboxFusion's clients.

Used in the server process. A field of another form is refused with its name; fields of the protocol that are not needed
here are ignored.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from fumehood.server.json_bodies import (
    Allowed,
    AnyText,
    DialectBody,
    NothingIsEmptyList,
    Text,
    refused,
    required,
)

_MAX_SECONDS = 86_400.0
# A larger number is infinity, or too large for a fraction.
_MOST = 1e15
_MAX_FILES = 1000
_MAX_CELLS = 1000
_IGNORED = "IGNORE_THIS_FILE"


def _within(maximum: int) -> AfterValidator:
    def check(value: list[str], info: ValidationInfo) -> list[str]:
        if len(value) > maximum:
            raise refused(info.field_name, len(value), f"at most {maximum}")

        return value

    return AfterValidator(check)


def _seconds(value: float, info: ValidationInfo) -> float:
    if not 0 <= value <= _MAX_SECONDS:
        # The client knows the field by this name.
        name = (info.field_name or "").replace("_seconds", "_timeout")
        raise refused(name, value, f"seconds from 0 to {_MAX_SECONDS:g}")

    return value


def _decoded(given: Any) -> dict[str, bytes]:
    files = given or {}

    if not isinstance(files, dict) or len(files) > _MAX_FILES:
        raise refused("files", type(files).__name__, f"at most {_MAX_FILES} files as base64 by path")

    return {
        path: _content(path, text)
        for path, text in files.items()
        if text is not None and _IGNORED not in path
    }


def _content(path: str, text: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise refused(f"files[{path!r}]", text, "base64") from None


_Texts = Annotated[list[AnyText], NothingIsEmptyList, Allowed("a list of text")]
_Paths = Annotated[_Texts, _within(_MAX_FILES)]
_Number = Annotated[float, Field(ge=-_MOST, le=_MOST, allow_inf_nan=False), Allowed("a number")]
_Seconds = Annotated[_Number, AfterValidator(_seconds)]
_Files = Annotated[dict[AnyText, bytes], BeforeValidator(_decoded)]


class RunCodeCall(DialectBody):
    """A call of `/run_code`."""

    code: Text = required()
    # Some clients leave it out and mean Python.
    language: Text = "python"
    compile_seconds: _Seconds = Field(default=10.0, alias="compile_timeout")
    run_seconds: _Seconds = Field(default=10.0, alias="run_timeout")
    memory_mib: _Number = Field(default=-1.0, alias="memory_limit_MB")
    stdin: Annotated[AnyText | None, Allowed("text")] = None
    files: _Files = Field(default_factory=dict)
    fetch_files: _Paths = Field(default_factory=list)
    args: _Paths = Field(default_factory=list)


class RunJupyterCall(DialectBody):
    """A call of `/run_jupyter`; without a time for each cell, cells have no time limit of their own."""

    kernel: Annotated[Literal["python3"], Allowed("python3")] = "python3"
    cells: Annotated[_Texts, _within(_MAX_CELLS)]
    cell_seconds: _Seconds = Field(default=0.0, alias="cell_timeout")
    total_seconds: _Seconds = Field(default=45.0, alias="total_timeout")
    memory_mib: _Number = Field(default=-1.0, alias="memory_limit_MB")
    files: _Files = Field(default_factory=dict)
    fetch_files: _Paths = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _has_cells(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "cells" not in given:
            raise refused("cells", None, "a list of text")

        return given


def memory_bytes(call: RunCodeCall | RunJupyterCall) -> int | None:
    """Returns the memory that a call requests, or None for that of the template."""
    return int(call.memory_mib) << 20 if call.memory_mib > 0 else None
