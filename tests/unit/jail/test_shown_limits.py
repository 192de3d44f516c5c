"""What a sandbox reads of its processors, also on machines that have very many."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In namespaces of its own, on a machine that seems to have 4,096 processors.
PROGRAM = """
import os, sys
from fumehood_jail import shown_limits, syscalls
one = "processor\\t: %d\\nflags\\t\\t: " + "x" * 1500 + "\\n\\n"
with open(sys.argv[1], "w") as file:
    file.writelines(one % number for number in range(4096))
syscalls.mount(sys.argv[1], "/proc/cpuinfo", None, syscalls.MS_BIND)
os.sysconf = lambda name: 4096
shown_limits.show(1 << 30, float(sys.argv[2]))
with open("/proc/cpuinfo") as file:
    print(file.read().count("processor"), os.statvfs("/sys").f_flag & os.ST_RDONLY)
"""


@pytest.mark.parametrize("cores", [1, 1000, 4000])
def test_processors_are_shown_on_any_machine(tmp_path, cores):
    """The description of each takes 1.5 KB, and a /sys that was too small for them would end the sandbox's start."""
    words = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*words, str(tmp_path / "cpuinfo"), str(cores)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"{cores} 1\n"), done.stderr
