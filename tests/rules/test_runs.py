"""What holds a run of tests together: a time-out fails one test, and what a test has started ends with the run."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys

import pytest
from tests.tied import tied

# A plugin that is slow between the phases of a test: where an alarm for the whole test ends the run.
_SLOW_HOOK = """
import time
import pytest
from tests.time_limits import TimeLimits

def pytest_configure(config):
    if {ours}:
        config.pluginmanager.register(TimeLimits())

def pytest_runtest_logreport(report):
    if report.nodeid.endswith("test_first") and report.when == "call":
        time.sleep(1.5)
"""
_TESTS = """
import signal
import pytest

def test_first():
    pass

@pytest.fixture
def never():
    signal.pause()

@pytest.fixture
def never_over():
    yield
    signal.pause()

def test_call():
    signal.pause()

def test_setup(never):
    pass

def test_teardown(never_over):
    pass

def test_last():
    pass
"""


def run_of_tests(folder, root, *, ours):
    """The last lines of a run in which tests hang, with a time limit of a second."""
    (folder / "conftest.py").write_text(_SLOW_HOOK.format(ours=ours))
    (folder / "test_some.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    done = subprocess.run(
        [*command, "--timeout", "1", "--rootdir", str(folder), "-c", os.devnull, str(folder)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        timeout=60,
        check=False,
    )
    return done.stdout[-2000:] + done.stderr


def test_a_time_out_fails_one_test(tmp_path, root):
    """In setup, call and teardown; between them nothing is stopped, and the tests after it run."""
    shown = run_of_tests(tmp_path, root, ours=True)
    assert "INTERNALERROR" not in shown
    assert "1 failed, 3 passed, 2 errors" in shown, shown


def test_without_our_limits_it_ends_the_run(tmp_path, root):
    """The control: the same tests, with an alarm for the whole of each."""
    assert "INTERNALERROR" in run_of_tests(tmp_path, root, ours=False)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of util-linux")
def test_what_a_test_has_started_ends_with_the_run():
    """When the test process is killed, and nothing is torn down."""
    said, end = os.pipe()
    program = f"import os, signal; os.write({end}, b'!'); signal.pause()"
    sleeper = tied([sys.executable, "-S", "-c", program])
    parent = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            f"import subprocess; subprocess.Popen({sleeper!r}, pass_fds=[{end}]).wait()",
        ],
        pass_fds=[end],
    )
    os.close(end)
    assert os.read(said, 1) == b"!"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    # Only the sleeper still holds the other end, and the kernel closes it with the sleeper.
    assert select.select([said], [], [], 60)[0] == [said], "it lives on"
    assert os.read(said, 1) == b""
    os.close(said)
