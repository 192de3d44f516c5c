"""The error of the jail says what failed, why, and what to do."""

import errno

from fumehood_jail.errors import JailError


def test_message_names_step_errno_and_hint():
    """The message has the step, the errno by name, and the hint on a line of its own."""
    error = JailError("map-ids", errno.EPERM, "cannot write '0 0 1'", "Ask root.")

    assert str(error) == "map-ids: cannot write '0 0 1': Operation not permitted (EPERM)\nhint: Ask root."


def test_message_without_errno_and_hint():
    """What is not known is not mentioned."""
    assert str(JailError("probe", 0, "no answer")) == "probe: no answer"
