"""Libraries size themselves by what they read of the machine; in a sandbox they read its limits."""

from __future__ import annotations

import os

import pytest

from fumehood import Limits, Sandbox

MEMORY = "print(int(open('/proc/meminfo').read().split()[1]) * 1024, open('/sys/fs/cgroup/memory.max').read().strip())"
PROCESSORS = (
    "import os, re; print(os.cpu_count(), len(re.findall('(?m)^processor', open('/proc/cpuinfo').read())))"
)

OPENMP = "from sklearn.utils import _openmp_helpers as omp; print(omp._openmp_effective_n_threads())"


def said(sandbox: Sandbox, code: str) -> list[str]:
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout).split()


@pytest.mark.parametrize("size", [1 << 30, 512 << 20, 3 << 30])
def test_memory_is_that_of_the_sandbox(size):
    """Also of one from the pool, which was made with the default limit."""
    with Sandbox(limits=Limits(memory_bytes=size)) as sandbox:
        assert said(sandbox, MEMORY) == [str(size)] * 2
        assert said(sandbox, "import psutil; print(psutil.virtual_memory().total)") == [str(size)]
        assert int(said(sandbox, "import psutil; print(psutil.virtual_memory().available)")[0]) < size
        # A program of the shell reads the same.
        assert sandbox.commands.run("free -b 2>/dev/null || cat /proc/meminfo").exit_code == 0


def test_processors_are_those_of_the_sandbox():
    """One where one is allowed, and those of the machine where no number is given."""
    with Sandbox(limits=Limits(cpu_cores=1)) as sandbox:
        assert said(sandbox, PROCESSORS) == ["1", "1"]
        assert said(sandbox, "print(open('/sys/fs/cgroup/cpu.max').read())") == ["100000", "100000"]
        assert said(sandbox, "import joblib; print(joblib.cpu_count())") == ["1"]
        assert said(sandbox, OPENMP) == ["1"]
        assert sandbox.commands.run("nproc").stdout == "1\n"

    with Sandbox() as sandbox:
        assert said(sandbox, PROCESSORS)[0] == str(os.cpu_count())


def test_forks_show_the_same():
    """A fork has its parent's limits, and mounts of its own that show them."""
    with Sandbox(limits=Limits(memory_bytes=768 << 20, cpu_cores=1)) as sandbox, sandbox.fork() as fork:
        assert said(fork, MEMORY) == [str(768 << 20)] * 2
        assert said(fork, PROCESSORS) == ["1", "1"]

        with fork.fork() as below:
            assert said(below, MEMORY) == [str(768 << 20)] * 2


def test_it_cannot_be_changed_inside():
    """It is read-only, and so is /sys."""
    code = (
        "import os\n"
        "for path in ('/proc/meminfo', '/sys/fs/limits/meminfo', '/sys/fs/cgroup/memory.max', '/sys/new'):\n"
        "    try: open(path, 'w'); print('opened')\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "    try: os.chmod(path, 0o666); print('changed')\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    with Sandbox() as sandbox:
        assert {"opened", "changed"}.isdisjoint(said(sandbox, code))


def test_nothing_grows():
    """The small /sys takes a few pages of the sandbox's memory, and its room is bounded."""
    with Sandbox() as sandbox:
        blocks = said(
            sandbox,
            "import os; s = os.statvfs('/sys'); print((s.f_blocks - s.f_bfree) * s.f_frsize, s.f_flag & 1)",
        )
        assert int(blocks[0]) < 64 << 10
        assert blocks[1] == "1"
