"""What clients of SandboxFusion send, checked: JSON objects to frozen requests.

Pure functions, used in the server process. What has another form is refused with the field's name; what the
protocol has and we do not need is passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import check_values

_MAX_SECONDS = 86_400.0
# More is none, such as infinity, or no fraction any more.
_MOST = 1e15
_MAX_FILES = 1000
_MAX_CELLS = 1000
_IGNORED = "IGNORE_THIS_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCodeCall:
    """A call of `/run_code`."""

    code: str
    language: str
    compile_seconds: float
    run_seconds: float
    memory_bytes: int | None
    stdin: str | None
    files: Mapping[str, bytes]
    fetch_files: tuple[str, ...]
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJupyterCall:
    """A call of `/run_jupyter`."""

    cells: tuple[str, ...]
    cell_seconds: float | None
    total_seconds: float
    memory_bytes: int | None
    files: Mapping[str, bytes]
    fetch_files: tuple[str, ...]


def read_object(body: bytes) -> Mapping[str, Any]:
    """Returns the JSON object of a body.

    Raises:
        InvalidArgumentError: It is something else.
    """
    check_values(body)

    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None

    if not isinstance(value, dict):
        raise _refused("body", body[:80].decode("utf-8", "replace"), "a JSON object")

    return value


def read_run_code(body: Mapping[str, Any]) -> RunCodeCall:
    """Returns a call of `/run_code`.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    return RunCodeCall(
        code=_text(body, "code"),
        # Some clients leave it out and mean this.
        language=_text(body, "language", "python"),
        compile_seconds=_seconds(body, "compile_timeout", 10.0),
        run_seconds=_seconds(body, "run_timeout", 10.0),
        memory_bytes=_memory_bytes(body),
        stdin=None if body.get("stdin") is None else _text(body, "stdin"),
        files=_files(body),
        fetch_files=_texts(body, "fetch_files", _MAX_FILES),
        args=_texts(body, "args", _MAX_FILES),
    )


def read_run_jupyter(body: Mapping[str, Any]) -> RunJupyterCall:
    """Returns a call of `/run_jupyter`.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    if "cells" not in body:
        raise _refused("cells", None, "a list of text")

    if body.get("kernel", "python3") != "python3":
        raise _refused("kernel", body["kernel"], "python3")

    return RunJupyterCall(
        cells=_texts(body, "cells", _MAX_CELLS),
        cell_seconds=_seconds(body, "cell_timeout", 0.0) or None,
        total_seconds=_seconds(body, "total_timeout", 45.0),
        memory_bytes=_memory_bytes(body),
        files=_files(body),
        fetch_files=_texts(body, "fetch_files", _MAX_FILES),
    )


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)

    if not isinstance(value, str):
        raise _refused(name, value, "text")

    return value


def _texts(body: Mapping[str, Any], name: str, maximum: int) -> tuple[str, ...]:
    value = body.get(name) or []

    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _refused(name, value, "a list of text")

    if len(value) > maximum:
        raise _refused(name, len(value), f"at most {maximum}")

    return tuple(value)


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)

    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_MOST <= value <= _MOST:
        raise _refused(name, value, "a number")

    return float(value)


def _seconds(body: Mapping[str, Any], name: str, default: float) -> float:
    value = _number(body, name, default)

    if not 0 <= value <= _MAX_SECONDS:
        raise _refused(name, value, f"seconds from 0 to {_MAX_SECONDS:g}")

    return value


def _memory_bytes(body: Mapping[str, Any]) -> int | None:
    value = _number(body, "memory_limit_MB", -1.0)
    return int(value) << 20 if value > 0 else None


def _files(body: Mapping[str, Any]) -> Mapping[str, bytes]:
    value = body.get("files") or {}

    if not isinstance(value, dict) or len(value) > _MAX_FILES:
        raise _refused("files", type(value).__name__, f"at most {_MAX_FILES} files as base64 by path")

    return {
        path: _content(path, text)
        for path, text in value.items()
        if text is not None and _IGNORED not in path
    }


def _content(path: str, text: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise _refused(f"files[{path!r}]", text, "base64") from None


def _refused(field: str, value: object, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field=field, value=value, allowed=allowed)
