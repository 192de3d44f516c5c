"""Whether the caller of the current request is known, and whether the caller still has the right to make it.

Runs in the server process, around the app that answers a request. The authenticator records the admitted caller here;
the ingress, the readers of bodies and long-running requests query it. It never sees a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from fumehood.cancellation import first_of
from fumehood.errors import ForbiddenError, FumehoodError, UnauthenticatedError

_T = TypeVar("_T")
CHECK_SECONDS = 2.0
# So long a right lasts that cannot be checked, as during a failure of the database.
GIVE_UP_SECONDS = 30.0
# What refuses a caller, at first or later.
LOST_RIGHT = (UnauthenticatedError, ForbiddenError)


class CallerRights(Protocol):
    """The rights of a caller."""

    def require(self, scope: Any) -> None:
        """Raises ForbiddenError if the caller lacks this scope."""


# Finds the caller of an admitted request once more, as it is now; counts as neither a use nor a request.
LookAgain = Callable[[], Awaitable[CallerRights]]


class CallerCheck:
    """Whether the caller of one request is known; a context manager around the app that answers it.

    Attributes:
        is_given: Whether the app may accept the caller's body.
        is_authenticated: Whether the caller was admitted because of a credential.
        is_refused: Whether the caller's credential was refused, whatever the status of the answer.
        holder: The owner of the credential, for limits that are counted for each owner; empty if not known.
        look_again: Authenticates the caller again; None if its right cannot end.
        scopes: The scopes that were required of the caller.
    """

    __slots__ = (
        "_token",
        "holder",
        "is_authenticated",
        "is_given",
        "is_refused",
        "look_again",
        "scopes",
    )

    def __init__(self) -> None:
        self.is_given = False
        self.is_authenticated = False
        self.is_refused = False
        self.holder = ""
        self.look_again: LookAgain | None = None
        self.scopes: set[str] = set()

    def __enter__(self) -> CallerCheck:
        self._token = _ADMISSION.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _ADMISSION.reset(self._token)


_ADMISSION: ContextVar[CallerCheck] = ContextVar("fumehood_admission")


def admit_caller(look_again: LookAgain | None = None, *, holder: str = "") -> None:
    """Notes that the caller of the current request is authenticated.

    The authenticator calls this; a route that authenticates callers without the authenticator must call it itself.

    Args:
        look_again: Authenticates the caller again; raises the error if its credential is not valid any more.
        holder: The owner of the credential: its key, or the visitors that the key has let in, see `those_let_in_by`.
    """
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.is_given = admission.is_authenticated = True
        admission.look_again = look_again or admission.look_again
        admission.holder = holder or admission.holder


def those_let_in_by(key_id: str) -> str:
    """Returns the holder for all visitors of a key: users of its shares, signed addresses and sandbox tokens."""
    return f"let in by {key_id}"


def note_refused_caller() -> None:
    """Notes that the credential of the current request was refused, for answers whose status does not show that."""
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.is_refused = True


def admit_every_caller() -> None:
    """Notes that the current request needs no authentication, whatever credential it contains."""
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.is_given = True


def note_scope(scope: str) -> None:
    """Notes that the current request needs a scope."""
    admission = _ADMISSION.get(None)

    if admission is not None:
        admission.scopes.add(scope)


class Checks:
    """Repeated checks of one right: a failed check counts as a lost right only after 30 seconds of failures.

    Args:
        check: Returns if the caller has the right, and raises an error of `LOST_RIGHT` if not.
    """

    def __init__(self, check: Callable[[], Awaitable[object]]) -> None:
        self._check = check
        self._failing_since: float | None = None

    async def refusal(self) -> FumehoodError | None:
        """Returns the error for a right that is lost, or could not be checked for 30 seconds.

        Returns None while the caller has the right.
        """
        try:
            await self._check()
        except LOST_RIGHT as error:
            return error
        except FumehoodError as error:
            now = asyncio.get_running_loop().time()
            self._failing_since = now if self._failing_since is None else self._failing_since
            return error if now - self._failing_since >= GIVE_UP_SECONDS else None

        self._failing_since = None
        return None


async def until_right_is_lost() -> FumehoodError:
    """Returns when the caller's credential no longer allows the current request; checked every two seconds.

    Returns:
        The error that says why: the caller's key was revoked, has expired or lost a scope, its token was replaced, or
        its login has ended; or the checks themselves have failed for 30 seconds. For a caller that was admitted
        without a credential it never returns.
    """
    check = _check_of_request()
    return await (asyncio.Future() if check is None else until_refused_by(check))


def _check_of_request() -> Callable[[], Awaitable[None]] | None:
    """Returns a function that checks the right of the current request's caller; None for a right that cannot end."""
    admission = _ADMISSION.get(None)

    if admission is None or admission.look_again is None:
        return None

    look_again = admission.look_again

    async def check() -> None:
        holder = await look_again()

        for scope in tuple(admission.scopes):
            holder.require(scope)

    return check


async def until_refused_by(check: Callable[[], Awaitable[object]]) -> FumehoodError:
    """Calls `check` every two seconds, and returns the error when it shows that the right is lost (`Checks`)."""
    checks = Checks(check)

    while True:
        await asyncio.sleep(CHECK_SECONDS)

        if (error := await checks.refusal()) is not None:
            return error


async def while_right_lasts(work: Coroutine[Any, Any, _T]) -> _T:
    """Returns what `work` returns; cancels it when the caller of the current request loses the right to it.

    Raises:
        FumehoodError: The error for a caller that has lost the right; see `until_right_is_lost`.
    """
    task = asyncio.create_task(work)
    lost = asyncio.create_task(until_right_is_lost())

    if task not in await first_of(task, lost):
        raise lost.result()

    return task.result()


async def sent_while_right_lasts(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the pieces that the caller of the current request sends.

    A piece that arrives after the caller has lost the right is dropped.

    The right is checked when a piece arrives, but not within two seconds of the last check.

    Raises:
        FumehoodError: The error for a caller that has lost the right; see `Checks`.
    """
    check, now = _check_of_request(), asyncio.get_running_loop().time
    checks, checked_at = None if check is None else Checks(check), now()

    async for piece in pieces:
        if checks is not None and now() - checked_at >= CHECK_SECONDS:
            if (error := await checks.refusal()) is not None:
                raise error

            checked_at = now()

        yield piece
