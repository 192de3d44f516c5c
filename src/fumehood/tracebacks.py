"""Tracebacks that end at the line of the caller, in the host process.

Frames of this package say nothing to its users: an error that their arguments explain ends at their own line. The
frames of their callbacks stay, and so do all frames of an error that is a fault of this package. `python -X dev` shows
all of them. Nothing here changes an error's type, words or cause.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import wraps
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from fumehood.errors import FumehoodError

_F = TypeVar("_F", bound=Callable[..., Any])
_E = TypeVar("_E", bound=BaseException)
# What callers run without naming it, and what may be refused there.
_SPECIAL = frozenset(("__init__", "__enter__", "__aenter__", "__next__", "__anext__"))
# Set on an error of Python's own that an argument of the caller's explains.
_OF_THE_CALLER = "_is_of_the_caller"


class PlainErrors:
    """A class of this package whose errors end at the line of the caller."""

    def __init_subclass__(cls, **options: object) -> None:
        """Let the tracebacks of all public methods end at the line of their caller; a user's class is left alone."""
        super().__init_subclass__(**options)

        if cls.__module__.partition(".")[0] != __package__:
            return

        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in _SPECIAL:
                continue

            if isinstance(member, FunctionType):
                setattr(cls, name, ending_at_caller(member))
            elif isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(ending_at_caller(member.__func__)))


def ending_at_caller(function: _F) -> _F:
    """Return a function whose errors have no frames of this package.

    A bare `raise` adds no frame to the traceback that was set before it, not even that of the function here.
    """
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def iterated(*args: Any, **options: Any) -> AsyncGenerator[Any, None]:
            try:
                async with aclosing(function(*args, **options)) as items:
                    async for item in items:
                        yield item
            except (FumehoodError, TypeError) as error:
                drop_own_frames(error)
                raise

        return cast("_F", iterated)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **options: Any) -> Any:
            try:
                return await function(*args, **options)
            except (FumehoodError, TypeError) as error:
                drop_own_frames(error)
                raise

        return cast("_F", awaited)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (FumehoodError, TypeError) as error:
            drop_own_frames(error)
            raise

    return cast("_F", called)


def of_the_caller(error: _E) -> _E:
    """Return an error of Python's own that an argument explains, so that its traceback ends at the caller too."""
    setattr(error, _OF_THE_CALLER, True)
    return error


def drop_own_frames(error: BaseException) -> None:
    """Leave out the frames of this package from the traceback of an error that its caller can do something about."""
    if sys.flags.dev_mode:
        return

    where = error.__traceback__
    # Python itself refused the arguments: no line of the function was run.
    is_of_the_call = where is not None and where.tb_next is None

    if isinstance(error, FumehoodError) or is_of_the_call or hasattr(error, _OF_THE_CALLER):
        error.__traceback__ = _frames_of_others(where)


def _frames_of_others(where: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package and of the standard library: the user's callbacks stay."""
    kept: TracebackType | None = None

    for entry in reversed(list(_entries(where))):
        top = str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]

        if top != __package__ and top not in sys.stdlib_module_names:
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)

    return kept


def _entries(where: TracebackType | None) -> Iterator[TracebackType]:
    while where is not None:
        yield where
        where = where.tb_next
