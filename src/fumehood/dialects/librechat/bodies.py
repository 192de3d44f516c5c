"""The models of the execution requests of the code API, of both generations.

Used in the server process. A field of another form is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, InstanceOf

from fumehood.server.json_bodies import Allowed, AnyText, DialectBody, Text, refused, required

MAX_FILES = 500
_MAX_NAME = 1024
_MAX_SECONDS = 300.0
# A larger number is infinity, or too large for a fraction.
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
    """An input file of a run: its id, its storage session if it was given, and its name in the run."""

    id: str
    session_id: str | None
    name: str | None
    echoed: Mapping[str, Any]


def is_safe_name(name: str) -> bool:
    """Tells whether a file's name stays below its folder, and can be stored in every store."""
    parts = name.split("/")
    return (
        0 < len(name) <= _MAX_NAME
        and name.isprintable()
        and all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) < 256 for part in parts)
    )


def _is_repeatable(value: object) -> bool:
    """Tells whether a value can be encoded in a response: half a surrogate pair cannot."""
    return value.isprintable() if isinstance(value, str) else isinstance(value, int)


def _language(name: object) -> str:
    if not isinstance(name, str) or name.lower() not in _LANGUAGES:
        raise refused("lang", name, ", ".join(SPOKEN))

    return _LANGUAGES[name.lower()]


def _files(given: Any) -> list[FileRef]:
    files = given or []

    if not isinstance(files, list) or len(files) > MAX_FILES:
        raise refused("files", type(files).__name__, f"a list of at most {MAX_FILES} files")

    return [_file(item) for item in files]


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


_AN_ID = Allowed("an id that this server gave")
NothingIsNone = BeforeValidator(lambda value: None if value == "" else value)
Files = Annotated[list[InstanceOf[FileRef]], BeforeValidator(_files)]
# Clients give it in milliseconds.
Timeout = Annotated[
    Annotated[float, Field(gt=0, le=_MOST, allow_inf_nan=False)] | None,
    Allowed("milliseconds, more than 0"),
    AfterValidator(lambda value: None if value is None else min(value / 1000, _MAX_SECONDS)),
]


class ExecCall(DialectBody):
    """A call of `/exec`."""

    code: Text = required()
    language: Annotated[AnyText, BeforeValidator(_language)] = Field(
        default=None, validation_alias=AliasChoices("lang", "language"), validate_default=True
    )
    args: Annotated[
        Annotated[list[AnyText], Field(max_length=MAX_FILES)],
        BeforeValidator(lambda value: [value] if isinstance(value, str) and value else value or []),
        Allowed("a list of text"),
    ] = Field(default_factory=list)
    files: Files = Field(default_factory=list)
    session_id: Annotated[
        Annotated[str, Field(pattern=rf"^{_ID.pattern}$")] | None, NothingIsNone, _AN_ID
    ] = None
    seconds: Timeout = Field(default=None, alias="timeout")
