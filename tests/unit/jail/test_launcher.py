"""What the launcher of a base jail reports to the host."""

from __future__ import annotations

import os

from fumehood_jail import namespaces
from fumehood_jail.launcher import EXIT_LAUNCH_FAILED, _become_jail_init


def test_a_jail_init_whose_launcher_has_failed_reports_nothing():
    """A report holds one error: the launcher's, and not behind it that its child lost it."""
    report_fd, write_fd = os.pipe()
    gate = namespaces.Gate()
    pid = os.fork()

    if pid == 0:
        try:
            _become_jail_init(gate, {"report_fd": write_fd})
        finally:
            os._exit(70)

    gate.close()
    os.close(write_fd)

    with os.fdopen(report_fd, "rb") as report:
        assert report.read() == b""

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_LAUNCH_FAILED
