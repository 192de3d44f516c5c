"""Programs of tests that end with the test process, however that ends.

A test run that is killed tears nothing down. What it has started would live on, with its engine and its sandboxes, and
slow down or disturb the next run.
"""

from __future__ import annotations

import shutil

# A program of util-linux: it becomes what it starts, which gets a signal when the thread that started it has ended.
_SETPRIV = shutil.which("setpriv")


def tied(argv: list[str]) -> list[str]:
    """Returns the command that runs `argv` in the same process, and asks it to end (SIGTERM) when its parent has.

    The parent is the thread that starts it: start it from the main thread. Where there is no `setpriv`, it is not tied.
    """
    return [_SETPRIV, "--pdeathsig", "TERM", "--", *argv] if _SETPRIV else argv
