"""A program of a user, fully typed, passes the strict checker against the package as it is."""

from __future__ import annotations

import subprocess
import sys


def test_a_users_program_is_accepted_by_mypy(root):
    """Public signatures hold no `Any` and say what they give."""
    program = root / "tests" / "typing" / "user_program.py"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout + done.stderr == ""


def test_the_package_says_that_it_is_typed(root):
    """`py.typed` is what checkers look for."""
    assert (root / "src" / "fumehood" / "py.typed").exists()
