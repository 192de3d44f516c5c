"""Sends the log of a process to standard error: for processes that are ours, never for a program that imports us.

Loggers below `fumehood` have the requested level. For other libraries only warnings and errors are written: at
their lower levels some show statements of the database with their values.
"""

from __future__ import annotations

import logging

from fumehood.log.formats import formatter
from fumehood.log.repeats import limit_repeats
from fumehood.log.request_ids import RequestIdFilter


def configure(level: str, format_name: str) -> None:
    """Writes the log of this process to standard error, unless its program has configured logging before.

    Args:
        level: debug, info, warning or error.
        format_name: One of `FORMATS`.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(format_name))
    handler.addFilter(RequestIdFilter())
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])
    logging.getLogger("fumehood").setLevel(number)
    logging.getLogger("uvicorn.error").addFilter(_holds_no_secret)
    logging.captureWarnings(True)
    limit_repeats(logging.getLogger())


def _holds_no_secret(record: logging.LogRecord) -> bool:
    """Leaves out uvicorn's lines about WebSockets: their addresses may contain tokens."""
    return '"WebSocket ' not in str(record.msg)
