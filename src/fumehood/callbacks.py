"""Calling back into the user's code, which may be a plain function or a coroutine function.

Runs in the host process, in the task or thread that made the call. What a callback raises goes to the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

_A = TypeVar("_A")
_T = TypeVar("_T")


async def notify(callback: Callable[[_A], Awaitable[_T] | _T] | None, value: _A) -> _T | None:
    """Call `callback`, if there is one, and wait for it if it is asynchronous."""
    if callback is None:
        return None

    answer = callback(value)

    if inspect.isawaitable(answer):
        return await cast("Awaitable[_T]", answer)

    return answer
