"""The time limit of a test fails that test, wherever it is when its time is over; it never ends the run.

pytest-timeout sets one alarm for all that pytest does with a test. One that goes off between the phases, in a hook of
another plugin or while a report is written, is nobody's failure: pytest ends with INTERNALERROR, and the tests after it
do not run. Here the alarm is set inside each phase (setup, call, teardown), where pytest takes any exception for the
outcome of that phase. Each phase has the whole time, so that what was set up is also torn down after a time-out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import pytest_timeout

_LIMIT = pytest.StashKey[Any]()


class TimeLimits:
    """The plugin: takes over from pytest-timeout when alarms are set, and leaves it to say what a time-out shows."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Keep the limit of a whole test for its phases; one of the call alone is within a phase already."""
        if settings.func_only:
            return None

        item.stash[_LIMIT] = settings
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Set up within the limit."""
        return (yield from _limited(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run within the limit."""
        return (yield from _limited(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Tear down within the limit."""
        return (yield from _limited(item))


def _limited(item: pytest.Item) -> Generator[None, Any, Any]:
    settings = item.stash.get(_LIMIT, None)

    if settings is None:
        return (yield)

    pytest_timeout.pytest_timeout_set_timer(item, settings)

    try:
        return (yield)
    finally:
        pytest_timeout.pytest_timeout_cancel_timer(item)
