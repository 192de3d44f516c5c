"""Raw Linux system calls for x86-64 and arm64; the only file of the project that imports `ctypes`.

Used in the launcher, the jail init, the zygote and the init of a sandbox, in the host process (by the probe and by
forks of live sandboxes), and by the attacker's program. Every function returns a value or raises `OSError` with the
errno and the name of the call; none of them decides anything. Argument types are prepared once, at import, so that a
call costs about a microsecond.

The invariant to keep in mind: `clone` duplicates the interpreter without releasing the GIL, so it may only be called
while the calling thread is the only one that matters to the child.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import signal
import struct

from fumehood_jail import call_numbers

# include/uapi/linux/sched.h
CLONE_PARENT = 0x00008000
CLONE_FILES = 0x00000400
CLONE_VM = 0x00000100
CLONE_VFORK = 0x00004000
CLONE_NEWTIME = 0x00000080  # only for unshare and clone3: clone reads these bits as the exit signal
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
SIGCHLD = int(signal.SIGCHLD)
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000

# include/uapi/linux/mount.h
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
MOUNT_ATTR_RDONLY = 0x00000001
MOUNT_ATTR_NOSUID = 0x00000002
MOUNT_ATTR_NODEV = 0x00000004
MOUNT_ATTR_NOSYMFOLLOW = 0x00200000

# include/uapi/linux/fcntl.h
_CLOSE_ON_EXEC, _FSCONFIG_CMD_CREATE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 6, 0x00000004
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_RECURSIVE = -100, 0x100, 0x8000

# include/uapi/linux/prctl.h, capability.h, securebits.h
PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_GET_SECCOMP = 21
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_TIMERSLACK = 29
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
_PR_GET_TID_ADDRESS = 40
# struct __user_cap_header_struct: version 3, the calling thread.
CAPSET_HEADER = struct.pack("=Ii", 0x20080522, 0)
CAPSET_BYTES = 24

# include/uapi/linux/seccomp.h, landlock.h, inotify.h, close_range.h
_SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_TSYNC = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
CLOSE_RANGE_CLOEXEC = 4
IN_MODIFY = 0x00000002
IN_ATTRIB = 0x00000004
IN_CLOSE_WRITE = 0x00000008
IN_MOVED_FROM = 0x00000040
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

# include/uapi/linux/ptrace.h, elf.h; tracing.py has the rest
_PTRACE_GETEVENTMSG = 0x4201
_PTRACE_GETREGSET = 0x4204
_PTRACE_SETREGSET = 0x4205
_PTRACE_GETSIGMASK = 0x420A
_PTRACE_SETSIGMASK = 0x420B
_NT_PRSTATUS = 1

# include/uapi/asm-generic/mman-common.h
MADV_COLLAPSE = 25
_MAP_FIXED = 0x10

_NR = call_numbers.HERE

# Read by the type checker only: `typing` would cost the launcher's start a few milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    _Argument = int | bytes | ctypes.Array[ctypes.c_char] | None

# A pointer argument takes an integer, bytes, a buffer or None: one prototype serves every call.
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6
_madvise = _libc.madvise
_madvise.restype = ctypes.c_int
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_MMAP_FAILED = ctypes.c_void_p(-1).value
_fflush = _libc.fflush
_fflush.restype = ctypes.c_int
_fflush.argtypes = [ctypes.c_void_p]

# The same entry point, called without releasing the GIL.
_syscall_with_gil = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_with_gil.restype = ctypes.c_long
_syscall_with_gil.argtypes = _syscall.argtypes
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_before_fork.restype = None
_before_fork.argtypes = []
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_child.restype = None
_after_fork_child.argtypes = []
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_parent.restype = None
_after_fork_parent.argtypes = []


def _call(
    name: str,
    a: _Argument = 0,
    b: _Argument = 0,
    c: _Argument = 0,
    d: _Argument = 0,
    e: _Argument = 0,
) -> int:
    """Makes one system call.

    Raises:
        OSError: With the errno of the kernel and the name of the call.
    """
    result: int = _syscall(_NR[name], a, b, c, d, e, 0)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

    return result


def _text(value: str | None) -> bytes | None:
    """Encodes a C string; ctypes itself would silently cut it at an embedded NUL."""
    if value is None:
        return None

    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"embedded NUL in {value!r}")

    return encoded


def clone(flags: int, exit_signal: int = SIGCHLD) -> int:
    """Forks this process with one raw system call, optionally into new namespaces.

    Before: the caller is the only thread whose locks the child needs. After: as after `os.fork`, the at-fork hooks of
    Python have run on both sides. The bookkeeping of glibc's fork for its thread record (the cached thread id, the
    robust list) is done here too.

    Args:
        flags: Any of the `CLONE_NEW*` constants.
        exit_signal: The signal that the parent receives when the child ends. A child with another one than SIGCHLD is
            reported only to waits that ask for such children (man 2 wait, "__WALL").

    Returns:
        0 in the child, the pid of the child in the parent.
    """
    if flags & ~(CLONE_NAMESPACES | SIGCHLD):
        raise ValueError(f"clone takes namespace flags only, not {flags:#x}")

    tid_address = _tid_address()
    robust = _robust_list()
    flags = flags & ~SIGCHLD | exit_signal
    if tid_address:
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID

    # The order of the last two arguments differs between the machines (CONFIG_CLONE_BACKWARDS).
    tls, child_tid = (0, tid_address) if call_numbers.MACHINE == "aarch64" else (tid_address, 0)
    _before_fork()
    pid: int = _syscall_with_gil(_NR["clone"], flags, 0, 0, tls, child_tid, 0)
    return _go_on_from_fork(pid, robust, f"clone({flags:#x})")


def be_forked() -> int:
    """Blocks in a call in which a tracer makes this process fork; otherwise behaves as `clone`.

    Returns:
        0 in the child, in the parent the pid of the child, as this process sees it.

    Raises:
        OSError: No tracer has made this process fork.
    """
    tid_address = _tid_address()
    robust = _robust_list()
    _before_fork()
    pid: int = _syscall_with_gil(_NR["setns"], -1, 0, 0, 0, 0, 0)
    if pid == 0 and tid_address:
        tid = _syscall_with_gil(_NR["set_tid_address"], tid_address, 0, 0, 0, 0, 0)
        ctypes.c_int.from_address(tid_address).value = tid

    return _go_on_from_fork(pid, robust, "be forked")


def _go_on_from_fork(pid: int, robust: tuple[int, int], call: str) -> int:
    number = ctypes.get_errno()
    if pid == 0:
        _syscall_with_gil(_NR["set_robust_list"], robust[0], robust[1], 0, 0, 0, 0)
        _after_fork_child()
        return 0

    _after_fork_parent()
    if pid == -1:
        raise OSError(number, f"{call}: {os.strerror(number)}")

    return pid


def _tid_address() -> int:
    """Returns the address where libc caches the thread id of this thread, or 0 where it does not.

    The kernel knows the address from set_tid_address(2), and reports it if it is built with CONFIG_CHECKPOINT_RESTORE.
    glibc keeps the id there; musl keeps a lock, which the comparison distinguishes.
    """
    buffer = ctypes.create_string_buffer(8)
    try:
        _call("prctl", _PR_GET_TID_ADDRESS, buffer)
    except OSError:
        return 0

    address: int = struct.unpack("=Q", buffer.raw)[0]
    if not address:
        return 0

    cached = ctypes.c_int.from_address(address).value
    return address if cached == _thread.get_native_id() else 0


def _robust_list() -> tuple[int, int]:
    """Returns head and length of this thread's robust futex list, which the kernel does not copy to a child."""
    head = ctypes.create_string_buffer(8)
    length = ctypes.create_string_buffer(8)
    try:
        _call("get_robust_list", 0, head, length)
    except OSError:
        return 0, 24

    return struct.unpack("=Q", head.raw)[0], struct.unpack("=Q", length.raw)[0]


def unshare(flags: int) -> None:
    """Moves the calling thread into new namespaces."""
    _call("unshare", flags)


def setns(fd: int, flags: int = 0) -> None:
    """Enters the namespace of `fd`, or those namespaces of a pidfd that `flags` selects."""
    _call("setns", fd, flags)


def sethostname(name: str) -> None:
    """Sets the host name of the UTS namespace."""
    encoded = os.fsencode(name)
    _call("sethostname", encoded, len(encoded))


def prctl(option: int, a: int | bytes = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """Sets or reads an attribute of the process or thread with one of the `PR_*` constants.

    Returns:
        The kernel's answer: the requested value, or 0.
    """
    return _call("prctl", option, a, b, c, d)


def capget() -> tuple[int, int, int]:
    """Returns the effective, permitted and inheritable capabilities of the calling thread as bit masks."""
    header = ctypes.create_string_buffer(CAPSET_HEADER, 8)
    data = ctypes.create_string_buffer(CAPSET_BYTES)
    _call("capget", header, data)
    low = struct.unpack("=6I", data.raw)
    return low[0] | low[3] << 32, low[1] | low[4] << 32, low[2] | low[5] << 32


def capset(effective: int, permitted: int, inheritable: int) -> None:
    """Sets the effective, permitted and inheritable capabilities of the calling thread from bit masks."""
    masks = (effective, permitted, inheritable)
    data = struct.pack("=6I", *[mask & 0xFFFFFFFF for mask in masks], *[mask >> 32 for mask in masks])
    _call("capset", CAPSET_HEADER, data)


def mount(source: str | None, target: str, fstype: str | None, flags: int = 0, data: str = "") -> None:
    """Mounts a file system, or changes a mount as the `MS_*` constants say."""
    _call("mount", _text(source), _text(target), _text(fstype), flags, _text(data) if data else None)


def umount2(target: str, flags: int = 0) -> None:
    """Unmounts `target`, with `MNT_DETACH` or `UMOUNT_NOFOLLOW`."""
    _call("umount2", _text(target), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    """Makes `new_root` the root of the mount namespace and moves the old one to `put_old`."""
    _call("pivot_root", _text(new_root), _text(put_old))


def mount_setattr(path: str, attr_set: int, attr_clr: int = 0, recursive: bool = False) -> None:
    """Changes the `MOUNT_ATTR_*` flags of the mount at `path`, not following a symbolic link (Linux 5.12)."""
    flags = _AT_SYMLINK_NOFOLLOW | (_AT_RECURSIVE if recursive else 0)
    _call("mount_setattr", _AT_FDCWD, _text(path), flags, struct.pack("=QQQQ", attr_set, attr_clr, 0, 0), 32)


def mount_nowhere(fstype: str) -> int:
    """Makes a filesystem and a detached mount of it; returns a descriptor of its root (Linux 5.2)."""
    context = _call("fsopen", _text(fstype), _CLOSE_ON_EXEC)
    try:
        _call("fsconfig", context, _FSCONFIG_CMD_CREATE)
        return _call("fsmount", context, _CLOSE_ON_EXEC)
    finally:
        os.close(context)


def move_mount(fd: int, target: str) -> None:
    """Attaches the mount that a descriptor refers to, such as a detached one, at `target` (Linux 5.2)."""
    _call("move_mount", fd, b"", _AT_FDCWD, _text(target), _MOVE_MOUNT_F_EMPTY_PATH)


def seccomp_set_filter(program: bytes, flags: int = SECCOMP_FILTER_FLAG_TSYNC) -> int:
    """Loads a BPF program, an array of struct sock_filter, as a seccomp filter; with TSYNC for every thread.

    Before: no_new_privs is set. After: the filter stays until the process ends. Returns the listener if `flags` asks
    for one.
    """
    address = ctypes.c_uint64.from_buffer(ctypes.c_char_p(program)).value
    header = struct.pack("=HxxxxxxQ", len(program) // 8, address)
    answer: int = _call("seccomp", _SECCOMP_SET_MODE_FILTER, flags, header)
    if answer and not flags & SECCOMP_FILTER_FLAG_NEW_LISTENER:
        raise OSError(errno.ESRCH, f"seccomp: thread {answer} could not take over the filter")

    return answer


def landlock_abi() -> int:
    """Returns the version of the Landlock interface that the kernel offers (1 and up)."""
    return _call("landlock_create_ruleset", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)


def landlock_create_ruleset(attributes: bytes) -> int:
    """Creates a Landlock ruleset from a packed struct landlock_ruleset_attr.

    Returns:
        A close-on-exec descriptor of the ruleset.
    """
    return _call("landlock_create_ruleset", attributes, len(attributes), 0)


def landlock_add_rule_path(ruleset_fd: int, allowed_access: int, parent_fd: int) -> None:
    """Allows `allowed_access` beneath the file or folder that `parent_fd` is open on."""
    rule = struct.pack("=Qi", allowed_access, parent_fd)
    _call("landlock_add_rule", ruleset_fd, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_restrict_self(ruleset_fd: int) -> None:
    """Enforces the ruleset on the calling thread and its children. Before: no_new_privs is set."""
    _call("landlock_restrict_self", ruleset_fd, 0)


def madvise(address: int, length: int, advice: int) -> None:
    """Advises the kernel about the use of a range of this process's memory."""
    if _madvise(address, length, advice) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"madvise: {os.strerror(number)}")


def map_over(address: int, length: int, protection: int, flags: int, fd: int = -1, offset: int = 0) -> None:
    """Maps a file or memory at a page's address, with `mmap.PROT_*` and `mmap.MAP_*`, over any existing mapping."""
    if _mmap(address, length, protection, flags | _MAP_FIXED, fd, offset) == _MMAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap: {os.strerror(number)}")


def read_memory(address: int, length: int) -> bytes:
    """Returns the bytes at an address of this process, which must be mapped and readable."""
    return ctypes.string_at(address, length)


def write_memory(address: int, content: bytes) -> None:
    """Writes to an address of this process, which must be mapped and writable."""
    ctypes.memmove(address, content, len(content))


def ptrace(request: int, pid: int, data: int = 0, address: int = 0) -> None:
    """Makes a ptrace request (man 2 ptrace) for another process."""
    _call("ptrace", request, pid, address, data)


def ptrace_event_message(pid: int) -> int:
    """Returns the message of the event at which a traced process has stopped, such as the pid of a child."""
    buffer = ctypes.create_string_buffer(8)
    _call("ptrace", _PTRACE_GETEVENTMSG, pid, 0, buffer)
    (found,) = struct.unpack("=Q", buffer.raw)
    return int(found)


def ptrace_registers(pid: int, content: bytes, writes: bool = False) -> bytes:
    """Reads the general registers of a traced process that has stopped, or writes them.

    Args:
        pid: Its number.
        content: The registers to write; for a read, a buffer of the size to read.
        writes: Whether to write.
    """
    buffer = ctypes.create_string_buffer(content, len(content))
    vector = struct.pack("=QQ", ctypes.addressof(buffer), len(content))
    _call("ptrace", _PTRACE_SETREGSET if writes else _PTRACE_GETREGSET, pid, _NT_PRSTATUS, vector)
    return buffer.raw


def ptrace_signal_mask(pid: int, mask: int | None = None) -> int:
    """Returns the signal mask of a stopped traced process as bits, after setting it if `mask` is given."""
    buffer = ctypes.create_string_buffer(struct.pack("=Q", mask or 0), 8)
    _call("ptrace", _PTRACE_GETSIGMASK if mask is None else _PTRACE_SETSIGMASK, pid, len(buffer), buffer)
    (found,) = struct.unpack("=Q", buffer.raw)
    return int(found)


def close_range(first: int, last: int = 0xFFFFFFFF, flags: int = 0) -> None:
    """Closes the descriptors `first` to `last`, or marks them with `CLOSE_RANGE_CLOEXEC` (Linux 5.9)."""
    _call("close_range", first, last, flags)


def inotify_init() -> int:
    """Opens a non-blocking, close-on-exec inotify descriptor."""
    return _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    """Watches `path` for the `IN_*` events of `mask` and returns the watch descriptor."""
    return _call("inotify_add_watch", fd, _text(path), mask)


def inotify_rm_watch(fd: int, watch: int) -> None:
    """Removes a watch."""
    _call("inotify_rm_watch", fd, watch)


def signalfd(number: int) -> int:
    """Opens a non-blocking, close-on-exec descriptor that delivers this signal, which the caller has blocked."""
    mask = ctypes.create_string_buffer(struct.pack("=Q", 1 << number - 1), 8)
    return _call("signalfd4", -1, mask, len(mask), os.O_NONBLOCK | os.O_CLOEXEC)


def call_loaded(path: str, function: str, argument: int) -> int:
    """Calls `int function(int)` of a library that this process has loaded.

    Raises:
        OSError: The library is not loaded.
        AttributeError: The library has no such function.
    """
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return int(getattr(library, function)(argument))


class _LinkMap(ctypes.Structure):
    """A loaded library, as link.h declares it."""


_LinkMap._fields_ = [
    ("l_addr", ctypes.c_size_t),
    ("l_name", ctypes.c_void_p),
    ("l_ld", ctypes.c_void_p),
    ("l_next", ctypes.POINTER(_LinkMap)),
]
_RTLD_DI_LINKMAP = 2


def name_libraries_by_real_path() -> None:
    """Renames each loaded library to its real path, where the dynamic linker loaded it by another path.

    A later load of the library by its real path then matches by name, even if the file has another inode than when it
    was loaded. Without `dlinfo` nothing is changed.
    """
    program = ctypes.CDLL(None)
    dlinfo, strdup = getattr(program, "dlinfo", None), program.strdup

    if dlinfo is None:
        return

    strdup.restype = ctypes.c_void_p
    library = ctypes.POINTER(_LinkMap)()

    if dlinfo(ctypes.c_void_p(program._handle), _RTLD_DI_LINKMAP, ctypes.byref(library)) != 0:
        return

    while library:
        entry = library.contents
        name = ctypes.string_at(entry.l_name) if entry.l_name else b""
        real = os.path.realpath(name) if b"/" in name else name

        if real != name:
            # The old string is not freed: the linker may refer to it.
            entry.l_name = strdup(real)

        library = entry.l_next


def flush_c_stdio() -> None:
    """Flushes the stdio streams of C code."""
    if _fflush(None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fflush: {os.strerror(number)}")
