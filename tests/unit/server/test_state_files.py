"""The server's secret and its token: a start that is cut short at any point does not keep the next from starting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.server.authenticator import owner_token
from fumehood.server.state_files import server_secret

Make = Callable[[Path], object]
KILLED = 77


def _token(state: Path) -> str:
    return owner_token(state, "")[0]


@pytest.fixture(params=[server_secret, _token], ids=["secret", "token"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def _ended_at(step: int, make: Make, state: Path) -> int:
    """The exit code of a process that makes the file, and ends without a word before its step-th call to the system."""
    child = os.fork()

    if not child:
        calls = iter(range(step))

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **named: Any) -> Any:
                if next(calls, None) is None:
                    os._exit(KILLED)

                return call(*arguments, **named)

            return run

        for name in ("open", "fdopen", "fsync", "link", "unlink", "close"):
            setattr(os, name, counted(getattr(os, name)))

        try:
            make(state)
        finally:
            # What is still in a buffer of the process is lost with it.
            os._exit(0)

    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_start_may_be_cut_short_anywhere(make: Make, tmp_path: Path) -> None:
    """What is there afterwards is whole, and the same from then on."""
    step, code = 0, KILLED

    while code == KILLED:
        state = tmp_path / str(step)
        state.mkdir()
        code = _ended_at(step, make, state)
        made = make(state)
        assert made
        assert make(state) == made
        step += 1

    assert code == 0
    assert step > 2


def test_what_is_made_is_the_owners_alone(make: Make, tmp_path: Path) -> None:
    """Also while it is made; nothing else is left in the folder."""
    make(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_two_that_race_both_read_what_the_first_has_made(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes in between, when the first has looked and not found it."""
    seen: list[object] = []
    real_open, first = os.open, threading.get_ident()

    def open_later(*arguments: Any, **named: Any) -> int:
        # Threads that other tests have left may open something, too.
        if threading.get_ident() == first:
            monkeypatch.undo()
            seen.append(make(tmp_path))

        return real_open(*arguments, **named)

    monkeypatch.setattr(os, "open", open_later)
    assert make(tmp_path) == seen[0]


def test_a_file_that_is_not_whole_is_named(make: Make, tmp_path: Path) -> None:
    """One that somebody else has spoilt is neither used nor replaced."""
    make(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"")

    with pytest.raises(InvalidArgumentError, match="remove it for a new one"):
        make(tmp_path)
