"""The model of the request of code-exec's clients.

Used in the server process.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from fumehood.server.json_bodies import Allowed, AnyText, DialectBody, NothingIsFalse, Text, refused, required

_MAX_FILES = 1000


def _no_tracing(value: bool, info: ValidationInfo) -> bool:
    if value:
        raise refused(info.field_name, True, "false: in a sandbox no program may trace another")

    return value


def _texts_by_path(given: Any) -> dict[str, str]:
    files = given or {}

    if not isinstance(files, dict) or len(files) > _MAX_FILES:
        raise refused("files", type(files).__name__, f"at most {_MAX_FILES} texts by path")

    for path, text in files.items():
        if not isinstance(text, str):
            raise refused(f"files[{path!r}]", text, "text")

    return files


_Flag = Annotated[bool, NothingIsFalse, Allowed("true or false")]


class CodeExecCall(DialectBody):
    """A call of code-exec."""

    strace: Annotated[_Flag, AfterValidator(_no_tracing)] = False
    code: Text = required()
    files: Annotated[dict[AnyText, AnyText], BeforeValidator(_texts_by_path)] = Field(default_factory=dict)
    is_interpreted: _Flag = Field(default=False, alias="interpreter_mode")
