"""Screenshots: a picture is made of a file of the sandbox, wherever that lives, and of nothing that is none."""

from __future__ import annotations

import pytest
from tests.unit.values.test_display import screen

from fumehood import ScreenshotError
from fumehood.values.display import SCREEN_PATH


def test_a_screenshot_is_what_the_screen_holds(sandbox):
    """A sandbox without a display says how to get one; what a guest puts in place of a screen is refused."""
    with pytest.raises(ScreenshotError, match="has no display") as caught:
        sandbox.screenshot()

    assert "display=True" in caught.value.hint
    sandbox.files.write(SCREEN_PATH, screen())
    assert sandbox.screenshot().startswith(b"\x89PNG")
    sandbox.files.write(SCREEN_PATH, screen(2**29, 2**29))

    with pytest.raises(ScreenshotError, match="no picture of a screen"):
        sandbox.screenshot()
