"""Explains errors: the restriction or limit that code has hit, or the fault of the host that has made a call fail.

Hints are pure functions of text that a guest sends and may have invented: no decision depends on them. At most a plain
path of the guest's text is copied into a hint. `naming_faults` converts faults of the host itself, such as exhausted
descriptors, to errors.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from fumehood.errors import FumehoodError, OverloadedError, SandboxError
from fumehood.log import events
from fumehood.text import errno_text
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

# Resources that are exhausted for now.
_FULL = {
    errno.EMFILE: "all files that the host may open are open",
    errno.ENFILE: "all files that the machine may open are open",
    errno.ENOMEM: "the host has no memory left",
    errno.EAGAIN: "the host may start no more processes or threads",
    errno.ENOSPC: "a disk of the host is full",
}


class naming_faults:  # noqa: N801 - said like a function, and used in a `with`
    """A context manager that converts an operating system error in its block to an error of the error tree.

    Args:
        outcome_unknown: Whether the work in the block may have been begun when it fails.
    """

    __slots__ = ("_outcome_unknown",)

    def __init__(self, *, outcome_unknown: bool) -> None:
        self._outcome_unknown = outcome_unknown

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError):
            return

        # These errors have a meaning of their own for callers.
        if isinstance(error, FumehoodError | ConnectionError | TimeoutError) or error.errno is None:
            return

        reason = _FULL.get(error.errno)

        if reason is not None:
            events.HOST_EXHAUSTED.log(reason=reason, errno=errno.errorcode.get(error.errno))
            raise OverloadedError(
                reason=reason, retry_after_seconds=1, outcome_unknown=self._outcome_unknown
            ) from error

        events.HOST_FAULT.log(
            exc_info=error, reason=errno_text(error.errno), errno=errno.errorcode.get(error.errno)
        )
        raise SandboxError(
            f"the host failed: {errno_text(error.errno)}",
            hint="the sandboxes are still there unless a call says otherwise; see the host's log",
            outcome_unknown=self._outcome_unknown,
        ) from error


WRITABLE: Final = (HOME_PATH, DATA_PATH, "/tmp", "/dev/shm")  # noqa: S108 - the names inside

_OS_ERRORS = frozenset(("OSError", "PermissionError", "BlockingIOError", "error"))
_NUMBER = re.compile(r"\A\[Errno (\d{1,3})\] ")
_PATH = re.compile(r": '(/[A-Za-z0-9._+@/-]{1,150})'(?: -> '[^']{0,300}')?\Z")
# The failing line of a cell, as tracebacks mark it; the last one is the innermost.
_FAILING = re.compile(r"^-+> \d+ (.{1,300})", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]{3,30}")
_STARTS = re.compile(r"\bfork|posix_spawn|Popen|_fork_exec")
_MAX_READ_CHARACTERS = 20_000

_FILTER = "the system call filter"
_NO_RIGHTS = "code in a sandbox has no privileges"
_PLACES = "the sandbox can write only below /home/user, /mnt/data, /tmp and /dev/shm"

# A word in the failing line, the refused call, and the reason.
_REFUSED: dict[str, tuple[str, str]] = {
    **{
        name: (name, f"file systems are mounted from outside alone ({_FILTER})")
        for name in ("mount", "umount", "umount2", "pivot_root", "chroot", "swapon", "swapoff")
    },
    **{
        name: (name, f"namespaces are made from outside alone ({_FILTER})")
        for name in ("unshare", "setns", "clone3")
    },
    **{
        name: (name, f"it would look into other processes ({_FILTER})")
        for name in ("ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "kcmp")
    },
    **{
        name: (name, f"it speaks to the kernel of the host ({_FILTER})")
        for name in (
            "bpf", "init_module", "finit_module", "delete_module", "kexec_load", "reboot", "syslog", "keyctl",
            "add_key", "request_key", "userfaultfd", "io_uring_setup", "iopl", "ioperm", "personality", "quotactl",
            "acct", "sethostname", "setdomainname", "vhangup",
        )
    },
    **{
        name: (name, f"the clock is the host's ({_FILTER})")
        for name in ("clock_settime", "settimeofday", "adjtimex", "clock_adjtime")
    },
    **{
        name: (name, _NO_RIGHTS)
        for name in (
            "setuid", "setgid", "seteuid", "setegid", "setreuid", "setregid", "setresuid", "setresgid",
            "setgroups", "initgroups", "chown", "fchown", "lchown", "nice", "setpriority", "sched_setscheduler",
        )
    },
    "mknod": ("mknod", "there are no device files but the few in /dev"),
    "SOCK_RAW": ("socket", "there are no raw sockets in it"),
    "AF_PACKET": ("socket", "there are no raw sockets in it"),
    "kill": ("kill", "a context can signal only what it has started itself (Landlock)"),
    "killpg": ("kill", "a context can signal only what it has started itself (Landlock)"),
}  # fmt: skip

KILLED_BY_FILTER: Final = (
    "the kernel ended it for a system call of another architecture's table (32-bit or x32 code), which the sandbox "
    f"refuses ({_FILTER})"
)


@dataclass(frozen=True, slots=True)
class FailureHint:
    """The restriction or limit that made code fail, with its hint.

    Attributes:
        text: One line of explanation.
        limit: The limit that was reached, as in `Limits`; empty if it was a restriction.
    """

    text: str
    limit: str = ""


def explain_failure(name: str, value: str, traceback: str) -> FailureHint | None:
    """Returns the restriction that the code seems to have run into; None when there is none.

    Args:
        name: The class of the exception.
        value: Its message.
        traceback: Plain text.
    """
    traceback = traceback[-_MAX_READ_CHARACTERS:]

    if name == "RuntimeError" and value == "can't start new thread":
        return _too_many_processes()

    if name == "ValueError" and value == "not allowed to raise maximum limit":
        return FailureHint(
            "the limits of a sandbox cannot be raised from inside: make it with larger `limits`"
        )

    found = _NUMBER.match(value)

    if found is None or name not in _OS_ERRORS:
        return None

    path = _PATH.search(value[:_MAX_READ_CHARACTERS])
    return _by_number(int(found[1]), "" if path is None else path[1], traceback)


def _by_number(number: int, path: str, traceback: str) -> FailureHint | None:
    match number:
        case errno.EROFS:
            return _not_writable(path)
        case errno.EPERM | errno.EACCES:
            return _refused_call(traceback) or _refused_path(path) or _no_rights(number)
        case errno.ENOSPC:
            text = "the writable directories of the sandbox are full: remove files, or make it with larger "
            return FailureHint(f"{text}`limits.disk_bytes` or `limits.inodes`", "disk_bytes")
        case errno.EMFILE:
            text = "the process has as many files open as `limits.open_files` allows: close some"
            return FailureHint(text, "open_files")
        case errno.EAGAIN if _STARTS.search(traceback):
            return _too_many_processes()
        case errno.ENOSYS:
            return FailureHint(f"the sandbox does not have this system call ({_FILTER})")
        case errno.EAFNOSUPPORT:
            return FailureHint("the sandbox has sockets of the families AF_UNIX, AF_INET and AF_INET6 alone")
        case _:
            return None


def _not_writable(path: str) -> FailureHint:
    where = f": {path}" if path and not _is_writable(path) else ""
    return FailureHint(f"{_PLACES}{where} (the rest of the system is mounted read-only)")


def _refused_path(path: str) -> FailureHint | None:
    if not path or _is_writable(path):
        # A restriction of the file's own mode, which code can change.
        return None

    return FailureHint(f"{_PLACES}, and reads what everybody may read: {path} (mounts and Landlock)")


def _refused_call(traceback: str) -> FailureHint | None:
    lines = _FAILING.findall(traceback)
    words = _WORD.findall(lines[-1]) if lines else []
    found = next((_REFUSED[word] for word in words if word in _REFUSED), None)
    return None if found is None else FailureHint(f"the sandbox refuses `{found[0]}`: {found[1]}")


def _no_rights(number: int) -> FailureHint | None:
    return FailureHint(f"the sandbox refuses this: {_NO_RIGHTS}") if number == errno.EPERM else None


def _too_many_processes() -> FailureHint:
    text = (
        "the sandbox has as many processes and threads as `limits.processes` allows: end some, or start fewer"
    )
    return FailureHint(text, "processes")


def _is_writable(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in WRITABLE)
