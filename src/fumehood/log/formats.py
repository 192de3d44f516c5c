"""The formats of a line of the log: one JSON object, or text for a terminal.

A line is one line, whatever its values are: control characters are written out, texts are bounded. Of a record only
the fields that its event declares are written, so nothing that a library attaches to a record reaches the log.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterator, Sized
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from fumehood.text import visible, visible_line

FORMATS = ("console", "json")
_MAX_MESSAGE_CHARACTERS = 2_000
_MAX_VALUE_CHARACTERS = 500
_MAX_NAME_CHARACTERS = 100
# The most entries of a list or a mapping; one line names all settings of a server.
_MAX_ENTRIES = 200
_MAX_DEPTH = 5
_MAX_EXCEPTION_CHARACTERS = 20_000
_MAX_CHAIN = 8
_MAX_PARTS = 5
# Messages of these exceptions name files, attributes and states of the host only. Messages of others, such as those of
# parsers, validators and databases, may quote their input.
_QUOTING_NOTHING = (
    OSError,
    AttributeError,
    TypeError,
    NameError,
    RuntimeError,
    AssertionError,
    ImportError,
    MemoryError,
    BaseExceptionGroup,
)
_PLAIN = re.compile(r"[^\s\"'=\\{}\[\]]+")


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }

        if event := getattr(record, "event", ""):
            line["event"] = event

        line["message"] = _message(record)

        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id

        line.update({name: bounded(value) for name, value in fields_of(record).items()})

        if exception := _exception(record):
            line["exception"] = exception

        return json.dumps(line, default=lambda value: bounded(str(value)))


class ConsoleFormatter(logging.Formatter):
    """Time, level, logger, message and fields in one line of text; a traceback follows it."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {_message(record)}"
        fields = fields_of(record)

        if request_id := getattr(record, "request_id", ""):
            fields = {**fields, "request_id": request_id}

        if fields:
            line = f"{line} {pairs(fields)}"

        exception = _exception(record)
        return f"{line}\n{exception}" if exception else line


def formatter(name: str) -> logging.Formatter:
    """Returns the formatter of a format."""
    return JsonFormatter() if name == "json" else ConsoleFormatter()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields of a record's event; none for records of other libraries."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def pairs(fields: dict[str, Any]) -> str:
    """Returns fields as `name=value`, with quotes where a value has spaces."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if value is not None)


def bounded(value: Any, max_depth: int = _MAX_DEPTH) -> Any:
    """Returns a value without control characters, with texts, names and numbers of entries cut to their bounds."""
    if isinstance(value, str):
        return _line(value, _MAX_VALUE_CHARACTERS)

    if isinstance(value, float):
        return round(value, 6)

    if isinstance(value, dict | list | tuple) and not max_depth:
        return f"{len(value):,} entries"

    if isinstance(value, dict):
        named = {
            _line(str(name), _MAX_NAME_CHARACTERS): bounded(one, max_depth - 1)
            for name, one in islice(value.items(), _MAX_ENTRIES)
        }
        return {**named, "...": _left_out(value)} if len(value) > _MAX_ENTRIES else named

    if isinstance(value, list | tuple):
        some = [bounded(one, max_depth - 1) for one in value[:_MAX_ENTRIES]]
        return [*some, _left_out(value)] if len(value) > _MAX_ENTRIES else some

    return value


def _left_out(value: Sized) -> str:
    return f"{len(value) - _MAX_ENTRIES:,} more"


def _shown(value: Any) -> str:
    value = bounded(value)

    if isinstance(value, bool):
        return str(value).lower()

    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value

    if isinstance(value, int | float):
        return str(value)

    return json.dumps(value, ensure_ascii=False, default=str)


def _message(record: logging.LogRecord) -> str:
    # The message without the event's fields, which fumehood's formatters write separately.
    text = getattr(record, "text", None)
    return _line(text or record.getMessage(), _MAX_MESSAGE_CHARACTERS)


def _line(text: str, max_characters: int) -> str:
    # Most texts are plain: to examine each of their characters would be most of the cost of a line.
    if len(text) <= max_characters and text.isascii() and text.isprintable():
        return text

    return visible_line(text, max_characters=max_characters)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _exception(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""

    # The end of a traceback tells most.
    return visible("".join(_traceback(record.exc_info[1])).rstrip()[-_MAX_EXCEPTION_CHARACTERS:])


def _traceback(error: BaseException, depth: int = 0) -> Iterator[str]:
    """Yields the lines of a traceback as Python prints it, without messages that may quote what a request held."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    if before is not None and depth < _MAX_CHAIN:
        yield from _traceback(before, depth + 1)
        yield "\nwhich led to\n\n"

    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    kind = type(error)
    # An error of ours has words for the log, and others that may be a guest's.
    ours = getattr(error, "log_reason", None)
    said = (
        f": {ours}"
        if ours is not None
        else f": {error}"
        if isinstance(error, _QUOTING_NOTHING)
        else " (its message may quote a request: left out)"
    )
    yield f"{kind.__module__}.{kind.__qualname__}{said if str(error) else ''}\n"

    if isinstance(error, BaseExceptionGroup) and depth < _MAX_CHAIN:
        for part in error.exceptions[:_MAX_PARTS]:
            yield "\nas part of it\n\n"
            yield from _traceback(part, depth + 1)
