"""Files of /proc and /sys that show a sandbox its own memory, processors and start, not those of the machine.

`show` runs once per sandbox, in the clone that becomes its init, and mounts a small read-only /sys with the files
from which libraries choose their number of threads and their memory. `change_memory` rewrites the memory figures when
the limit of a sandbox is changed, `change_boot_id` the boot id when all its processes have ended. The files only
inform programs: control groups enforce the limits.
"""

from __future__ import annotations

import math
import os
from typing import Dict, List, Optional

from fumehood_jail import syscalls

_FOLDER = "/sys"
_MEMINFO = "/sys/fs/limits/meminfo"
_CPUINFO = "/sys/fs/limits/cpuinfo"
_BOOT_ID = "/sys/fs/limits/boot_id"
# The rest of it is small; the description of processors takes about 1.5 KB for each.
_OPTIONS = "mode=0755,size={}k,nr_inodes=48"
_ROOM_KIB = 512
# A sandbox's own processes take a part of its memory from the beginning.
_TAKEN_BYTES = 64 << 20
_PERIOD_MICROSECONDS = 100_000

# Kept open by init, for `change_memory`: later mounts of the same files are read-only.
_memory_files: Dict[str, int] = {}
_boot_files: List[int] = []


def show(memory_bytes: int, cpu_cores: Optional[float]) -> None:
    """Mounts /sys, and files with the sandbox's own figures over those of the machine in /proc.

    Before: /proc is the sandbox's own; this process has every capability over its mount namespace.

    Args:
        memory_bytes: The limit of memory.
        cpu_cores: The limit of processors; None means all of the machine.
    """
    machine_cores = os.sysconf("SC_NPROCESSORS_CONF")
    cores = machine_cores if cpu_cores is None else max(1, min(math.ceil(cpu_cores), machine_cores))
    processors = _first_processors(cores) if cores < machine_cores else ""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    room_kib = _ROOM_KIB + (len(processors.encode()) >> 10)
    syscalls.mount("tmpfs", _FOLDER, "tmpfs", flags, _OPTIONS.format(room_kib))

    for path, text in _cpu_files(cores, cpu_cores).items():
        os.close(_write(path, text))

    for path, text in _memory_texts(memory_bytes).items():
        _memory_files[path] = _write(path, text)

    if processors:
        os.close(_write(_CPUINFO, processors))

    _boot_files.append(_write(_BOOT_ID, _new_boot_id()))

    # The first mount stays writable, below this one, for the open files.
    syscalls.mount(_FOLDER, _FOLDER, None, syscalls.MS_BIND)
    syscalls.mount_setattr(_FOLDER, syscalls.MOUNT_ATTR_RDONLY, 0, False)
    syscalls.mount(_MEMINFO, "/proc/meminfo", None, syscalls.MS_BIND)
    syscalls.mount(_BOOT_ID, "/proc/sys/kernel/random/boot_id", None, syscalls.MS_BIND)

    if processors:
        syscalls.mount(_CPUINFO, "/proc/cpuinfo", None, syscalls.MS_BIND)


def unmount() -> None:
    """Unmounts what `show` has mounted; what it put into /proc is unmounted with that."""
    for _ in range(2):
        syscalls.umount2(_FOLDER, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)


def change_memory(memory_bytes: int) -> None:
    """Writes a new memory limit into the files that `show` has mounted; does nothing if there are none."""
    texts = _memory_texts(memory_bytes)

    for path, fd in _memory_files.items():
        content = texts[path].encode()
        os.pwrite(fd, content, 0)
        os.ftruncate(fd, len(content))


def change_boot_id() -> None:
    """Writes a new boot id into the files that `show` has mounted, so that programs notice the restart."""
    for fd in _boot_files:
        os.pwrite(fd, _new_boot_id().encode(), 0)


def _new_boot_id() -> str:
    """Returns a random number in the form of the kernel's: a UUID of version 4."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}\n"


def _cpu_files(cores: int, cpu_cores: Optional[float]) -> Dict[str, str]:
    online = "0\n" if cores == 1 else f"0-{cores - 1}\n"
    quota = None if cpu_cores is None else max(1, int(cpu_cores * _PERIOD_MICROSECONDS))
    files = {f"/sys/devices/system/cpu/{name}": online for name in ("online", "possible", "present")}

    if quota is not None:
        files["/sys/fs/cgroup/cpu.max"] = f"{quota} {_PERIOD_MICROSECONDS}\n"
        files["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = f"{quota}\n"
        files["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = f"{_PERIOD_MICROSECONDS}\n"

    return files


def _memory_texts(memory_bytes: int) -> Dict[str, str]:
    """Returns the content of /proc/meminfo and of the memory limit files of cgroup versions 2 and 1."""
    free_bytes = max(memory_bytes - _TAKEN_BYTES, memory_bytes // 2)
    kilobytes = {
        "MemTotal": memory_bytes,
        "MemFree": free_bytes,
        "MemAvailable": free_bytes,
        **dict.fromkeys(
            ("Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree"), 0
        ),
        **dict.fromkeys(("Shmem", "Slab", "SReclaimable", "SUnreclaim"), 0),
    }
    lines = [f"{name + ':':<16}{number // 1024:>8} kB\n" for name, number in kilobytes.items()]
    return {
        _MEMINFO: "".join(lines),
        "/sys/fs/cgroup/memory.max": f"{memory_bytes}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{memory_bytes}\n",
    }


def _first_processors(cores: int) -> str:
    """Returns the first `cores` processors' descriptions; reads no more, as the kernel makes each on reading."""
    lines = []

    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            lines.append(line)
            cores -= line == "\n"

            if cores == 0:
                break

    return "".join(lines).rstrip("\n") + "\n\n"


def _write(path: str, text: str) -> int:
    """Writes a file of this /sys and returns it, open."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    os.write(fd, text.encode())
    return fd
