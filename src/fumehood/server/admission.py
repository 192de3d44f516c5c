"""Whether the caller of the current request is known, and how to find out whether it still has the right to it.

Runs in the server process, around the app that answers a request. The authenticator notes the admitted caller here; the
ingress, bodies and what takes long ask. It never sees a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from fumehood.cancellation import cancel_and_wait
from fumehood.errors import FumehoodError

_T = TypeVar("_T")
CHECK_SECONDS = 2.0


class Holder(Protocol):
    """The rights of a caller."""

    def require(self, scope: Any) -> None:
        """Raises ForbiddenError if the caller lacks this scope."""


# Finds the caller of an admitted request once more, as it is now; counts as neither a use nor a request.
LookAgain = Callable[[], Awaitable[Holder]]


class Admission:
    """Whether the caller of one request is known; a context manager around the app that answers it.

    Attributes:
        is_given: Whether the app may take what the caller sends.
        is_authenticated: Whether a credential was the reason.
        look_again: Finds the caller once more; None where its right cannot end.
        scopes: What was required of the caller.
    """

    __slots__ = ("_token", "is_authenticated", "is_given", "look_again", "scopes")

    def __init__(self) -> None:
        self.is_given = False
        self.is_authenticated = False
        self.look_again: LookAgain | None = None
        self.scopes: set[str] = set()

    def __enter__(self) -> Admission:
        self._token = _ADMISSION.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _ADMISSION.reset(self._token)


_ADMISSION: ContextVar[Admission] = ContextVar("fumehood_admission")


def admit_caller(look_again: LookAgain | None = None) -> None:
    """Notes that the caller of the current request is authenticated.

    The authenticator does this; a route that authenticates callers without it must call it itself.

    Args:
        look_again: Finds the caller once more, or raises the error for one that has lost the right.
    """
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.is_given = admission.is_authenticated = True
        admission.look_again = look_again or admission.look_again


def admit_every_caller() -> None:
    """Notes that the current request is for something that is open to every caller, whatever credential it brings."""
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.is_given = True


def note_scope(scope: str) -> None:
    """Notes that the current request needs a scope."""
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.scopes.add(scope)


async def until_right_is_lost() -> FumehoodError:
    """Checks every two seconds whether the caller of the current request may still have what is under way.

    Returns:
        The error for a caller that has lost the right: its key was revoked, has expired or lost a scope, its token was
        replaced, or its login has ended. Waits without an end for a caller that was admitted without a credential.
    """
    admission = _ADMISSION.get(None)

    if admission is None or admission.look_again is None:
        return await asyncio.Future()

    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            principal = await admission.look_again()

            for scope in tuple(admission.scopes):
                principal.require(scope)
        except FumehoodError as error:
            return error


async def while_right_lasts(work: Coroutine[Any, Any, _T]) -> _T:
    """Returns what `work` returns; cancels it when the caller of the current request loses the right to it.

    Raises:
        FumehoodError: The error for a caller that has lost the right; see `until_right_is_lost`.
    """
    task = asyncio.create_task(work)
    lost = asyncio.create_task(until_right_is_lost())
    try:
        await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)

        if not task.done():
            raise lost.result()

        return task.result()
    finally:
        await cancel_and_wait(task, lost)
