"""The package is typed: a user's program is checked with it, strictly, by the type checker of `make check`."""

from __future__ import annotations

import tomllib


def test_a_users_program_is_checked(root):
    """It is among what `mypy` reads, with the strict rules: public signatures hold no `Any` and say what they give."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert "tests/typing" in settings["files"]
    assert (root / "tests" / "typing" / "user_program.py").exists()


def test_the_package_says_that_it_is_typed(root):
    """`py.typed` is what checkers look for."""
    assert (root / "src" / "fumehood" / "py.typed").exists()
