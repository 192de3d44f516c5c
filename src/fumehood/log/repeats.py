"""Bounds what one cause can write to the log: the first records of it in a window, then one line with a count.

Runs in the server process and in the host daemon, as a filter of the log's handlers. What is dropped is never
formatted, so a traceback that a client can provoke costs neither time nor disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from traceback import walk_tb
from types import TracebackType
from typing import TypeAlias

from fumehood.log import events

FIRST_RECORDS = 5
WINDOW_SECONDS = 30.0
_MAX_CAUSES = 1000
_IS_SUMMARY = "fumehood_is_summary"
_Cause: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class _Window:
    """The records of one cause since the first of them."""

    name: str
    level: int
    place: str
    first_records: int
    until: float
    count: int = 0


class RepeatFilter(logging.Filter):
    """Lets the first records of each cause pass, and counts the others.

    A cause is the logger, the level and the line of code that logs, with the type of an exception and the line that
    raised it. Only warnings and errors are counted, and records that have a bound of their own. How many were left
    out is said once, when the window has ended.

    Args:
        handler: The handler that it filters for, to which it gives the summaries.
        first_records: How many of a cause pass in a window.
        window_seconds: How long a window is, from its first record on.
    """

    def __init__(
        self,
        handler: logging.Handler,
        *,
        first_records: int = FIRST_RECORDS,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._first_records = first_records
        self._window_seconds = window_seconds
        self._windows: OrderedDict[_Cause, _Window] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is written."""
        own = getattr(record, "max_in_window", None)
        first_records = own or self._first_records

        if (record.levelno < logging.WARNING and own is None) or getattr(record, _IS_SUMMARY, False):
            return True

        cause = _cause_of(record)
        ended = None

        with self._lock:
            window = self._windows.get(cause)

            if window is None or window.until <= time.monotonic():
                ended = self._windows.pop(cause, None)
                window = self._open(cause, record, first_records)

            window.count += 1
            is_written = window.count <= first_records

            if window.count == first_records + 1:
                self._summarise_later(cause, window)

        if ended is not None:
            self._summarise(ended)

        return is_written

    def _open(self, cause: _Cause, record: logging.LogRecord, first_records: int) -> _Window:
        place = f"{record.filename}:{record.lineno}"
        window = _Window(
            record.name, record.levelno, place, first_records, time.monotonic() + self._window_seconds
        )
        self._windows[cause] = window

        while len(self._windows) > _MAX_CAUSES:
            self._windows.popitem(last=False)

        return window

    def _summarise_later(self, cause: _Cause, window: _Window) -> None:
        timer = threading.Timer(self._window_seconds, self._end, (cause, window))
        # It does not keep the process from ending.
        timer.daemon = True
        timer.start()

    def _end(self, cause: _Cause, window: _Window) -> None:
        with self._lock:
            if self._windows.get(cause) is window:
                del self._windows[cause]

        self._summarise(window)

    def _summarise(self, window: _Window) -> None:
        left_out, window.count = window.count - window.first_records, 0

        if left_out <= 0:
            return

        record = logging.LogRecord(
            window.name,
            window.level,
            window.place,
            0,
            "%d more records like the last ones from %s were left out within %g s",
            (left_out, window.place, self._window_seconds),
            None,
        )
        setattr(record, _IS_SUMMARY, True)
        record.event = events.LOG_REPEATS.name
        record.fields = {
            "left_out": left_out,
            "place": window.place,
            "window_seconds": self._window_seconds,
        }
        self._handler.handle(record)


def limit_repeats(logger: logging.Logger) -> None:
    """Adds a `RepeatFilter` to each handler of a logger, once."""
    for handler in logger.handlers:
        if not any(isinstance(one, RepeatFilter) for one in handler.filters):
            handler.addFilter(RepeatFilter(handler))


def _cause_of(record: logging.LogRecord) -> _Cause:
    kind, raised_at = None, None

    if record.exc_info:
        kind, _, traceback = record.exc_info
        raised_at = _origin(traceback)

    return record.name, record.levelno, record.pathname, record.lineno, kind, raised_at


def _origin(traceback: TracebackType | None) -> tuple[str, int] | None:
    origin = None

    for frame, line in walk_tb(traceback):
        origin = frame.f_code.co_filename, line

    return origin
