"""What clients of code-exec send, checked.

Pure functions, used in the server process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import check_values

_MAX_FILES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeExecCall:
    """A call of code-exec."""

    code: str
    files: Mapping[str, str]
    is_interpreted: bool


def read_code_exec(body: bytes) -> CodeExecCall:
    """Returns what a client asks for.

    Raises:
        InvalidArgumentError: A field has the wrong form, or asks for what cannot be had here.
    """
    check_values(body)

    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None

    if not isinstance(value, dict):
        raise _refused("body", body[:80].decode("utf-8", "replace"), "a JSON object")

    if _flag(value, "strace"):
        raise _refused("strace", True, "false: in a sandbox no program may trace another")

    if not isinstance(value.get("code"), str):
        raise _refused("code", value.get("code"), "text")

    return CodeExecCall(
        code=value["code"], files=_files(value), is_interpreted=_flag(value, "interpreter_mode")
    )


def _flag(value: Mapping[str, Any], name: str) -> bool:
    flag = value.get(name) or False

    if not isinstance(flag, bool):
        raise _refused(name, flag, "true or false")

    return flag


def _files(value: Mapping[str, Any]) -> Mapping[str, str]:
    files = value.get("files") or {}

    if not isinstance(files, dict) or len(files) > _MAX_FILES:
        raise _refused("files", type(files).__name__, f"at most {_MAX_FILES} texts by path")

    for path, text in files.items():
        if not isinstance(text, str):
            raise _refused(f"files[{path!r}]", text, "text")

    return files


def _refused(field: str, value: object, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field=field, value=value, allowed=allowed)
