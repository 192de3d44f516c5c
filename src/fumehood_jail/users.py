"""User ids: which ids of this system the base jail and its sandboxes get, and how they are mapped.

`plan_ids` runs in the host process, `write_maps` in the launcher, which still has the host user's rights. There are
three kinds of plan. `range`: root takes a block of unassigned ids, reserved with a lock file. `subuid`: an ordinary
user takes a block of the ids listed in /etc/subuid, through the setuid programs newuidmap and newgidmap. `single`:
everything runs under the caller's own id. Root of the host is never mapped while there is another id to take.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat

from fumehood_jail import syscalls
from fumehood_jail.errors import JailError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    MapLine = tuple[int, int, int]

# First id, end and block size of the ids that root may take. The first range lies behind those that systemd assigns
# (https://systemd.io/UIDS-GIDS); the second serves containers that map 65536 ids only, and ends before the ids of
# systemd-homed.
_RANGES = ((0x70000000, 0x7FFF0000, 65536), (32768, 60000, 1024))
# The ids that own the files of images on root's disk, and nothing else: user 0 of an image is the first, and so on.
IMAGE_IDS = (0x7FFF0000, 65536)
# The ids that own the files of an image's other users, inside the base jail of its sandboxes.
_IMAGE_FILES = 1 << 20
_SUBUID_BLOCK = 4096
_LOCK_FOLDER = "/run/fumehood/uids"
# Searched here and not in PATH: they run with the rights of their file's owner.
_PROGRAM_FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/run/wrappers/bin")
_CAP_SETGID = 6
_CAP_SETUID = 7


class IdPlan:
    """The user and group ids of a base jail.

    Attributes:
        kind: `"range"`, `"subuid"` or `"single"`; `"image"` for all ids of an image's users.
        uid_map: Lines of the base namespace's map: first id inside, first id outside, how many.
        gid_map: The same for groups.
        first_id: The first id inside the base namespace that a sandbox may be mapped to.
        count: How many such ids there are; 1 means that all sandboxes share one.
        notes: Remarks about this choice for a report.
        lock_fd: The descriptor that keeps the block reserved while it is open; None when there is no block.
    """

    __slots__ = ("count", "first_id", "gid_map", "kind", "lock_fd", "notes", "uid_map")

    def __init__(
        self,
        kind: str,
        uid_map: list[MapLine],
        gid_map: list[MapLine],
        first_id: int,
        count: int,
        notes: list[str],
        lock_fd: int | None = None,
    ) -> None:
        self.kind = kind
        self.uid_map = uid_map
        self.gid_map = gid_map
        self.first_id = first_id
        self.count = count
        self.notes = notes
        self.lock_fd = lock_fd

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain values, without the lock."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "lock_fd"}

    def release(self) -> None:
        """Releases the block of ids; a second call does nothing. Before: no process uses an id of the block."""
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> IdPlan:
        """Makes the plan from the values of `to_dict`, in a process that does not hold the lock."""
        maps = {name: [tuple(line) for line in fields[name]] for name in ("uid_map", "gid_map")}
        return cls(**{**fields, **maps})


def plan_ids(lock_folder: str = _LOCK_FOLDER) -> IdPlan:
    """Chooses ids for one base jail, as many as the caller's rights allow.

    After: `lock_fd` of the plan, where there is one, keeps the block from other base jails until it is
    closed.

    Args:
        lock_folder: Where root keeps the locks; made with mode 0700.
    """
    notes: list[str] = []
    plan = _plan_range(lock_folder, notes) if _may_map_any_id() else _plan_subuid(notes)
    return plan or _plan_single(notes)


def plan_image_ids() -> IdPlan | None:
    """Chooses the ids of the processes that unpack and build images, and of the files that they write.

    Returns:
        With root's rights, ids for all users of an image; for an ordinary user that user's own id, which then owns all
        files of images. None for root in a container that maps too few ids.
    """
    if not _may_map_any_id():
        return _plan_single([])

    maps = [read_id_map("/proc/self/uid_map"), read_id_map("/proc/self/gid_map")]

    if not all(_is_mapped(id_map, *IMAGE_IDS) for id_map in maps):
        return None

    lines = [(0, *IMAGE_IDS)]
    return IdPlan("image", lines, list(lines), 1, IMAGE_IDS[1] - 1, [])


def with_image_files(plan: IdPlan) -> IdPlan:
    """Returns a plan that also maps the owners of an image's files; root of the base jail owns those of its root.

    Overlayfs copies only files whose owners are mapped. An ordinary user owns all files of images already, so for such
    a user the plan is returned as it is.
    """
    if plan.kind != "range":
        return plan

    first, count = IMAGE_IDS
    (_, block, size) = plan.uid_map[0]
    lines = [(0, first, 1), (1, block + 1, size - 1), (_IMAGE_FILES, first + 1, count - 1)]
    return IdPlan(plan.kind, lines, list(lines), plan.first_id, plan.count, plan.notes, plan.lock_fd)


def write_maps(pid: int, plan: IdPlan) -> None:
    """Writes the id maps of the user namespace that process `pid` was cloned into.

    Before: the caller is the parent, in the parent user namespace, with the rights that made the plan.
    After: the child has its ids; with `range` and `single` it can never change its supplementary groups. Programs of an
    image change theirs, within the ids of images.
    """
    if plan.kind == "subuid":
        _run_map_program("newuidmap", pid, plan.uid_map)
        _run_map_program("newgidmap", pid, plan.gid_map)
        return

    if plan.kind != "image":
        _write_proc(pid, "setgroups", "deny")

    _write_proc(pid, "uid_map", _map_text(plan.uid_map))
    _write_proc(pid, "gid_map", _map_text(plan.gid_map))


def drop_supplementary_groups() -> bool:
    """Drops the host user's supplementary groups, which would still give access to files inside the jail.

    Before: in the base namespace, maps written, CAP_SETGID held. After: no supplementary group, if the
    result is true; false where the namespace forbids the call, as with the single id of an ordinary
    user.
    """
    if not os.getgroups():
        return True

    try:
        os.setgroups([])
    except PermissionError:
        return False

    return True


def find_program(name: str) -> str | None:
    """Returns the path of newuidmap or newgidmap, or None where it is not installed."""
    for folder in _PROGRAM_FOLDERS:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path

    return None


def subordinate_ranges(path: str) -> list[tuple[int, int]]:
    """Reads the ranges that /etc/subuid or /etc/subgid lists for the calling user, as first id and count."""
    names = {str(os.getuid())}
    try:
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        pass

    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.strip().split(":") for line in file]
    except OSError:
        return []

    return [
        (int(fields[1]), int(fields[2]))
        for fields in lines
        if len(fields) == 3 and fields[0] in names and fields[1].isdigit() and fields[2].isdigit()
    ]


def read_id_map(path: str) -> list[MapLine]:
    """Reads a map such as /proc/self/uid_map: first id inside, first id outside, how many."""
    with open(path, encoding="ascii") as file:
        return [(int(inside), int(outside), int(count)) for inside, outside, count in map(str.split, file)]


def _may_map_any_id() -> bool:
    effective, _, _ = syscalls.capget()
    return bool(effective >> _CAP_SETUID & effective >> _CAP_SETGID & 1)


def _plan_range(lock_folder: str, notes: list[str]) -> IdPlan | None:
    maps = [read_id_map("/proc/self/uid_map"), read_id_map("/proc/self/gid_map")]
    for first, end, size in _RANGES:
        blocks = _mapped_blocks(maps, range(first, end - size + 1, size), size)
        if not blocks:
            continue

        block, lock_fd = _reserve(lock_folder, blocks)
        if size < 65536:
            notes.append(f"this container maps few ids: sandboxes use {block} to {block + size - 1}")

        lines = [(0, block, size)]
        return IdPlan("range", lines, list(lines), 1, size - 1, notes, lock_fd)

    notes.append("this container maps no spare ids: all sandboxes share the id of the caller")
    return None


def _mapped_blocks(maps: list[list[MapLine]], blocks: range, size: int) -> list[int]:
    """Returns the blocks of ids that lie completely within one line of each map."""
    # Most machines map all of them by one line: then each need not be looked up.
    span = blocks[0], blocks[-1] + size - blocks[0]
    if all(_is_mapped(id_map, *span) for id_map in maps):
        return list(blocks)

    return [block for block in blocks if all(_is_mapped(id_map, block, size) for id_map in maps)]


def _is_mapped(id_map: list[MapLine], first: int, count: int) -> bool:
    return any(inside <= first and first + count <= inside + size for inside, _, size in id_map)


def _plan_subuid(notes: list[str]) -> IdPlan | None:
    reason = why_no_subordinate_ids()
    if reason:
        notes.append(f"all sandboxes share your own id: {reason}")
        return None

    uid_blocks = list(_blocks(subordinate_ranges("/etc/subuid")))
    gid_blocks = list(_blocks(subordinate_ranges("/etc/subgid")))
    pairs = {uids[0]: (uids, gids) for uids, gids in zip(uid_blocks, gid_blocks, strict=False)}
    first, lock_fd = _reserve(_user_lock_folder(), list(pairs))
    (uid_first, uid_count), (gid_first, gid_count) = pairs[first]
    count = min(uid_count, gid_count)
    # Root of the namespace stays mapped to the caller, which can read the template's files; only sandboxes get other
    # ids.
    return IdPlan(
        "subuid",
        [(0, os.geteuid(), 1), (1, uid_first, count)],
        [(0, os.getegid(), 1), (1, gid_first, count)],
        1,
        count,
        notes,
        lock_fd,
    )


def why_no_subordinate_ids() -> str:
    """Returns why this user cannot have sandboxes or builds with subordinate ids; empty if it can."""
    for name in ("newuidmap", "newgidmap"):
        program = find_program(name)
        if program is None:
            return f"{name} is not installed (package uidmap or shadow-utils)"

        if not _has_rights_of_its_own(program):
            return f"{program!r} is neither setuid nor has capabilities, or lies on a nosuid mount"

    for path in ("/etc/subuid", "/etc/subgid"):
        if not subordinate_ranges(path):
            return f"{path} lists no range for you (man 8 usermod: --add-subuids, --add-subgids)"

    if syscalls.prctl(syscalls.PR_GET_NO_NEW_PRIVS):
        return "newuidmap cannot gain its rights because this process runs with no_new_privs"

    return ""


def _has_rights_of_its_own(path: str) -> bool:
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return False

    return bool(os.stat(path).st_mode & stat.S_ISUID) or "security.capability" in os.listxattr(path)


def _blocks(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Cuts ranges into blocks, so that several base jails of a user get different ids."""
    for first, count in ranges:
        for start in range(first, first + count, _SUBUID_BLOCK):
            yield start, min(_SUBUID_BLOCK, first + count - start)


def _user_lock_folder() -> str:
    runtime_folder = f"/run/user/{os.getuid()}"
    if os.access(runtime_folder, os.W_OK):
        return f"{runtime_folder}/fumehood-uids"

    return f"/tmp/fumehood-uids-{os.getuid()}"  # noqa: S108 - its owner and mode are checked before it is used


def _plan_single(notes: list[str]) -> IdPlan:
    if os.geteuid() == 0:
        notes.append("sandboxes run under id 0 of this container, which has no other")

    if os.geteuid() != 0 and os.getgroups():
        notes.append("your supplementary groups cannot be given up without /etc/subgid")

    return IdPlan("single", [(0, os.geteuid(), 1)], [(0, os.getegid(), 1)], 0, 1, notes)


def _reserve(folder: str, blocks: list[int]) -> tuple[int, int]:
    """Locks one free block, at random: containers that share ids but not this folder then rarely collide.

    Returns:
        The block, and the descriptor whose open file holds the lock.
    """
    _make_private_folder(folder)
    offset = int.from_bytes(os.urandom(4), "little") % len(blocks)
    for block in blocks[offset:] + blocks[:offset]:
        path = os.path.join(folder, str(block))
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JailError("reserve-ids", error.errno or 0, f"cannot open the lock {path!r}") from error

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue

        return block, fd

    raise JailError(
        "reserve-ids",
        errno.EBUSY,
        f"all {len(blocks)} blocks of ids in {folder!r} are taken",
        "Close other templates, or list a larger range in /etc/subuid and /etc/subgid.",
    )


def _make_private_folder(folder: str) -> None:
    try:
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise JailError(
            "reserve-ids",
            error.errno or 0,
            f"cannot make {folder!r} for the locks on user ids",
            "It must be writable for the user that runs fumehood; a tmpfs will do.",
        ) from error

    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise JailError(
            "reserve-ids",
            errno.EPERM,
            f"{folder!r} is not a folder that only its owner may write",
            "Remove it: another program has made it.",
        )


def _write_proc(pid: int, name: str, text: str) -> None:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        raise JailError(
            "map-ids",
            error.errno or 0,
            f"cannot write {text!r} to {name} of process {pid}",
            "The system may restrict user namespaces: 'fumehood doctor' says how.",
        ) from error


def _map_text(lines: list[MapLine]) -> str:
    return "\n".join(f"{inside} {outside} {count}" for inside, outside, count in lines)


def _run_map_program(name: str, pid: int, lines: list[MapLine]) -> None:
    """Runs newuidmap or newgidmap, which check the request against /etc/subuid and write the map."""
    path = find_program(name)
    if path is None:
        raise JailError("map-ids", errno.ENOENT, f"{name} is not installed", "Install the package uidmap.")

    argv = [path, str(pid), *(str(number) for line in lines for number in line)]
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        child = os.posix_spawn(path, argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 2)])
    finally:
        os.close(write_fd)

    with open(read_fd, "rb") as file:
        complaint = file.read(4096).decode("utf-8", "backslashreplace").strip()

    _, status = os.waitpid(child, 0)
    if status != 0:
        raise JailError(
            "map-ids",
            errno.EPERM,
            f"{name} refused: {complaint or f'status {status}'}",
            "Compare /etc/subuid and /etc/subgid with the ranges named here.",
        )
