"""Rights that are looked at again: what ends the work of a caller, and what only fails to say whether it may go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from fumehood.errors import ForbiddenError, FumehoodError, StorageError, UnauthenticatedError
from fumehood.server import admission
from fumehood.server.admission import CallerCheck, admit_caller
from fumehood.server.principal import Principal

_FAILED = StorageError(operation="reading a key", reason="the disk is gone")
_LOST = UnauthenticatedError(reason="the key was revoked")


class Key:
    """What the looks at a key's right find, one after the other; the last of them from then on.

    Args:
        found: Principals, and errors that are raised.
    """

    def __init__(self, *found: Principal | FumehoodError) -> None:
        self._found = list(found)
        self.looks = 0

    async def look(self) -> Principal:
        """Return the next of them."""
        found = self._found[min(self.looks, len(self._found) - 1)]
        self.looks += 1

        if isinstance(found, FumehoodError):
            raise found

        return found


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "CHECK_SECONDS", 0)


def lost(key: Key) -> FumehoodError:
    """Return what ends the work of a caller with this key."""

    async def wait() -> FumehoodError:
        with CallerCheck():
            admit_caller(key.look)
            (await key.look()).require("sandboxes")
            return await admission.until_right_is_lost()

    return asyncio.run(wait())


def test_a_database_that_fails_for_a_while_ends_nothing() -> None:
    """The right lasts until a look finds it lost: gone, or without a scope that was required."""
    key = Key(Principal(key_id="key"), _FAILED, _FAILED, Principal(key_id="key"), _FAILED, _LOST)
    assert lost(key) is _LOST
    assert key.looks == 6

    without = Key(Principal(key_id="key"), _FAILED, Principal(key_id="key", scopes=frozenset({"execute"})))
    assert isinstance(lost(without), ForbiddenError)


def test_a_right_that_cannot_be_checked_ends_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After failures alone for so long; a success between them begins that time anew."""
    monkeypatch.setattr(admission, "GIVE_UP_SECONDS", 0)
    assert lost(Key(Principal(key_id="key"), Principal(key_id="key"), _FAILED)) is _FAILED

    monkeypatch.setattr(admission, "GIVE_UP_SECONDS", 30)

    async def give_up() -> list[FumehoodError | None]:
        now = [0.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        found = (_FAILED, _FAILED, Principal(key_id="key"), _FAILED, _FAILED, _FAILED)
        checks, answers = admission.Checks(Key(*found).look), []

        for at in (0, 29, 40, 50, 79, 80):
            now[0] = at
            answers.append(await checks.refusal())

        return answers

    assert asyncio.run(give_up()) == [None] * 5 + [_FAILED]


def test_what_is_sent_after_the_right_was_lost_is_dropped() -> None:
    """Piece by piece, as the right is looked at; what comes from a caller without a key is taken."""

    async def sent() -> AsyncGenerator[bytes, None]:
        for piece in (b"1", b"2", b"3", b"4"):
            yield piece

    async def take(key: Key | None) -> tuple[list[bytes], FumehoodError | None]:
        taken = []

        with CallerCheck():
            admit_caller(None if key is None else key.look)
            try:
                async for piece in admission.sent_while_right_lasts(sent()):
                    taken.append(piece)
            except FumehoodError as error:
                return taken, error

        return taken, None

    assert asyncio.run(take(Key(Principal(key_id="key"), _FAILED, _LOST))) == ([b"1", b"2"], _LOST)
    assert asyncio.run(take(Key(Principal(key_id="key")))) == ([b"1", b"2", b"3", b"4"], None)
    assert asyncio.run(take(None)) == ([b"1", b"2", b"3", b"4"], None)
