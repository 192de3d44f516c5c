"""The request that is being answered, for every line that is logged meanwhile.

A context variable holds it: tasks that a request starts have it too. Tasks that outlive requests, such as the one that
fills a pool, are started with `apart`, so that their lines do not bear the id of the request that was there by chance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(slots=True)
class LoggedRequest:
    """The fields that log lines have of their request.

    Attributes:
        id: Its id.
        key_id: The key of its caller, as soon as that is known.
    """

    id: str
    key_id: str | None = None


_CURRENT: ContextVar[LoggedRequest | None] = ContextVar("fumehood_request", default=None)


@contextmanager
def logged_request(request_id: str) -> Iterator[LoggedRequest]:
    """Gives the lines that are logged within the block the id of a request."""
    request = LoggedRequest(request_id)
    token = _CURRENT.set(request)
    try:
        yield request
    finally:
        _CURRENT.reset(token)


def request_id() -> str:
    """Returns the id of the request that is being answered; empty outside of one."""
    request = _CURRENT.get()
    return "" if request is None else request.id


def noted_key() -> str | None:
    """Returns the key of the current request: None outside of one, empty if it is not known yet."""
    request = _CURRENT.get()
    return None if request is None else request.key_id


def note_key(key_id: str) -> None:
    """Records the key whose request it is."""
    request = _CURRENT.get()

    if request is not None:
        request.key_id = key_id


def apart(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Starts a task that belongs to no request."""
    return asyncio.create_task(work, context=Context())


class RequestIdFilter(logging.Filter):
    """Gives each record the id of its request; lets all of them pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Sets `request_id` on the record, unless it has one."""
        if not hasattr(record, "request_id"):
            record.request_id = request_id()

        return True
