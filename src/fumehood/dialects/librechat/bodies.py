"""What clients of the code API send to be run, checked: JSON objects to frozen requests, of both generations.

Pure functions, used in the server process. What has another form is refused with the field's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import InvalidArgumentError

MAX_FILES = 500
_MAX_NAME = 1024
_MAX_SECONDS = 300.0
# More is none, such as infinity, or no fraction any more.
_MOST = 1e15
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LANGUAGES: Mapping[str, str] = {
    "py": "python",
    "python": "python",
    "python3": "python",
    "js": "javascript",
    "javascript": "javascript",
    "node": "javascript",
    "ts": "typescript",
    "typescript": "typescript",
    "c": "c",
    "cpp": "cpp",
    "c++": "cpp",
    "java": "java",
    "php": "php",
    "rs": "rust",
    "rust": "rust",
    "go": "go",
    "golang": "go",
    "d": "d",
    "f90": "fortran",
    "fortran": "fortran",
    "r": "r",
    "bash": "bash",
    "sh": "bash",
}
SPOKEN = ("py", "js", "ts", "c", "cpp", "java", "php", "rs", "go", "d", "f90", "r", "bash")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """A file that a run should find: its id, its storage session if it was given, and what it is to be called."""

    id: str
    session_id: str | None
    name: str | None
    echoed: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCall:
    """A call of `/exec`."""

    code: str
    language: str
    args: tuple[str, ...]
    files: tuple[FileRef, ...]
    session_id: str | None
    seconds: float | None


def read_exec(body: Mapping[str, Any]) -> ExecCall:
    """Returns a call of `/exec`.

    Raises:
        InvalidArgumentError: A field is missing or has the wrong form.
    """
    return ExecCall(
        code=text_of(body, "code"),
        language=_language(body),
        args=_args(body),
        files=read_files(body),
        session_id=_id(body, "session_id"),
        seconds=read_seconds(body),
    )


def read_files(body: Mapping[str, Any]) -> tuple[FileRef, ...]:
    """Returns the files that a call names."""
    files = body.get("files") or []

    if not isinstance(files, list) or len(files) > MAX_FILES:
        raise refused("files", type(files).__name__, f"a list of at most {MAX_FILES} files")

    return tuple(_file(item) for item in files)


def read_seconds(body: Mapping[str, Any]) -> float | None:
    """Returns the time of a run, which clients give in milliseconds."""
    value = body.get("timeout")

    if value is None:
        return None

    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST:
        raise refused("timeout", value, "milliseconds, more than 0")

    return min(value / 1000, _MAX_SECONDS)


def text_of(body: Mapping[str, Any], name: str) -> str:
    """Returns a field that must be there, and be text."""
    value = body.get(name)

    if not isinstance(value, str):
        raise refused(name, value, "text")

    return value


def is_safe_name(name: str) -> bool:
    """Tells whether a file's name leads to a place below its folder, and can stand in every store."""
    parts = name.split("/")
    return (
        0 < len(name) <= _MAX_NAME
        and name.isprintable()
        and all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) < 256 for part in parts)
    )


def _is_repeatable(value: object) -> bool:
    """Whether a value may stand in an answer: half a character has no place in any."""
    return value.isprintable() if isinstance(value, str) else isinstance(value, int)


def refused(field: str, value: object, allowed: str) -> InvalidArgumentError:
    """Returns the error for a field of the wrong form."""
    return InvalidArgumentError(field=field, value=value, allowed=allowed)


def _language(body: Mapping[str, Any]) -> str:
    name = body.get("lang", body.get("language"))

    if not isinstance(name, str) or name.lower() not in _LANGUAGES:
        raise refused("lang", name, ", ".join(SPOKEN))

    return _LANGUAGES[name.lower()]


def _args(body: Mapping[str, Any]) -> tuple[str, ...]:
    args = body.get("args") or []

    if isinstance(args, str):
        return (args,)

    if not isinstance(args, list) or not all(isinstance(item, str) for item in args) or len(args) > MAX_FILES:
        raise refused("args", args, "a list of text")

    return tuple(args)


def _id(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)

    if value is None or value == "":
        return None

    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise refused(name, value, "an id that this server gave")

    return value


def _file(item: object) -> FileRef:
    if not isinstance(item, dict):
        raise refused("files", item, "objects with id and name")

    name = item.get("name")

    if name is not None and (not isinstance(name, str) or not is_safe_name(name.removeprefix("/mnt/data/"))):
        raise refused("files.name", name, "a relative name without `..`")

    file_id = _id(item, "id") or _id(item, "fileId")

    if file_id is None:
        raise refused("files.id", None, "an id that this server gave")

    echoed = {key: item[key] for key in ("resource_id", "kind", "version") if _is_repeatable(item.get(key))}
    return FileRef(
        id=file_id,
        session_id=_id(item, "storage_session_id") or _id(item, "session_id"),
        name=None if name is None else name.removeprefix("/mnt/data/"),
        echoed=echoed,
    )
