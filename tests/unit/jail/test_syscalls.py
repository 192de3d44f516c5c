"""The raw system calls: they do what they say, or raise with errno and name."""

import ctypes
import errno
import fcntl
import os
import re
import select
import threading

import pytest

from fumehood_jail import call_numbers, seccomp, syscalls


def test_clone_makes_every_namespace_anew():
    """One clone with all flags puts the child into namespaces that are all different from the parent's."""
    kinds = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    read_fd, write_fd = os.pipe()

    pid = syscalls.clone(syscalls.CLONE_NAMESPACES)
    if pid == 0:
        os.close(write_fd)
        os.read(read_fd, 1)
        os._exit(0)

    theirs = {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds}
    os.close(read_fd)
    os.close(write_fd)
    os.waitpid(pid, 0)

    assert [kind for kind in kinds if ours[kind] == theirs[kind]] == []


def test_clone_leaves_a_whole_interpreter(in_child):
    """A cloned child runs at-fork hooks, threads and forks of its own."""
    ran = []
    os.register_at_fork(before=lambda: ran.append("before"), after_in_child=lambda: ran.append("child"))

    def clone_and_use():
        pid = syscalls.clone(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID)
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        thread = threading.Thread(target=lambda: ran.append("thread"))
        thread.start()
        thread.join()
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(5)

        hooks_ran = ran[-4:-1] == ["before", "child", "thread"] or ran[-5:-2] == ["before", "child", "thread"]
        exit_code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        os._exit(7 if hooks_ran and exit_code == 5 and os.getpid() == 1 else 1)

    assert in_child(clone_and_use) == 7


def test_clone_gives_the_child_its_own_thread_id(in_child):
    """libc's cached thread id is that of the child: functions that compare it, such as raise(3), work."""

    def clone_and_raise():
        pid = syscalls.clone(0)
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        mutex = ctypes.create_string_buffer(64)
        attributes = ctypes.create_string_buffer(16)
        libc = ctypes.CDLL(None)
        libc.pthread_mutexattr_init(attributes)
        libc.pthread_mutexattr_settype(attributes, 2)  # PTHREAD_MUTEX_ERRORCHECK remembers its owner's id
        libc.pthread_mutex_init(mutex, attributes)
        libc.pthread_mutex_lock(mutex)
        owner = int.from_bytes(mutex.raw[8:12], "little")
        os._exit(3 if owner == threading.get_native_id() else 4)

    assert in_child(clone_and_raise) == 3


def test_clone_takes_namespace_flags_only():
    """Flags that would share memory with the child are refused before anything happens."""
    with pytest.raises(ValueError, match="0x100"):
        syscalls.clone(0x100)


def test_errors_carry_errno_and_name():
    """A call that fails raises with the kernel's errno and names itself."""
    with pytest.raises(OSError, match=r"mount: ") as caught:
        syscalls.mount("none", "/nonexistent/folder", "tmpfs")

    assert caught.value.errno in (errno.ENOENT, errno.EPERM)


def test_paths_with_nul_are_refused():
    """A path is never cut short at a NUL."""
    with pytest.raises(ValueError, match="NUL"):
        syscalls.umount2("/proc\0/self")


def test_numbers_agree_with_the_tables():
    """The numbers used here are those of the policy tables, on both machines."""
    for machine, used in call_numbers._NUMBERS.items():
        table = seccomp._syscall_numbers(machine)
        assert {name: table[name] for name in used} == used


def test_tables_agree_with_the_kernel_headers():
    """The committed table of this machine says what the installed kernel headers say."""
    header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
    if call_numbers.MACHINE != "x86_64" or not os.path.exists(header):
        pytest.skip("no x86-64 kernel headers are installed")

    with open(header, encoding="ascii") as file:
        stated = dict(re.findall(r"#define __NR_(\w+) (\d+)", file.read()))

    table = seccomp._syscall_numbers("x86_64")
    assert {name: int(number) for name, number in stated.items()}.items() <= table.items()


def test_mount_and_setattr(in_namespaces, tmp_path):
    """A mount can be made, and made to follow no symbolic link and to be read-only, in a namespace."""
    target = str(tmp_path)

    def mount():
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("none", target, "tmpfs", syscalls.MS_NOSUID, "size=64k")
        os.symlink("/etc/passwd", f"{target}/link")
        followed_before = os.path.exists(f"{target}/link")
        syscalls.mount_setattr(target, syscalls.MOUNT_ATTR_NOSYMFOLLOW | syscalls.MOUNT_ATTR_RDONLY)
        errors = []
        for path, flags in ((f"{target}/link", os.O_RDONLY), (f"{target}/file", os.O_CREAT | os.O_WRONLY)):
            try:
                os.open(path, flags)
            except OSError as error:
                errors.append(error.errno)

        syscalls.umount2(target, syscalls.MNT_DETACH)
        return [followed_before, errors]

    assert in_namespaces(syscalls.CLONE_NEWNS, mount) == [True, [errno.ELOOP, errno.EROFS]]


def test_sethostname(in_namespaces):
    """The host name changes inside, and only there."""
    before = os.uname().nodename

    def rename():
        syscalls.sethostname("fume")
        return os.uname().nodename

    assert in_namespaces(syscalls.CLONE_NEWUTS, rename) == "fume"
    assert os.uname().nodename == before


def test_close_range(in_child):
    """All descriptors from the first on are closed."""

    def close():
        fds = [fcntl.fcntl(0, fcntl.F_DUPFD, 200) for _ in range(20)]
        syscalls.close_range(min(fds), max(fds))
        return [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]

    assert in_child(close) == []


def test_inotify(tmp_path):
    """A watch reports what happens in a folder, until it is removed."""
    fd = syscalls.inotify_init()
    watch = syscalls.inotify_add_watch(fd, str(tmp_path), syscalls.IN_CREATE)
    (tmp_path / "seen").touch()

    assert select.select([fd], [], [], 5)[0] == [fd]
    assert b"seen" in os.read(fd, 4096)
    syscalls.inotify_rm_watch(fd, watch)
    os.close(fd)


def test_flush_c_stdio(in_child):
    """What C code has printed leaves the process when asked."""
    read_fd, write_fd = os.pipe()

    def print_in_c():
        os.dup2(write_fd, 1)
        libc = ctypes.CDLL(None)
        buffer = ctypes.create_string_buffer(4096)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), buffer, 0, 4096)  # _IOFBF: full buffering
        libc.printf(b"from C")
        held_back = not select.select([read_fd], [], [], 0)[0]
        syscalls.flush_c_stdio()
        return [held_back, os.read(read_fd, 100).decode()]

    assert in_child(print_in_c) == [True, "from C"]
    os.close(read_fd)
    os.close(write_fd)
