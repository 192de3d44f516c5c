"""Renews the life of a sandbox for as long as a command that uses it runs.

Runs in the user's terminal, in a thread of its own. A sandbox at a server ends after the server's lifetime unless its
end is put off. If the command is killed before it ends its sandbox, the sandbox ends with that lifetime.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from fumehood.cli.terminal import note
from fumehood.errors import FumehoodError, SandboxClosedError, SandboxNotFoundError

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox

# Two renewals may fail before the sandbox ends.
_RENEWALS_PER_LIFE = 3


@contextmanager
def kept_alive(sandbox: Sandbox) -> Iterator[None]:
    """Extend the life of a sandbox until the block is left; a sandbox without an end is left alone.

    Each renewal sets the lifetime that the sandbox was created with, so a server's longest lifetime is never exceeded.
    """
    info = sandbox.get_info()

    if info.ends_at is None:
        yield
        return

    life_seconds = (info.ends_at - info.started_at).total_seconds()
    over = Event()
    thread = Thread(target=_renew, args=(sandbox, life_seconds, over), name="fumehood-renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Not waited for: a request that is on its way may take as long as its server does.
        over.set()


def _renew(sandbox: Sandbox, life_seconds: float, over: Event) -> None:
    has_failed = False

    while not over.wait(life_seconds / _RENEWALS_PER_LIFE):
        try:
            sandbox.set_timeout(life_seconds)
        except (SandboxClosedError, SandboxNotFoundError):
            return
        except (FumehoodError, OSError) as error:
            if not has_failed and not over.is_set():
                message = error.message if isinstance(error, FumehoodError) else str(error)
                note(f"the life of the sandbox could not be renewed, it is tried again: {message}")

            has_failed = True
        else:
            has_failed = False
