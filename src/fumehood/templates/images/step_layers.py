"""Makes the layers of RUN, COPY, ADD and WORKDIR: each is named by a digest of all its inputs, and made once.

Runs in the host process. A step's programs run in a jail; a step whose layer is in the store already is not run again,
so a build that was interrupted goes on where it stopped, and a change in one step runs that one and the later ones.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import stat
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

from fumehood.errors import ImageError, InvalidArgumentError, TemplateStoreError
from fumehood.templates.images.context import is_archive
from fumehood.templates.images.description import image_path
from fumehood.templates.images.dockerfile import Instruction, expand, program
from fumehood.templates.images.image_template import USUAL_PATH, survey
from fumehood.templates.images.jailed import compiled_policy, jailed
from fumehood.templates.images.layers import LayerInfo, NewLayer, delete_tree, layer_key
from fumehood.templates.images.steps import ImageProgram, ProgramOutcome, StepRules, run_program
from fumehood.templates.images.workbench import BuildWorkbench, Say, StageState, StepLimits
from fumehood.text import visible_line
from fumehood_jail import users

_KEPT_LINES = 12
_LINE_CHARACTERS = 400
_LOOK_SECONDS = 10.0
_CHUNK_BYTES = 1 << 20
_MEMORY_BYTES = 2 << 30
_SHOWN_CHARACTERS = 100
_SET_ID = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The source and the target of a COPY.

    Attributes:
        sources: Paths or patterns.
        target: The destination of the files.
        image: The image that the files are copied from; None for the context.
        archive: The path of an untrusted archive that the files are copied from; None for the context.
    """

    sources: tuple[str, ...]
    target: str
    image: StageState | None = None
    archive: str | None = None


class StepLayers:
    """Makes the layers of a build's steps, each on top of the layers of its stage.

    Args:
        name: The name of the Dockerfile, for messages.
        bench: The data that the steps share.
    """

    def __init__(self, name: str, bench: BuildWorkbench) -> None:
        self._name = name
        self._bench = bench
        self._users: dict[tuple[str, str], dict[str, Any]] = {}

    def run(self, instruction: Instruction, state: StageState, place: str) -> None:
        """Runs a program.

        Raises:
            TemplateStoreError: The step failed; the error has its last lines of output.
        """
        user = self._user(state, state.config.user)
        argv = program(instruction, state.config.shell)
        envs = {"PATH": USUAL_PATH, "HOME": str(user["home"]), **state.arguments, **state.config.envs}
        cwd, ids = state.config.workdir, [user["uid"], user["gid"], *user["groups"]]
        key = layer_key("step", *state.layers, "RUN", *argv, str(sorted(envs.items())), cwd, str(ids))

        def make(made: NewLayer) -> None:
            started = ImageProgram(argv=argv, envs=envs, cwd=cwd, uid=ids[0], gid=ids[1], groups=ids[2:])
            self._run_in(made, started, state, instruction)

        self._step(key, instruction, state, place, make)

    def _run_in(
        self, made: NewLayer, started: ImageProgram, state: StageState, instruction: Instruction
    ) -> None:
        bench, lines = self._bench, _Lines(self._bench.say)
        rules = StepRules(
            ids=bench.ids,
            network=bench.network,
            seconds=bench.limits.seconds,
            is_too_large=_Watch(made.content, bench.limits.max_bytes),
            # The watch checks the total now and then; the size of one file is bounded by a resource limit.
            limits={"fsize": bench.limits.max_bytes},
            memory_bytes=bench.limits.memory_bytes,
        )
        outcome = run_program(state.folders(self._bench.store), made, started, rules, lines.hear)
        delete_tree(os.path.join(made.folder, "work"))
        words = lines.last()

        if outcome.status != 0:
            raise self._failed(instruction, _why(outcome, bench.limits), words)

    def copy(self, instruction: Instruction, state: StageState, place: str, brought: Brought) -> None:
        """Adds files.

        Raises:
            TemplateStoreError: The files cannot be placed.
            ImageError: The image that they come from has no file of that name.
        """
        owner = self._owner(state, expand(instruction.flags.get("chown", ""), state.variables))

        if brought.archive is not None:
            files = _files_of_archive(brought.archive)
        elif brought.image is not None:
            files = self._files_of_image(brought.sources, brought.image)
        else:
            files = self._files_of_context(brought.sources, instruction)

        target, several = brought.target, len(brought.sources) > 1
        order = self._order(
            files, posixpath.join(state.config.workdir, target), target.endswith("/") or several
        )
        order |= {"uid": owner[0], "gid": owner[1], "mode": _mode(instruction)}

        if brought.archive is not None:
            # Only the archive shows whether the source is a file or a folder.
            order |= {"exact": None if target.endswith("/") or several else order["folder"]}
            order |= {"sources": [posixpath.normpath(source) for source in brought.sources]}

        key = layer_key("step", *state.layers, "COPY", files.digest, str(sorted(order.items())))
        self._step(
            key,
            instruction,
            state,
            place,
            lambda made: self._place(made, order, state, files.write, instruction),
        )

    def _order(self, files: _Files, target: str, is_folder: bool) -> dict[str, Any]:
        target = image_path(target)
        exact = None if is_folder or files.is_folder or files.is_archive else target
        return {
            "folder": target,
            "exact": exact,
            "empty": False,
            "unpack": files.is_archive,
            "sources": None,
            "max_entries": self._bench.limits.max_entries,
            "max_bytes": self._bench.limits.max_bytes,
            "owners": self._bench.ids.kind == "image",
        }

    def _files_of_context(self, sources: tuple[str, ...], instruction: Instruction) -> _Files:
        context = self._bench.context
        found = context.find(sources)
        archives = [path for path, name in found if instruction.name == "ADD" and is_archive(name)]

        if archives and len(found) > 1:
            raise InvalidArgumentError(
                field="dockerfile", value=str(instruction), allowed="one archive, and nothing else, with ADD"
            )

        def write(file: IO[bytes]) -> None:
            if not archives:
                context.write(found, file)
                return

            with open(archives[0], "rb") as archive:
                shutil.copyfileobj(archive, file, _CHUNK_BYTES)

        return _Files(
            digest=context.digest(found),
            is_folder=any(not name for _, name in found) or len(found) > 1,
            is_archive=bool(archives),
            write=write,
        )

    def _files_of_image(self, sources: tuple[str, ...], other: StageState) -> _Files:
        wanted = [posixpath.join("/", source) for source in sources]
        plan = self._plan("pack", other, {"sources": wanted})

        def write(file: IO[bytes]) -> None:
            with jailed(plan, stdin=subprocess.DEVNULL) as process:
                assert process.process.stdout is not None
                shutil.copyfileobj(process.process.stdout, file, _CHUNK_BYTES)

                if process.process.wait() != 0:
                    raise ImageError(
                        image=self._name, reason=f"no {' '.join(wanted)} is in the stage or image of --from"
                    )

        return _Files(
            digest=f"{other.layers}{wanted}",
            is_folder=len(sources) > 1 or self._is_folder(other, wanted[0]),
            is_archive=False,
            write=write,
        )

    def _is_folder(self, other: StageState, path: str) -> bool:
        """Whether a path of another image names a folder, or is a pattern."""
        if any(sign in path for sign in "*?["):
            return True

        order = {"user": "0", "folders": [], "pythons": [], "is_folder": path}
        found = survey(other.folders(self._bench.store), self._bench.template, order=order)
        return bool(found.get("is_folder"))

    def change_folder(self, text: str, state: StageState, place: str) -> None:
        """Makes the working directory, if it is missing."""
        workdir = image_path(posixpath.join(state.config.workdir, text.strip()))
        state.config = replace(state.config, workdir=workdir)

        if workdir == "/":
            return

        order = {**self._order(_NO_FILES, workdir, True), "uid": 0, "gid": 0, "mode": None, "empty": True}
        key = layer_key("step", *state.layers, "WORKDIR", workdir)
        instruction = Instruction(line=0, name="WORKDIR", flags={}, text=workdir, words=None)
        self._step(
            key,
            instruction,
            state,
            place,
            lambda made: self._place(made, order, state, _NO_FILES.write, instruction),
        )

    def _place(
        self,
        made: NewLayer,
        order: dict[str, Any],
        state: StageState,
        write: Callable[[IO[bytes]], None],
        instruction: Instruction,
    ) -> None:
        plan = self._plan("place", state, order)

        with _written(made, plan, self._bench.ids), jailed(plan) as process:
            assert process.process.stdin is not None
            try:
                write(process.process.stdin)
                process.process.stdin.flush()
            except BrokenPipeError:
                pass

            answer = process.answer()

        if "entries" not in answer:
            detail = visible_line(str(answer.get("detail")), max_characters=300)
            raise self._failed(instruction, f"{answer.get('refused') or answer.get('failed')}: {detail}", ())

    def _plan(self, task: str, state: StageState, order: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "task": task,
            "ids": self._bench.ids.to_dict(),
            "layers": state.folders(self._bench.store),
            "upper": None,
            "work": None,
            "files": {},
            "seccomp": compiled_policy("image"),
            "rlimits": {
                "as": _MEMORY_BYTES,
                "core": 1,
                "fsize": self._bench.limits.max_bytes,
                "nofile": 8192,
                "nproc": 64,
            },
            "order": dict(order),
        }

    def _step(
        self,
        key: str,
        instruction: Instruction,
        state: StageState,
        place: str,
        make: Callable[[NewLayer], None],
    ) -> None:
        """Takes a layer from the store, or makes it, and puts it on top of the stage's layers."""
        bench = self._bench
        shown = visible_line(str(instruction), max_characters=_SHOWN_CHARACTERS)
        info = bench.store.info(key)

        if info is not None:
            bench.say(f"[{place}] {shown}: is here, {info.size_bytes / 1e6:.1f} MB")
        else:
            bench.say(f"[{place}] {shown}")
            started = time.monotonic()

            with bench.store.making(bench.ids.uid_map[0][1]) as made:
                _take_mode(made.content, state.folders(self._bench.store))
                make(made)
                info = _measured(made.content, shown)
                made.keep(key, info)

            bench.say(
                f"[{place}] done: {info.size_bytes / 1e6:.1f} MB in {info.entries} entries, "
                f"{time.monotonic() - started:.1f} s{f', {info.set_id} set-id bits dropped' if info.set_id else ''}"
            )

        state.layers = (*state.layers, key)

    def _user(self, state: StageState, text: str) -> dict[str, Any]:
        if text in ("", "0", "root"):
            return {"uid": 0, "gid": 0, "groups": [0], "name": "root", "home": "/root"}

        key = (state.layers[-1], text)

        if key not in self._users:
            order = {"user": text, "folders": [], "pythons": []}
            self._users[key] = survey(state.folders(self._bench.store), self._bench.template, order=order)[
                "user"
            ]

        user = self._users[key]

        if "unknown" in user:
            raise TemplateStoreError(
                template=self._bench.template,
                operation="build",
                reason=f"the image has no user or group {str(user['unknown'])[:80]!r}",
                hint="make it with RUN adduser or useradd before, or name it by its number",
            )

        return user

    def _owner(self, state: StageState, text: str) -> tuple[int, int]:
        if not text:
            return 0, 0

        user = self._user(state, text)
        # A number alone is the user and the group.
        is_number = text.isdigit()
        return int(user["uid"]), int(user["uid"] if is_number else user["gid"])

    def _failed(self, instruction: Instruction, why: str, lines: tuple[str, ...]) -> TemplateStoreError:
        words = "".join(f"\n    {line}" for line in lines)
        where = f"{self._name}:{instruction.line}: " if instruction.line else ""
        return TemplateStoreError(
            template=self._bench.template,
            operation="build",
            reason=f"{where}{visible_line(str(instruction), max_characters=200)} {why}{':' if words else ''}{words}",
            hint="the steps before it are kept: mend this one and build again",
        )


def _mode(instruction: Instruction) -> int | None:
    text = instruction.flags.get("chmod")

    if text is None:
        return None

    try:
        return int(text, 8) & 0o1777
    except ValueError:
        raise InvalidArgumentError(
            field="dockerfile", value=str(instruction), allowed="an octal mode, as in --chmod=755"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The files of a COPY.

    Attributes:
        digest: A digest of names and content.
        is_folder: Whether the files go below the destination; otherwise a file gets exactly that path.
        is_archive: Whether it is an archive that ADD unpacks.
        write: Writes the files as an archive.
    """

    digest: str
    is_folder: bool
    is_archive: bool
    write: Callable[[IO[bytes]], None]


def _files_of_archive(path: str) -> _Files:
    def write(file: IO[bytes]) -> None:
        with open(path, "rb") as archive:
            shutil.copyfileobj(archive, file, _CHUNK_BYTES)

    with open(path, "rb") as archive:
        digest = hashlib.file_digest(archive, "sha256").hexdigest()

    return _Files(digest=digest, is_folder=False, is_archive=False, write=write)


_NO_FILES = _Files(digest="", is_folder=True, is_archive=False, write=lambda _: None)


class _Lines:
    """The output of a step by lines: passes them on, and keeps the last ones."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._part = b""

    def hear(self, data: bytes) -> None:
        """Takes a piece of output."""
        *lines, self._part = (self._part + data)[-(1 << 20) :].split(b"\n")

        for line in lines:
            self._note(line)

    def last(self) -> tuple[str, ...]:
        """Returns the last lines."""
        if self._part:
            self._note(self._part)
            self._part = b""

        return tuple(self._kept)

    def _note(self, line: bytes) -> None:
        text = visible_line(line.decode("utf-8", "replace").rstrip(), max_characters=_LINE_CHARACTERS)

        if text:
            self._kept.append(text)
            self._say(f"  | {text}")


class _Watch:
    """Checks periodically how much a step has written."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._next = time.monotonic() + _LOOK_SECONDS

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False

        size = sum(info.st_blocks * 512 for _, info in _entries(self._folder))
        self._next = time.monotonic() + _LOOK_SECONDS
        return size > self._max_bytes


def _why(outcome: ProgramOutcome, limits: StepLimits) -> str:
    if outcome.is_heavy:
        return f"took more than {limits.memory_bytes / (1 << 30):.3g} GiB of memory"

    if outcome.is_late:
        return f"ran longer than {limits.seconds:g} s"

    if outcome.is_large:
        return f"wrote more than {limits.max_bytes} bytes"

    return f"ended with {outcome.status}"


@contextmanager
def _written(made: NewLayer, plan: dict[str, Any], ids: users.IdPlan) -> Iterator[None]:
    """For the block, makes a new layer the one that the plan of a jail lets its process write to."""
    work = os.path.join(made.folder, "work")
    owner = ids.uid_map[0][1]
    os.mkdir(work, 0o755)
    os.chown(work, owner, owner if ids.kind == "image" else -1)
    plan["upper"], plan["work"] = made.content, work
    try:
        yield
    finally:
        delete_tree(work)


def _take_mode(content: str, folders: list[str]) -> None:
    """Gives the root of a new layer the mode of the root below, which it covers."""
    os.chmod(content, stat.S_IMODE(os.stat(folders[-1]).st_mode))


def _measured(content: str, made_by: str) -> LayerInfo:
    """Measures a layer that no process writes to any more, and drops set-id bits."""
    size_bytes = entries = set_id = 0

    for path, info in _entries(content):
        entries += 1
        size_bytes += info.st_blocks * 512

        if stat.S_ISREG(info.st_mode) and info.st_mode & _SET_ID:
            os.chmod(path, stat.S_IMODE(info.st_mode) & ~_SET_ID, follow_symlinks=True)
            set_id += 1

    return LayerInfo(made_by=made_by, size_bytes=size_bytes, entries=entries, set_id=set_id)


def _entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(root, name)
            try:
                yield path, os.lstat(path)
            except FileNotFoundError:
                continue
