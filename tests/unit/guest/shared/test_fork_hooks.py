"""Hooks of Python's own modules are left out where the base jail forks, and done in every fork of user code."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from fumehood_guest.shared import fork_hooks
fork_hooks.leave_out()
import random, traceback, types

library = types.ModuleType("library")
exec("import os; done = []; os.register_at_fork(after_in_child=lambda: done.append(os.getpid()))", vars(library))
main = os.getpid()
assert library.done == []
fork_hooks.do_once()
assert library.done == [main], "what libraries want is done once here"

def in_child(check):
    if (pid := os.fork()) == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, check.__name__

random.seed(5)
drawn = random.Random(5).random()

def made_by_the_base_jail():
    assert library.done == [main, os.getpid()], "and in every fork"
    assert random.random() == drawn, "no module of Python's has seeded"
    fork_hooks.do_all()
    in_child(made_by_user_code)

def made_by_user_code():
    random.seed(5)
    if os.fork() == 0:
        os._exit(int(random.random() == drawn))
    assert os.wait()[1] == 0, "now it has"

in_child(made_by_the_base_jail)
seen = []
exec("import os; os.register_at_fork(before=lambda: seen.append(1))", {"__name__": "user", "seen": seen})
fork_hooks.do_once()
assert seen == [], "what is registered later is Python's own affair"
"""


def test_hooks_are_left_out_and_made_up_for() -> None:
    """In a process of its own, as they are registered for good."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
