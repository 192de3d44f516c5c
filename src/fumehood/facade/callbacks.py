"""Calling back into the user's code, which may be a plain function or a coroutine function.

Runs in the host process, in the task or thread that made the call. What a callback raises goes to the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from fumehood.errors import InvalidArgumentError

_A = TypeVar("_A")
_T = TypeVar("_T")


def check_callbacks(**given: object) -> None:
    """Raise InvalidArgumentError unless each can be called, or is None; it is told by its name."""
    for name, callback in given.items():
        if callback is not None and not callable(callback):
            raise InvalidArgumentError(
                field=name, value=callback, allowed="a function of one argument, or None"
            )


async def notify(callback: Callable[[_A], Awaitable[_T] | _T] | None, value: _A) -> _T | None:
    """Call `callback`, if there is one, and wait for it if it is asynchronous."""
    if callback is None:
        return None

    check_callbacks(callback=callback)
    answer = callback(value)

    if inspect.isawaitable(answer):
        return await cast("Awaitable[_T]", answer)

    return answer
