"""Mounts: the root that a jail sees, made of read-only binds, written files and sized memory filesystems.

`build_root` runs once per template, in the clone that becomes the jail init; `mount_sandbox` and `mask_proc` run once
per sandbox, in the clone that becomes its init. All run with full capabilities inside a user namespace of their own
and before any guest code exists. Every source is opened before the old root is detached; afterwards only what the
plan names remains reachable of the host.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from binascii import a2b_base64
from typing import Any, Dict, Iterable, List, Optional, Tuple

from fumehood_jail import device_nodes, layers, own_root, shown_limits, syscalls
from fumehood_jail.errors import JailError

# Where the new root is assembled before it replaces the old one. Any directory of the host works; /tmp exists
# everywhere.
_STAGING = "/tmp"  # noqa: S108 - a mount point in a private mount namespace, nothing is written to the host's /tmp
_OLD_ROOT = "/.old"

_ROOT_OPTIONS = "mode=0755,size=64m,nr_inodes=16384"

DEVICES = tuple(device_nodes.NODES)

# Files of /proc that describe the whole machine, or act on it: Docker's list, plus additions of security reviews.
MASKED_PROC_FILES = (
    "kallsyms", "kcore", "keys", "key-users", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
    "modules", "sched_debug", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo",
    "pagetypeinfo", "interrupts", "iomem", "ioports", "config.gz", "cmdline", "buddyinfo", "cgroups",
    "diskstats", "partitions", "schedstat", "softirqs", "swaps",
    "sys/fs/aio-nr", "sys/fs/dentry-state", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state",
    "sys/kernel/pty/nr",
)  # fmt: skip
# The fields that programs read of /proc/vmstat (psutil reads the swapping), with the values of an idle machine.
_QUIET_VMSTAT = "/opt/fumehood/vmstat"
_QUIET_VMSTAT_LINES = "pgpgin 0\npgpgout 0\npswpin 0\npswpout 0\n"
MASKED_PROC_DIRECTORIES = (
    "acpi",
    "asound",
    "bus",
    "driver",
    "dynamic_debug",
    "fs",
    "irq",
    "pressure",
    "scsi",
    "tty",
    "sysvipc",
)

# The directories of the one writable filesystem, by where they appear. They share one superblock, so that `disk_bytes`
# and `inodes` bound all of them together. The last one appears as /tmp too.
WRITABLE = {"/home/user": 0o700, "/mnt/data": 0o755, "/dev/shm": 0o1777, "/var/tmp": 0o1777}  # noqa: S108
_SCRATCH = "/var/tmp"  # noqa: S108
SHORT_SCRATCH = "/tmp"  # noqa: S108
# The root of forked sandboxes, as the others see it: the same folders, but /tmp is a link to /var/tmp. The Landlock
# rules of a process that migrates to a fork belong to directories; of the fork's mounts, only the directories above
# them are the same as in its source. The one above /tmp is the root, which must not be writable.
FORK_ROOT = "/.fork"
# As in the kernel: a path that leads through more links than this counts as a cycle.
_MAX_LINKS = 40


def build_root(plan: Dict[str, Any]) -> None:
    """Replaces the root of this mount namespace by the one that `plan` describes.

    Before: a fresh mount namespace whose owning user namespace is ours; this process still has the user id of the
    caller on the host, so that it can search private folders on the way to a bind source. After: `/` is a memory
    filesystem (still writable: `seal_root` ends that) and the old root is gone.

    Args:
        plan: `binds` (a list of source, target), `files` (path to text), `bytecode` (path to base64; may be missing),
            `copies` (a list of source, target; those that are missing are left out), `code` (the same, of which none
            may be missing), `links` (path to target), `directories` (paths), `hide` (directories of a bind to be shown
            empty), `uid` (the owner of the new root), `layers` (folders of an image, the lowest first; without any the
            root is empty at first), and with them `cleared` (paths at which an image may bring nothing) and `covered`
            (directories that are shown empty until each sandbox mounts its own over them).

    Raises:
        JailError: A step failed, or some of our code cannot be read.
    """
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    sources = _open_sources([source for source, _ in plan["binds"]])
    copied = {**_read_those_there(plan["copies"]), **_read_code(plan["code"])}
    devices = _open_sources([f"/dev/{name}" for name in DEVICES])
    image = _open_sources(plan.get("layers", []))
    alternatives = {} if image else _read_links("/etc/alternatives")
    _become(plan["uid"])

    os.chdir(_mount_empty_root(image))
    os.mkdir(_OLD_ROOT[1:])
    # An unmasked procfs of the new PID namespace: each sandbox may mount its own only while such a one is visible.
    if os.path.islink("proc"):
        raise JailError("build the root of an image", 0, "/proc of the image is a link")

    os.makedirs("proc", exist_ok=True)
    _mount_proc(os.path.realpath("proc"))
    syscalls.pivot_root(".", _OLD_ROOT[1:])
    os.chdir("/")

    if image:
        _check_links(plan)
        _clear(plan["cleared"])

    for path in plan["directories"]:
        os.makedirs(path, exist_ok=True)

    for (source, target), fd in zip(plan["binds"], sources):  # noqa: B905 - guests run on Python 3.9 too
        _bind_read_only(fd, source, target)

    for path in [*plan["hide"], *plan.get("covered", [])]:
        _show_empty(path)

    _make_devices(devices)
    _write_files(plan["files"], plan["executables"])
    _write_files({path: a2b_base64(text) for path, text in plan.get("bytecode", {}).items()}, ())
    _write_files(copied, ())
    _write_files({_QUIET_VMSTAT: _QUIET_VMSTAT_LINES}, ())
    _write_links(
        {**{f"/etc/alternatives/{name}": target for name, target in alternatives.items()}, **plan["links"]}
    )

    syscalls.umount2(_OLD_ROOT, syscalls.MNT_DETACH)
    os.rmdir(_OLD_ROOT)
    _make_fork_root()
    # Scratch space for files that the template's packages write at import; each sandbox mounts its own over it.
    syscalls.mount("tmpfs", _SCRATCH, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=64m")
    syscalls.mount(_SCRATCH, SHORT_SCRATCH, None, syscalls.MS_BIND)
    own_root.prepare(dict.fromkeys([target for _, target in plan["binds"]] + plan["hide"]))


def _check_links(plan: Dict[str, Any]) -> None:
    """Refuses an image whose links lead out of it: while the root is built, the host's is still below it."""
    made = [*plan["directories"], *plan["hide"], *[target for _, target in plan["binds"]], _QUIET_VMSTAT]
    written = [*plan["files"], *plan.get("bytecode", {}), *plan["links"], *plan["cleared"]]
    written += [target for _, target in [*plan["copies"], *plan["code"]]]

    for path in [*made, *map(os.path.dirname, written)]:
        if path != "/proc" and _leads_out(path):
            raise JailError("build the root of an image", 0, f"a link of the image leads {path!r} out of it")


def _clear(paths: List[str]) -> None:
    """Removes what an image has at these paths; the layers themselves stay as they are."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def _leads_out(path: str) -> bool:
    """Returns whether a path of the new root leads through links to the old root or through /proc."""
    waiting = path.split("/")[::-1]
    at, links = "", 0

    while waiting:
        part = waiting.pop()

        if part in ("", "."):
            continue

        if part == "..":
            at = os.path.dirname(at).rstrip("/")
            continue

        at = f"{at}/{part}"

        if at in (_OLD_ROOT, "/proc"):
            return True

        try:
            target = os.readlink(at)
        except OSError:
            # No link, or nothing yet.
            continue

        links += 1

        if links > _MAX_LINKS:
            return True

        at = "" if target.startswith("/") else os.path.dirname(at).rstrip("/")
        waiting += target.split("/")[::-1]

    return False


def _mount_empty_root(image: List[int]) -> str:
    """Mounts the filesystem that becomes the root, still writable; returns its path.

    The root of an image gets an empty /dev.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", _STAGING, "tmpfs", flags, _ROOT_OPTIONS)

    if not image:
        return _STAGING

    root = f"{_STAGING}/root"
    os.mkdir(root)
    layers.mount_layers(image, root, (), f"{_STAGING}/written")

    for fd in image:
        os.close(fd)

    device_folder = f"{root}/dev"

    if os.path.islink(device_folder):
        os.unlink(device_folder)
    elif os.path.isdir(device_folder):
        shutil.rmtree(device_folder)

    return root


def seal_root() -> None:
    """Makes the root itself read-only: from here on nothing can be added to what every sandbox sees."""
    read_only = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    syscalls.mount_setattr("/", read_only, 0, False)


def mount_own_proc() -> None:
    """Mounts the /proc of this process's own PID namespace over the present one."""
    _mount_proc("/proc")


def _make_fork_root() -> None:
    names = os.listdir("/")
    os.mkdir(FORK_ROOT)

    for name in names:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{FORK_ROOT}/{name}")
        elif not os.path.isdir(f"/{name}"):
            # An image may have files in its root: each is bound over an empty one.
            os.close(os.open(f"{FORK_ROOT}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        elif f"/{name}" != SHORT_SCRATCH:
            os.mkdir(f"{FORK_ROOT}/{name}")

    os.symlink(_SCRATCH, FORK_ROOT + SHORT_SCRATCH)


def enter_fork_root() -> None:
    """Pivots into `/.fork`, the root of forked sandboxes, in which Landlock rules of a migrated process still match.

    Before: as for `mount_sandbox`, which is called next; only the mounts that `leave_sandbox` keeps are there.
    Does nothing where the parent is itself a fork and so has this root already.
    """
    if not os.path.isdir(FORK_ROOT):
        return

    _at_step("bind the root of forks", syscalls.mount, FORK_ROOT, FORK_ROOT, None, syscalls.MS_BIND)

    for name in os.listdir(FORK_ROOT):
        if not os.path.islink(f"{FORK_ROOT}/{name}"):
            syscalls.mount(f"/{name}", f"{FORK_ROOT}/{name}", None, syscalls.MS_BIND | syscalls.MS_REC)

    os.chdir(FORK_ROOT)
    # The old root is now mounted on top of the new one, and is unmounted (man 2 pivot_root, `pivot_root(".", ".")`).
    _at_step("enter the root of forks", syscalls.pivot_root, ".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")


def mount_sandbox(disk_bytes: int, inodes: int, uid: int) -> None:
    """Mounts a sandbox's own writable directories, and its own /proc, whose sysctls can be written until `mask_proc`.

    Before: a clone of the jail init in namespaces of its own, with every capability in them. After: the only writable
    places are those of `WRITABLE`, together bounded by `disk_bytes` and `inodes`.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    options = f"mode=0755,size={disk_bytes},nr_inodes={inodes},uid={uid},gid={uid}"
    _at_step("mount the writable filesystem", syscalls.mount, "tmpfs", _SCRATCH, "tmpfs", flags, options)

    for path, mode in WRITABLE.items():
        inner = f"{_SCRATCH}/{os.path.basename(path)}"
        os.mkdir(inner, mode)
        os.chmod(inner, mode)
        syscalls.mount(inner, path, None, syscalls.MS_BIND)

    if not os.path.islink(SHORT_SCRATCH):
        syscalls.mount(_SCRATCH, SHORT_SCRATCH, None, syscalls.MS_BIND)

    _at_step("mount /proc", _mount_proc, "/proc")


def mask_proc(memory_bytes: int, cpu_cores: Optional[float]) -> None:
    """Masks a sandbox's own /proc, shows its limits of memory and processors there, and mounts its own terminals.

    Before: `mount_sandbox`. After: no sysctl can be written, and no file of the whole machine be read.
    """
    _mask_proc()
    _at_step("mount /sys", shown_limits.show, memory_bytes, cpu_cores)
    _at_step(
        "mount /dev/pts",
        syscalls.mount,
        "devpts",
        "/dev/pts",
        "devpts",
        syscalls.MS_NOSUID | syscalls.MS_NOEXEC,
        # The kernel counts terminals for the whole machine; without a bound here a sandbox could take all of them.
        "newinstance,ptmxmode=0666,mode=0620,max=64",
    )


def leave_sandbox(mount_namespace: int) -> None:
    """Enters a copy of a sandbox's mount namespace and unmounts what `mount_sandbox` and `mask_proc` have mounted.

    Before: every capability over the sandbox's namespaces.
    """
    own_root.go_to_parent(mount_namespace)
    shown_limits.unmount()
    short = [] if os.path.islink(SHORT_SCRATCH) else [SHORT_SCRATCH]

    # The last one covers the filesystem that it is a part of.
    for path in ["/dev/pts", "/proc", *short, *WRITABLE, _SCRATCH]:
        syscalls.umount2(path, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)


def shown(path: str) -> str:
    """Returns the path under which users know a file of a writable place: `/tmp` for `/var/tmp`."""
    return SHORT_SCRATCH + path[len(_SCRATCH) :] if path.startswith(f"{_SCRATCH}/") else path


def _mask_proc() -> None:
    # /proc/sys is already read-only for every guest; the bind guards against later mistakes.
    syscalls.mount("/proc/sys", "/proc/sys", None, syscalls.MS_BIND)
    syscalls.mount_setattr("/proc/sys", syscalls.MOUNT_ATTR_RDONLY, 0, False)

    for name in _MASKABLE_FILES or _find_maskable():
        syscalls.mount("/dev/null", name, None, syscalls.MS_BIND)

    for name in _MASKABLE_DIRECTORIES:
        syscalls.mount("/sys", name, None, syscalls.MS_BIND)

    syscalls.mount(_QUIET_VMSTAT, "/proc/vmstat", None, syscalls.MS_BIND)


# The masked names that this kernel has: the jail init looks once; its clones inherit the lists.
_MASKABLE_FILES: List[str] = []
_MASKABLE_DIRECTORIES: List[str] = []


def _find_maskable() -> List[str]:
    _MASKABLE_FILES.extend(path for path in _in_proc(MASKED_PROC_FILES) if not os.path.isdir(path))
    _MASKABLE_DIRECTORIES.extend(path for path in _in_proc(MASKED_PROC_DIRECTORIES) if os.path.isdir(path))
    return _MASKABLE_FILES


def look_around() -> None:
    """Finds, once and in the jail init, which names of /proc can be masked and which places can have an overlay."""
    _find_maskable()
    own_root.find([f"/dev/{name}" for name in DEVICES])


def _in_proc(names: Any) -> List[str]:
    return [path for path in (f"/proc/{name}" for name in names) if os.path.lexists(path)]


def _mount_proc(target: str) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    try:
        syscalls.mount("proc", target, "proc", flags)
    except PermissionError as error:
        raise JailError(
            "mount /proc",
            error.errno or 0,
            "the kernel refused a new procfs in this user namespace",
            "a container that masks its own /proc forbids this: start it with an unmasked one "
            "(docker: --security-opt systempaths=unconfined; Kubernetes: procMount: Unmasked)",
        ) from None


def _become(uid: int) -> None:
    """Becomes root of the new user namespace; until here, file checks still see the host's user."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _open_sources(paths: List[str]) -> List[int]:
    """Opens bind sources in this mount namespace, while this process may still search the folders that lead to them."""
    fds = []

    for path in paths:
        try:
            fds.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            raise JailError("open a folder of the template", error.errno or 0, repr(path)) from None

    return fds


def _bind_read_only(fd: int, source: str, target: str) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))

    origin = f"{_OLD_ROOT}/proc/self/fd/{fd}"
    try:
        syscalls.mount(origin, target, None, syscalls.MS_BIND | syscalls.MS_REC)
        read_only = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
        syscalls.mount_setattr(target, read_only, 0, True)
    except OSError as error:
        raise JailError(
            "bind a folder of the template read-only", error.errno or 0, f"{source!r}: {error}"
        ) from None

    os.close(fd)


def _show_empty(path: str) -> None:
    if not os.path.isdir(path):
        return

    syscalls.mount(
        "tmpfs",
        path,
        "tmpfs",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY,
        "size=4k,mode=0755",
    )


def _make_devices(fds: List[int]) -> None:
    os.makedirs("/dev", exist_ok=True)

    for name, fd in zip(DEVICES, fds):  # noqa: B905 - guests run on Python 3.9 too
        target = f"/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        syscalls.mount(f"{_OLD_ROOT}/proc/self/fd/{fd}", target, None, syscalls.MS_BIND)
        # The device stays writable; its timestamps, which are the host's, cannot be changed.
        syscalls.mount_setattr(target, syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID, 0, False)
        os.close(fd)

    for name, link in device_nodes.LINKS.items():
        os.symlink(link, f"/dev/{name}")

    for name in device_nodes.FOLDERS:
        os.makedirs(f"/dev/{name}", exist_ok=True)


def _write_files(files: Dict[str, Any], executables: Any) -> None:
    _make_folders_of(files)

    for path, content in files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        mode = 0o755 if path in executables else 0o644

        with open(_open_new(path, mode), "wb") as file:
            file.write(data)


def _open_new(path: str, mode: int) -> int:
    """Opens a file to be written; a link of an image that is in its place is removed: its target may be missing."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise

    os.unlink(path)
    return os.open(path, flags, mode)


def _write_links(links: Dict[str, str]) -> None:
    _make_folders_of(links)

    for path, target in links.items():
        try:
            os.symlink(target, path)
        except FileExistsError:
            continue


def _make_folders_of(paths: Iterable[str]) -> None:
    """Makes the folders that these paths lie in, each once: hundreds of files share a few."""
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        os.makedirs(folder, exist_ok=True)


def _read_those_there(copies: List[Tuple[str, str]]) -> Dict[str, bytes]:
    """Returns the content of the files to copy, by their paths in the new root.

    Files that do not exist are left out.
    """
    found = {}

    for source, target in copies:
        try:
            with open(source, "rb", buffering=0) as file:
                found[target] = file.read()
        except OSError:
            continue

    return found


def _read_code(copies: List[Tuple[str, str]]) -> Dict[str, bytes]:
    """Returns our own code by its path in the new root; raises if any file of it cannot be read."""
    found = {}

    for source, target in copies:
        try:
            with open(source, "rb", buffering=0) as file:
                found[target] = file.read()
        except OSError as error:
            raise JailError(
                "read the code of guests",
                error.errno or 0,
                repr(source),
                "let the user who starts sandboxes read all files of the installed package",
            ) from None

    return found


def _read_links(folder: str) -> Dict[str, str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: os.readlink(entry.path) for entry in entries if entry.is_symlink()}
    except OSError:
        return {}


def _at_step(step: str, function: Any, *arguments: Any) -> None:
    try:
        function(*arguments)
    except OSError as error:
        raise JailError(step, error.errno or 0, str(error)) from None
