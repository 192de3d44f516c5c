"""The layer store: one folder for each layer, named by its content, shared by all templates of a user.

Runs in the host process, beside the template store. A layer is written into a temporary folder, and renamed when it is
complete; it never changes afterwards. Unfinished layers of a killed process are deleted by the next one. Files in a
layer belong to the ids of images (`fumehood_jail.users.plan_image_ids`), and none of them is ever executed by a process
outside of a jail.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from fumehood.errors import TemplateStoreError

_KEY = re.compile(r"[0-9a-z]{1,16}-[0-9a-f]{64}")
_UNFINISHED = ".new-"
_RECORD = "layer.json"
_CONTENT = "root"
_LOCK = ".lock"
_HINT = "name a folder of your own in FUMEHOOD_HOME"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """The record of a stored layer.

    Attributes:
        made_by: Its origin: a digest, or the instruction of a build.
        size_bytes: Its content on disk.
        entries: How many files and folders it has.
        set_id: How many set-user-id and set-group-id bits were dropped.
        devices: How many device nodes were dropped.
    """

    made_by: str
    size_bytes: int
    entries: int
    set_id: int = 0
    devices: int = 0


class LayerStore:
    """The layers of one folder.

    Attributes:
        folder: Its absolute path; made when something is stored.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Makes `prune` refuse during the block, in which layers are made that no template names yet.

        Raises:
            TemplateStoreError: The folder cannot be made.
        """
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise TemplateStoreError(
                template="*",
                operation="build",
                reason=f"{self.folder!r} cannot be made: {error.strerror}",
                hint=_HINT,
            ) from None

        fd = _open_lock(os.path.join(self.folder, _LOCK))
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            self._sweep()
            yield
        finally:
            os.close(fd)

    def path(self, key: str) -> str:
        """Returns the path of the folder with a layer's content, whether or not the layer is stored."""
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} names no layer")

        return os.path.join(self.folder, key, _CONTENT)

    def info(self, key: str) -> LayerInfo | None:
        """Returns the record of a layer, or None if it is not in the store."""
        try:
            with open(os.path.join(os.path.dirname(self.path(key)), _RECORD), encoding="utf-8") as file:
                fields: dict[str, Any] = json.load(file)

            return LayerInfo(**fields)
        except (OSError, ValueError, TypeError):
            return None

    @contextmanager
    def making(self, owner: int) -> Iterator[NewLayer]:
        """Yields a folder for a new layer, which is deleted at the end unless it was kept.

        Args:
            owner: The user id on this machine to which root of an image is mapped.
        """
        name = f"{_UNFINISHED}{secrets.token_hex(8)}"
        folder = os.path.join(self.folder, name)
        os.mkdir(folder, 0o700)
        fd = _open_lock(os.path.join(folder, _LOCK))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            content = os.path.join(folder, _CONTENT)
            os.mkdir(content, 0o755)
            os.chown(content, owner, owner if owner != os.geteuid() else -1)
            yield NewLayer(self.folder, folder, content)
        finally:
            delete_tree(folder)
            os.close(fd)

    def keys(self) -> tuple[str, ...]:
        """Returns the names of all layers."""
        try:
            return tuple(sorted(name for name in os.listdir(self.folder) if _KEY.fullmatch(name)))
        except FileNotFoundError:
            return ()

    def size_bytes(self, keys: Iterable[str]) -> int:
        """Returns the total size of these layers in bytes."""
        return sum(info.size_bytes for key in set(keys) if (info := self.info(key)) is not None)

    def prune(self, needed: set[str]) -> tuple[int, int]:
        """Deletes the layers that nothing needs; returns their number and their total bytes.

        Raises:
            TemplateStoreError: A build is running, which may need any of them.
        """
        if not os.path.isdir(self.folder):
            return 0, 0

        fd = _open_lock(os.path.join(self.folder, _LOCK))
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TemplateStoreError(
                    template="*",
                    operation="prune",
                    reason="a template is being built from an image",
                    hint="wait for that",
                ) from None

            self._sweep()
            unneeded = [key for key in self.keys() if key not in needed]
            sizes = [info.size_bytes for key in unneeded if (info := self.info(key)) is not None]

            for key in unneeded:
                delete_tree(os.path.join(self.folder, key))
        finally:
            os.close(fd)

        return len(unneeded), sum(sizes)

    def _sweep(self) -> None:
        """Deletes the unfinished layers of makers that have died."""
        for name in os.listdir(self.folder):
            if not name.startswith(_UNFINISHED):
                continue

            folder = os.path.join(self.folder, name)

            # A folder that cannot be deleted must not prevent builds.
            with suppress(OSError):
                fd = _open_lock(os.path.join(folder, _LOCK))
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete_tree(folder)
                except BlockingIOError:
                    continue
                finally:
                    os.close(fd)


class NewLayer:
    """A layer that is being made.

    Attributes:
        folder: The folder for its maker's own files, beside its content.
        content: The folder for its content, empty at first.
    """

    def __init__(self, store: str, folder: str, content: str) -> None:
        self._store = store
        self.folder = folder
        self.content = content

    def keep(self, key: str, info: LayerInfo) -> None:
        """Stores the layer under its key; does nothing if another process has stored the same layer meanwhile."""
        with open(os.path.join(self.folder, _RECORD), "w", encoding="utf-8") as file:
            json.dump(asdict(info), file)
            file.flush()
            os.fsync(file.fileno())

        target = os.path.join(self._store, key)

        if not os.path.isdir(target):
            with suppress(FileExistsError, OSError):
                os.rename(self.folder, target)


def layer_key(kind: str, *parts: str) -> str:
    """Returns the name of a layer, from the digest of its content or of its inputs."""
    if kind == "sha256":
        return f"{kind}-{parts[0].partition(':')[2]}"

    return f"{kind}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


def delete_tree(folder: str) -> None:
    """Deletes a folder and all in it, also folders whose mode denies access to their owner.

    No link is followed, and no path is longer than two names: every folder inside is moved up before it is emptied, so
    that neither the depth of a tree nor a change of it meanwhile leads anywhere else.
    """
    try:
        top = _open_owned(folder, None)
    except (FileNotFoundError, NotADirectoryError):
        return

    # No entry of a tree has a name that begins so.
    prefix = secrets.token_hex(8)
    try:
        for number in itertools.count():
            names = os.listdir(top)

            if not names:
                break

            for place, name in enumerate(names):
                _delete_entry(name, top, f"{prefix}-{number}-{place}")
    finally:
        os.close(top)

    os.rmdir(folder)


def _delete_entry(name: str, top: int, prefix: str) -> None:
    """Deletes an entry of a folder; the folders in it become entries beside it."""
    try:
        inner = _open_owned(name, top)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
        return

    try:
        for place, entry in enumerate(os.listdir(inner)):
            if stat.S_ISDIR(os.lstat(entry, dir_fd=inner).st_mode):
                # A folder that is moved gets another `..`, for which it must be writable.
                os.close(_open_owned(entry, inner))
                os.rename(entry, f"{prefix}-{place}", src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)

    os.rmdir(name, dir_fd=top)


def _open_owned(name: str, folder: int | None) -> int:
    """Opens a folder, but no link, and first gives its owner all rights if its mode lacks some."""
    # A path alone needs no right to read the folder.
    path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(path_fd).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{path_fd}", stat.S_IRWXU)

        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path_fd)
    finally:
        os.close(path_fd)


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
