"""Checks of callers' values: text, paths, environments, numbers.

Used on both sides of the port; pure. Each check raises InvalidArgumentError, which names the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.values.languages import ABSENT, CONTEXT_LANGUAGES, find_language, known_language
from fumehood.values.sandbox import PtySize

# PATH_MAX of Linux, limits.h.
_MAX_PATH_BYTES = 4096
# MAX_ARG_STRLEN and ARG_MAX of Linux: 32 pages for one string, 2 MiB for all of them.
MAX_STRING_BYTES = 128 * 1024
_MAX_STRINGS_BYTES = 1 << 20
# Labels of a sandbox are in each list, each event of a change, and the index of kept records, which is in memory.
MAX_LABELS = 64
MAX_LABEL_NAME_CHARACTERS = 128
MAX_LABELS_BYTES = 16 * 1024
# PID_MAX_LIMIT of Linux, threads.h.
_MAX_PID = 1 << 22
# The boolean fields of each dataclass.
_flags: dict[type, tuple[str, ...]] = {}
# The maximum that the guest reports for a file (`fumehood_guest.init.files`).
_MAX_METADATA = 64
_MAX_METADATA_BYTES = 6 * 1024
_METADATA_NAME = re.compile(r"[a-z0-9!#$%&'*+\-.^_`|~]{1,200}", re.ASCII)
_METADATA_VALUE = re.compile(r"[\x20-\x7e]{0,4096}", re.ASCII)


def check_text(field: str, value: object, *, max_bytes: int, empty: bool = False, nul: bool = False) -> None:
    """Raise InvalidArgumentError unless `value` is text that UTF-8 can encode and is not too long."""
    encoding = ""

    if isinstance(value, str) and (value or empty) and (nul or "\0" not in value):
        try:
            if len(value.encode()) <= max_bytes:
                return
        except UnicodeEncodeError:
            encoding = ", encodable as UTF-8"

    allowed = f"text of {'0' if empty else '1'} to {max_bytes:,} bytes{'' if nul else ' without NUL'}"
    raise InvalidArgumentError(field=field, value=value, allowed=f"{allowed}{encoding}")


def check_path(field: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` can be a path; relative ones start at /home/user."""
    check_text(field, value, max_bytes=_MAX_PATH_BYTES)


def check_strings(field: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` maps text to text, of bounded size."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(field=field, value=value, allowed="a mapping of text to text")

    total = 0

    for name, text in value.items():
        check_text(f"{field} name", name, max_bytes=MAX_STRING_BYTES)
        check_text(f"{field}[{name!r}]", text, max_bytes=MAX_STRING_BYTES, empty=True)
        total += len(name) + len(text)

    if total > _MAX_STRINGS_BYTES:
        raise InvalidArgumentError(
            field=field, value=f"{total} bytes", allowed=f"at most {_MAX_STRINGS_BYTES} bytes"
        )


def check_labels(value: object) -> None:
    """Raise InvalidArgumentError unless `value` can be the labels of a sandbox, or changes of them."""
    check_strings("metadata", value)
    labels = value if isinstance(value, Mapping) else {}
    size_bytes = sum(len(name.encode()) + len(text.encode()) for name, text in labels.items())
    longest = max(map(len, labels), default=0)

    if len(labels) > MAX_LABELS:
        raise InvalidArgumentError(
            field="metadata", value=f"{len(labels)} labels", allowed=f"at most {MAX_LABELS} labels"
        )

    if longest > MAX_LABEL_NAME_CHARACTERS:
        raise InvalidArgumentError(
            field="metadata",
            value=f"a name of {longest} characters",
            allowed=f"names of at most {MAX_LABEL_NAME_CHARACTERS} characters",
        )

    if size_bytes > MAX_LABELS_BYTES:
        raise InvalidArgumentError(
            field="metadata",
            value=f"{size_bytes:,} bytes",
            allowed=f"at most {MAX_LABELS_BYTES:,} bytes of UTF-8, names and values together",
        )


def check_envs(value: object) -> None:
    """Raise InvalidArgumentError unless `value` can be an environment."""
    check_strings("envs", value)

    if isinstance(value, Mapping):
        for name in value:
            if "=" in name:
                raise InvalidArgumentError(field="envs name", value=name, allowed="a name without '='")


def check_language(value: object) -> str:
    """Return the name of a language that contexts speak, which may be given by an alias.

    Raises:
        InvalidArgumentError: No language has this name.
    """
    language = find_language(value)

    if language is None:
        names = " or ".join(repr(name) for name in (*CONTEXT_LANGUAGES, "kernel:NAME"))
        absent = ABSENT.get(value) if isinstance(value, str) else None
        why = f"; {value} is not there: {absent}" if absent else ""
        raise InvalidArgumentError(field="language", value=value, allowed=names + why)

    return language.name


def check_program_language(value: object) -> str:
    """Return the name of a language that runs whole programs, which may be given by an alias.

    Raises:
        InvalidArgumentError: No language has this name.
    """
    name = check_language(value)

    if known_language(name).source is None:
        names = " or ".join(repr(one) for one in CONTEXT_LANGUAGES)
        raise InvalidArgumentError(field="language", value=value, allowed=names)

    return name


def check_integer(field: str, value: object, *, low: int, high: int) -> None:
    """Raise InvalidArgumentError unless `value` is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(field=field, value=value, allowed=f"a whole number from {low} to {high}")


def check_flags(request: Any, **shown: str) -> None:
    """Refuse a dataclass whose boolean fields hold anything but True or False.

    Args:
        request: The dataclass.
        shown: Field -> its name in the public API, where that differs.
    """
    kind = type(request)

    if kind not in _flags:
        _flags[kind] = tuple(item.name for item in fields(kind) if isinstance(item.default, bool))

    for name in _flags[kind]:
        check_bool(shown.get(name, name), getattr(request, name))


def check_bool(field: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(field=field, value=value, allowed="True or False")


def check_size(size: PtySize) -> None:
    """Raise InvalidArgumentError unless a terminal can have this size."""
    check_integer("cols", size.cols, low=1, high=10_000)
    check_integer("rows", size.rows, low=1, high=10_000)


def check_pid(value: object) -> None:
    """Raise InvalidArgumentError unless `value` can be the pid of a command."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_PID:
        raise InvalidArgumentError(
            field="pid",
            value=value,
            allowed=f"a number from 1 to {_MAX_PID}, as `commands.list()` names them",
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise unless these can be the metadata of a file: few names as in HTTP headers, with printable ASCII values."""
    size = 0

    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name):
            raise InvalidArgumentError(
                field="metadata",
                value=name,
                allowed="names of up to 200 lower-case letters, digits and !#$%&'*+-.^_`|~",
            )

        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidArgumentError(
                field=f"metadata[{name!r}]", value=value, allowed="printable ASCII, up to 4096 characters"
            )

        size += len(name) + len(value)

    if len(metadata) > _MAX_METADATA or size > _MAX_METADATA_BYTES:
        raise InvalidArgumentError(
            field="metadata",
            value=f"{len(metadata)} names, {size} characters",
            allowed=f"at most {_MAX_METADATA} names and {_MAX_METADATA_BYTES} characters",
        )
