"""T06: what a sandbox does with the host's read-only files leaves the host's disk and page cache to others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood_jail.cgroup_base import DISK_READ_BYTES, DISK_READS

_COMMON_FILE = "/bin/sh"

FLUSHES = """
import os
fd = os.open("/bin/sh", os.O_RDONLY)
for _ in range(2000): os.fsync(fd); os.fdatasync(fd)
"""
_FLUSHES_ASKED = 4000


def flushes(path: str) -> int:
    """How many flushes of its cache the disk of a file has been sent since the machine started."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"

    for line in Path("/proc/diskstats").read_text(encoding="ascii").splitlines():
        fields = line.split()

        if f"{fields[0]}:{fields[1]}" == number and len(fields) > 18:
            return int(fields[18])

    pytest.skip(f"needs a disk that the kernel counts flushes of, which {number} is not")


def test_t06_no_flush_of_the_hosts_disk(make):
    """fsync of the host's files reaches no disk; the control, outside, has it flush its cache for each call."""
    mine = make()
    before = flushes(_COMMON_FILE)
    mine.run(FLUSHES)
    inside = flushes(_COMMON_FILE) - before
    before = flushes(_COMMON_FILE)
    subprocess.run([sys.executable, "-I", "-S", "-c", FLUSHES], check=True)
    outside = flushes(_COMMON_FILE) - before

    if outside < _FLUSHES_ASKED // 2:
        pytest.skip("needs a file system whose fsync flushes the disk, for the control")

    assert inside < outside // 2


SYNCING = {
    "fsync": "os.fsync(fd)",
    "fdatasync": "os.fdatasync(fd)",
    "sync_file_range": "checked(libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7))",
    "msync": "mmap.mmap(fd, 0, prot=mmap.PROT_READ).flush()",
    "readahead": "checked(libc.readahead(fd, ctypes.c_long(0), ctypes.c_size_t(1 << 20)))",
    "fadvise": "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)",
}


@pytest.mark.parametrize("call", SYNCING)
def test_t06_what_synchronises_succeeds(call, attacked):
    """Honest programs call these for files of their own: they get success, for the host's files too."""
    code = (
        "import ctypes, mmap, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def checked(answer): assert answer == 0, os.strerror(ctypes.get_errno())\n"
        "with open('mine', 'wb') as file: file.write(b'x' * 5000)\n"
        "for path in ('mine', '/bin/sh'):\n"
        "    fd = os.open(path, os.O_RDONLY)\n"
        f"    {SYNCING[call]}\n"
        "print('done')\n"
    )
    assert attacked.run(code) == "done\n"


def is_cached(fd: int) -> bool:
    """Whether the first page of a file is in the page cache."""
    try:
        return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False


def quiet_files() -> list[str]:
    """Files of the system that no process has mapped, and that sandboxes see.

    Several: one that another process reads at the same moment is not dropped for anybody.
    """
    found = []

    for folder in ("/usr/share/doc", "/usr/share/man/man1", "/usr/share/perl5"):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size >= 4096:
                found.append(str(path))

            if len(found) == 20:
                return found

    return found or pytest.skip("needs documentation in /usr/share, which nothing else reads")


def test_t06_the_hosts_page_cache_is_not_dropped(make):
    """The host's pages of files stay in memory; the control, outside, drops them by the same call."""
    paths = quiet_files()
    dropping = (
        f"import os\nfor path in {paths!r}:\n"
        "    os.posix_fadvise(os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)"
    )
    mine = make()

    with contextlib.ExitStack() as opened:
        files = [os.open(path, os.O_RDONLY) for path in paths]

        for file in files:
            opened.callback(os.close, file)
            os.fsync(file)
            os.pread(file, 4096, 0)

        assert all(map(is_cached, files))
        mine.run(dropping)
        assert all(map(is_cached, files))
        subprocess.run([sys.executable, "-I", "-S", "-c", dropping], check=True)

        if all(map(is_cached, files)):
            pytest.skip("needs a file system that drops pages when it is advised to, for the control")


ADVICE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
# No page begins there: advice that is looked at is refused.
print(*(libc.madvise(ctypes.c_void_p(1), ctypes.c_size_t(4096), advice) for advice in ADVICE))
"""
# MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT: the last drops mapped files of their owner, as packages of an ordinary user.
CACHE_ADVICE = (3, 20, 21)


def test_t06_no_advice_on_mapped_files_is_taken(attacked):
    """It succeeds and does nothing; the control, outside, has it looked at."""
    program = ADVICE.replace("ADVICE", str(CACHE_ADVICE))
    assert attacked.run(program) == "0 0 0\n"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "-1 -1 -1\n"


READING = """
import mmap, os, time
path, buffer = PATH, mmap.mmap(-1, SIZE)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
most, reads, begun = os.path.getsize(path) - SIZE, 0, time.monotonic()
while time.monotonic() < begun + 1.5:
    os.preadv(fd, [buffer], reads * SIZE % most & ~0xfff)
    reads += 1
print(reads, time.monotonic() - begun)
"""


def large_file() -> str:
    """A large file of the system that sandboxes see."""
    found = [path for path in Path("/usr/bin").iterdir() if path.is_file() and not path.is_symlink()]
    found += [path for path in Path("/usr/lib").rglob("*.so*") if path.is_file() and not path.is_symlink()]
    return str(max(found, key=lambda path: path.stat().st_size))


@pytest.mark.parametrize("size", [4096, 1 << 20], ids=["small", "large"])
def test_t06_reads_from_the_hosts_disk_are_bounded(size, attacked):
    """Past the page cache a sandbox reads so many times, and so much, a second; the control reads what it can."""
    layers = {layer.name: layer for layer in attacked.sandbox.get_info().isolation.layers}

    if layers["cgroup io"].state != "on":
        pytest.skip(f"needs a disk whose reads control groups bound: {layers['cgroup io'].why}")

    code = READING.replace("SIZE", str(size)).replace("PATH", repr(large_file()))
    most = min(DISK_READS, DISK_READ_BYTES / size)
    execution = attacked.sandbox.run_code(code)

    if execution.error is not None and execution.error.name == "OSError":
        pytest.skip("needs a file system that can read past the page cache")

    assert execution.error is None, execution.error
    reads, seconds = map(float, "".join(execution.logs.stdout).split())
    # What the kernel lets through at first is a share of a second's.
    assert reads <= most * (seconds + 0.5)

    # Others may be busy with the disk.
    if not any(_reads_a_second(code) > most for _ in range(8)):
        pytest.skip("needs a disk that is faster than the bound, for the control")


def _reads_a_second(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    reads, seconds = map(float, done.stdout.split())
    return reads / seconds
