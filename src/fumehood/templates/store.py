"""The store: named templates on disk, found by name from every process of the user.

Its folder belongs to the user alone:

    NAME.json             the record of a template; replacing this file publishes a build
    NAME.lock             held while a process builds or removes NAME
    builds/NAME.random/   one build: it never moves, so that the paths in it stay true
    .mutex                held while records and builds must be consistent

Each build has a lock of its own, which is held by its builder and by every process that makes sandboxes from it. A
build that no record names and no process holds is deleted: that of a builder that was killed, or one that was replaced
or removed while sandboxes still used it.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fumehood.errors import TemplateStoreError
from fumehood.templates.images.layers import LayerStore
from fumehood.templates.recipe import FILES, LANGUAGES, Say, is_store_name
from fumehood.values.image import ImageRoot
from fumehood.values.start_command import StartCommand
from fumehood.values.template import Template

_BUILDS = "builds"
_LAYERS = "layers"
_NEEDED = "needed.json"
_LOCK = ".lock"
_SUFFIX = ".json"
_SHOWN_NAMES = 20
_BUILD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo:
    """A named template, as the store knows it.

    Attributes:
        name: Its name.
        python: The version of its Python.
        preload: Modules that are imported once.
        envs: Environment of its sandboxes.
        has_files: Whether it gives files to its sandboxes.
        size_bytes: Its size on disk.
        built_at: When it was built.
        fingerprint: Digest of all its inputs.
        own_interpreter: Whether each of its sandboxes has an interpreter of its own.
        left_out: The modules of the preload list that are not imported once, and why: such as those whose import
            leaves threads running, which a fork would lose. Code in sandboxes can import them.
        start: The command that each of its sandboxes runs from its creation on; None for none.
        languages: The languages that were asked for and are there, with their versions.
        limits: The limits of sandboxes that a client of E2B's API makes, as its builder ordered.
    """

    name: str
    python: str
    preload: tuple[str, ...]
    envs: dict[str, str]
    has_files: bool
    size_bytes: int
    built_at: datetime
    fingerprint: str
    own_interpreter: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    start: StartCommand | None = None
    languages: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """The stored record of a template.

    Attributes:
        info: Its public description.
        build: Name of its build's folder.
        interpreter: Path of its interpreter within that folder; empty for an image.
        image: The root of its sandboxes, if it is made from a container image.
    """

    info: TemplateInfo
    build: str
    interpreter: str
    image: ImageRoot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFolder:
    """The folder of a build that is being made.

    Attributes:
        folder: Its absolute path.
        lock_fd: The lock that keeps it from being deleted.
    """

    folder: str
    lock_fd: int

    @property
    def name(self) -> str:
        """Its name among the builds."""
        return os.path.basename(self.folder)

    @property
    def files(self) -> str:
        """The folder of the files for the sandboxes, if there are some."""
        return os.path.join(self.folder, FILES)


class TemplateStore:
    """The named templates of one folder.

    Args:
        folder: Its absolute path; made when something is built.
    """

    LOCK = _LOCK

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    @property
    def folder(self) -> str:
        """The folder of the templates."""
        return self._folder

    @property
    def layers(self) -> LayerStore:
        """The layers of container images, which templates share."""
        return LayerStore(self._path(_LAYERS))

    def prune(self) -> tuple[int, int]:
        """Deletes the layers that no template uses; returns their number and their total bytes.

        Raises:
            TemplateStoreError: A template is being built from an image.
        """
        if not os.path.isdir(self._path(_BUILDS)):
            return self.layers.prune(set())

        self.sweep()
        needed: set[str] = set()

        # Layers of earlier builds stay as long as sandboxes are made from them.
        for build in os.listdir(self._path(_BUILDS)):
            try:
                with open(self._path(_BUILDS, build, _NEEDED), encoding="utf-8") as file:
                    needed.update(json.load(file))
            except FileNotFoundError:
                continue

        return self.layers.prune(needed)

    def names(self) -> tuple[str, ...]:
        """Returns the names of all templates, sorted."""
        try:
            entries = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise self._unreadable("*", error) from None

        names = (entry.removesuffix(_SUFFIX) for entry in entries if entry.endswith(_SUFFIX))
        return tuple(sorted(name for name in names if is_store_name(name)))

    def record(self, name: str) -> TemplateRecord | None:
        """Returns the record of a template, or None if there is none of this name."""
        if not is_store_name(name):
            return None

        try:
            with open(self._path(name + _SUFFIX), encoding="utf-8") as file:
                fields: dict[str, Any] = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(name, error) from None
        except ValueError as error:
            raise _damaged(name, str(error)) from None

        try:
            return read_record(name, fields, self._path(_LAYERS))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(name, f"{type(error).__name__}: {error}") from None

    @contextmanager
    def held_build(self, name: str) -> Iterator[str]:
        """Yields the folder of a template's build, which is not deleted within the block.

        Raises:
            TemplateStoreError: The build does not exist, or is damaged.
        """
        with self._mutex():
            record = self.record(name)

            if record is None:
                raise _damaged(name, "it was removed")

            folder = self._path(_BUILDS, record.build)
            fd = _shared_lock(name, folder)

        try:
            yield folder
        finally:
            os.close(fd)

    def publication(self, name: str) -> object:
        """Returns a value that changes whenever the template is built; None if there is none. Takes one system call."""
        if not is_store_name(name):
            return None

        try:
            info = os.stat(self._path(name + _SUFFIX))
        except OSError:
            return None

        return (info.st_ino, info.st_mtime_ns)

    def is_whole(self, record: TemplateRecord) -> bool:
        """Returns whether the build of a record, and the layers of its image, still exist."""
        if record.image is not None and not all(map(self.layers.info, record.image.needed)):
            return False

        return os.path.exists(self._path(_BUILDS, record.build, record.interpreter))

    def find(self, name: str) -> Template | None:
        """Returns a template for use, which keeps its build from being deleted until `close`; None if unknown."""
        if self.record(name) is None:
            return None

        with self._mutex():
            record = self.record(name)

            if record is None:
                return None

            folder = self._path(_BUILDS, record.build)

            if record.build not in self._held:
                self._held[record.build] = _shared_lock(name, folder)

        return Template(
            name=name,
            python=os.path.join(folder, record.interpreter) if record.image is None else None,
            image=record.image,
            preload=tuple(name for name in record.info.preload if name not in record.info.left_out),
            files=os.path.join(folder, FILES) if record.info.has_files else None,
            envs=record.info.envs,
            own_interpreter=record.info.own_interpreter,
            start=record.info.start,
            languages=os.path.join(folder, LANGUAGES) if record.info.languages else None,
            language_versions=record.info.languages,
            limits=record.info.limits,
        )

    def copy(self, name: str, other: str) -> bool:
        """Publishes a template's build under a second name too, replacing any build there; False if there is none.

        The two share what is on disk; it is deleted when neither names it any more.
        """
        with self.building(other, lambda _: None):
            # The build is locked, so that it is not deleted in between.
            if self.find(name) is None:
                return False

            record = self.record(name)
            assert record is not None, "it was found"
            self.publish(replace(record, info=replace(record.info, name=other)))

        self.sweep()
        return True

    def remove(self, name: str) -> bool:
        """Removes a template; returns False if it is in use: then its files stay until no process uses it.

        Raises:
            TemplateStoreError: The template is being built.
        """
        with self._held_by_name(name) as lock:
            if lock is None:
                raise TemplateStoreError(
                    template=name,
                    operation="remove",
                    reason="it is being built or removed right now",
                    hint="wait for that, or end it",
                )

            build = self._build_of(name)

            with self._mutex():
                with suppress(FileNotFoundError):
                    os.unlink(self._path(name + _SUFFIX))

                # A process that waits for the lock sees that its file is gone, and makes another.
                os.unlink(self._path(name + ".lock"))

        self.sweep()
        return not build or not os.path.exists(self._path(_BUILDS, build))

    @contextmanager
    def building(self, name: str, say: Say) -> Iterator[None]:
        """Lets one builder of a name at a time into the block; the others wait, and report that."""
        self._prepare(name)

        with self._held_by_name(name) as lock:
            if lock is not None:
                yield
                return

        say(f"waiting for another build of {name!r}")

        with self._held_by_name(name, wait=True):
            yield

    @contextmanager
    def new_build(self, name: str, build: str | None = None) -> Iterator[BuildFolder]:
        """Makes a folder to build in, which disappears at the end unless a record names it by then.

        Args:
            name: The template's name.
            build: The name of the folder; None: a new one.
        """
        with self._mutex():
            # Without the tag: a colon in a path would end it where paths are listed, as in PATH.
            folder = self._path(_BUILDS, build or f"{name.partition(':')[0]}.{secrets.token_hex(4)}")
            os.mkdir(folder, 0o700)
            fd = _open_lock(os.path.join(folder, _LOCK))
            fcntl.flock(fd, fcntl.LOCK_EX)

        try:
            yield BuildFolder(folder=folder, lock_fd=fd)
        finally:
            if self._build_of(name) != os.path.basename(folder):
                shutil.rmtree(folder, ignore_errors=True)

            os.close(fd)
            self.sweep()

    def publish(self, record: TemplateRecord) -> None:
        """Publishes a build as the template of its name, in one atomic step."""
        name = record.info.name
        part = self._path(f".{name}.part")
        fields = fields_of(record)

        if record.image is not None:
            with open(self._path(_BUILDS, record.build, _NEEDED), "w", encoding="utf-8") as file:
                json.dump(record.image.needed, file)

        with self._mutex():
            with open(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w"
            ) as file:
                json.dump(fields, file, indent=1)
                file.flush()
                os.fsync(file.fileno())

            os.replace(part, self._path(name + _SUFFIX))

    def sweep(self) -> None:
        """Deletes the builds that no record names and no process holds."""
        if not os.path.isdir(self._path(_BUILDS)):
            return

        orphans: list[tuple[str, int]] = []

        with self._mutex():
            named = {self._build_of(name) for name in self.names()}

            # A record that cannot be read may name any build.
            if None in named:
                return

            for entry in set(os.listdir(self._path(_BUILDS))) - named:
                folder = self._path(_BUILDS, entry)
                fd = _open_lock(os.path.join(folder, _LOCK))
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                else:
                    orphans.append((folder, fd))

        for folder, fd in orphans:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)

    def close(self) -> None:
        """Unlocks the builds that this store has found for its users, so that they may be deleted."""
        while self._held:
            _, fd = self._held.popitem()
            os.close(fd)

    # -- helpers

    def _path(self, *names: str) -> str:
        return os.path.join(self._folder, *names)

    def _build_of(self, name: str) -> str | None:
        """Returns the build of a name, "" if there is none, None if the record cannot be read."""
        try:
            record = self.record(name)
        except TemplateStoreError:
            return None

        return record.build if record is not None else ""

    def _unreadable(self, name: str, error: OSError) -> TemplateStoreError:
        return TemplateStoreError(
            template=name,
            operation="read",
            reason=f"the folder {self._folder!r} cannot be read: {error.strerror}",
            hint="name a folder of your own in FUMEHOOD_HOME",
        )

    def _prepare(self, name: str) -> None:
        """Makes the folder of the store, writable only by its user: its files run in every sandbox of a template."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            info = os.stat(self._folder)
        except OSError as error:
            raise TemplateStoreError(
                template=name,
                operation="build",
                reason=f"the folder {self._folder!r} cannot be made: {error.strerror}",
                hint="name a folder of your own in FUMEHOOD_HOME",
            ) from None

        if info.st_uid != os.geteuid():
            raise TemplateStoreError(
                template=name,
                operation="build",
                reason=f"the folder {self._folder!r} belongs to user {info.st_uid}, and you are {os.geteuid()}",
                hint="name a folder of your own in FUMEHOOD_HOME",
            )

        os.chmod(self._folder, 0o700)
        os.makedirs(self._path(_BUILDS), mode=0o700, exist_ok=True)

    @contextmanager
    def _mutex(self) -> Iterator[None]:
        fd = _open_lock(self._path(".mutex"))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _held_by_name(self, name: str, *, wait: bool = False) -> Iterator[int | None]:
        """Holds the lock of a name; yields None if another process holds it."""
        path = self._path(f"{name}.lock")

        while True:
            fd = _open_lock(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(fd)
                yield None
                return
            except BaseException:
                os.close(fd)
                raise

            if _is_at(fd, path):
                break

            # The file was removed while this process waited: a lock on it excludes no other process.
            os.close(fd)

        try:
            yield fd
        finally:
            os.close(fd)


def new_info(
    template: Template, *, version: tuple[int, int, int], size_bytes: int, fingerprint: str
) -> TemplateInfo:
    """Describes a template that has just been built."""
    return TemplateInfo(
        name=template.name,
        python=".".join(map(str, version)),
        preload=template.preload,
        envs=dict(template.envs),
        has_files=template.files is not None,
        size_bytes=size_bytes,
        built_at=datetime.now(UTC),
        fingerprint=fingerprint,
        own_interpreter=template.own_interpreter,
        start=template.start,
    )


def hint_of_names(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the names of templates, similar ones first."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3)

    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"

    if not names:
        return "`fumehood template build` makes one"

    shown = ", ".join(map(repr, names[:_SHOWN_NAMES]))
    return f"there {'is' if len(names) == 1 else 'are'} {shown}; `fumehood template build` makes others"


def fields_of(record: TemplateRecord) -> dict[str, Any]:
    """Returns a record as JSON holds it."""
    fields = {**asdict(record), "format": 1}
    fields["info"]["built_at"] = record.info.built_at.isoformat()
    return fields


def read_record(name: str, fields: dict[str, Any], layers: str) -> TemplateRecord:
    """Returns the record that `fields_of` has written, under a name.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: The data is not a record.
    """
    info = dict(fields["info"])
    info["preload"] = tuple(info["preload"])
    info["built_at"] = datetime.fromisoformat(info["built_at"])

    if info.get("start") is not None:
        info["start"] = StartCommand(**info["start"])

    record = TemplateRecord(
        info=TemplateInfo(**info),
        build=fields["build"],
        interpreter=fields["interpreter"],
        image=_read_image(fields.get("image"), layers),
    )

    if _BUILD.fullmatch(record.build) is None:
        raise ValueError(f"its build is {record.build!r}")

    return replace(record, info=replace(record.info, name=name))


def _read_image(fields: dict[str, Any] | None, layers: str) -> ImageRoot | None:
    if fields is None:
        return None

    major, minor, micro = fields["version"]
    lists = {name: tuple(fields.get(name, ())) for name in ("layers", "volumes", "links")}
    return ImageRoot(**{**fields, **lists, "store": layers, "version": (major, minor, micro)})


def _shared_lock(name: str, folder: str) -> int:
    try:
        fd = os.open(os.path.join(folder, _LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _damaged(name, str(error)) from None

    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _open_lock(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _damaged(name: str, detail: str) -> TemplateStoreError:
    return TemplateStoreError(
        template=name,
        operation="read",
        reason=f"what the store has of it is damaged: {detail}",
        hint=f"build it again with `--force`, or `fumehood template remove {name}`",
    )
