"""Parses the answers of a guest that is saved: its variables, the list of its files, the lengths of its pickles.

Any field may be false; the worst effect is that the guest's own saved state is wrong. Bytes become values within
bounds; pickled variables are split by their lengths and hashed, never parsed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.bounds import MIB
from fumehood.errors import FileError, InvalidArgumentError
from fumehood.saved.manifest import is_writable_place
from fumehood.saved.records import MAX_VALUES
from fumehood.values.checks import check_path
from fumehood.values.codec import DataError, read_value
from fumehood.values.execution import Execution
from fumehood.values.json_values import parse
from fumehood.values.requests import ExecuteRequest, ReadFile
from fumehood.values.sandbox import SandboxInfo
from fumehood.values.saved_state import SavedFile, SavedFileType, SavedImport, SavedPart, SavedVariable

if TYPE_CHECKING:
    from fumehood.port.backend import Backend

_T = TypeVar("_T")
_MAX_ANSWER_BYTES = 64 * MIB
_STEP_SECONDS = 300.0
_WITHOUT_PLACES = "landlock-only"
# The hint for the reason of `cannot_last`.
NEEDS_PLACES = "make the sandbox without isolation='landlock-only', where `fumehood doctor` finds namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVariable:
    """A variable that was pickled."""

    name: str
    type: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unkept:
    """An item that was not saved, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundState:
    """The variables that a context holds."""

    python: str
    cwd: str
    execution_count: int
    pickled_by: str
    environment: dict[str, str] = field(default_factory=dict)
    variables: tuple[FoundVariable, ...] = ()
    imports: tuple[SavedImport, ...] = ()
    left_out: tuple[Unkept, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file, directory or link."""

    path: str
    type: SavedFileType
    mode: int
    modified_ns: int
    size_bytes: int
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """The files in the writable places."""

    files: tuple[FoundFile, ...] = ()
    left_out: tuple[Unkept, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """An item that could not be restored."""

    missing: tuple[Unkept, ...] = ()


class GuestStepError(Exception):
    """A step failed in the guest; the message holds its answer."""


async def take_step(
    run: Callable[[ExecuteRequest], Awaitable[Execution]], context_id: str, step: str, *arguments: object
) -> None:
    """Runs one function of `fumehood_guest.export.state_export` in a context.

    Raises:
        GuestStepError: The step failed.
    """
    # The names of the user's namespace are left alone: nothing is assigned, and nothing is shown.
    code = f"__import__('fumehood_guest.export.state_export', fromlist=('',)).{step}{(*arguments,)!r}"
    request = ExecuteRequest(code=code, context_id=context_id, silent=True, wall_seconds=_STEP_SECONDS)
    error = (await run(request)).error

    if error is not None:
        raise GuestStepError(f"the context {context_id!r} says {error.name}: {error.value[:300]}")


async def read_answer(backend: Backend, sandbox_id: str, path: str, kind: type[_T]) -> _T:
    """Reads the file that a step has written.

    Raises:
        GuestStepError: The file is missing, too large, or has the wrong form.
    """
    content = bytearray()
    try:
        async with aclosing(backend.read(sandbox_id, ReadFile(path=path))) as pieces:
            async for piece in pieces:
                content += piece

                if len(content) > _MAX_ANSWER_BYTES:
                    raise GuestStepError(
                        f"its description has more than {_MAX_ANSWER_BYTES:,} bytes of itself"
                    )

        return await asyncio.to_thread(lambda: read_value(kind, parse(bytes(content), MAX_VALUES)))
    except (ValueError, DataError, RecursionError) as error:
        raise GuestStepError(f"its description is invalid: {error}") from None
    except FileError as error:
        raise GuestStepError(error.message) from None


def cannot_last(info: SandboxInfo) -> str:
    """Returns the reason why a sandbox cannot be saved or loaded; empty if it can."""
    if info.isolation.level != _WITHOUT_PLACES:
        return ""

    # Its processes see the paths of the host, and those of a saved state are a sandbox's.
    return f"at the isolation level {_WITHOUT_PLACES} a sandbox has no places of its own"


def as_text(said: str, max_characters: int) -> str:
    """Returns bytes of a guest as bounded text; bytes that are not UTF-8 are escaped."""
    return said[:max_characters].encode("utf-8", "backslashreplace").decode()[:max_characters]


async def as_pieces(value: Any) -> AsyncGenerator[bytes, None]:
    """Yields a value as JSON, for a file."""
    yield (await asyncio.to_thread(json.dumps, value)).encode("ascii")


def found_of(entry: Mapping[str, Any], names: dict[int, str]) -> FoundFile | None:
    """Returns init's description of a file in the form of a context's; None for special files.

    Args:
        entry: The description by init, which has passed its message table.
        names: The first name of each file that has several, by its number; grows.
    """
    mode, path = entry["mode"], entry["path"]
    kind: SavedFileType = "file"
    target = ""

    if stat.S_ISDIR(mode):
        kind = "dir"
    elif stat.S_ISLNK(mode):
        kind, target = "symlink", entry["target"]
    elif not stat.S_ISREG(mode):
        return None
    elif entry["links"] > 1 and names.setdefault(entry["inode"], path) != path:
        kind, target = "hardlink", names[entry["inode"]]

    return FoundFile(
        path=path,
        type=kind,
        mode=stat.S_IMODE(mode),
        modified_ns=entry["modified_ns"],
        size_bytes=entry["size_bytes"],
        target=target,
    )


def why_not(file: FoundFile) -> str:
    """Returns the reason why a file cannot be saved under its path; empty if it can."""
    try:
        check_path("path", file.path)

        if file.type in ("symlink", "hardlink"):
            check_path("target", file.target)
    except InvalidArgumentError:
        return "its name, or where it leads, is no text"

    if file.path != posixpath.normpath(file.path) or not is_writable_place(file.path):
        return "it does not lie in a writable place"

    return ""


def entry_of(file: FoundFile, content: SavedPart | None) -> SavedFile:
    """Returns the entry of a file in the manifest."""
    return SavedFile(
        path=file.path,
        type=file.type,
        mode=file.mode & 0o7777,
        modified_ns=max(-(2**62), min(file.modified_ns, 2**62)),
        content=content,
        target=file.target if content is None else "",
    )


class Segments:
    """Computes the digests of variables that follow one another in one stream."""

    def __init__(self, found: Sequence[FoundVariable]) -> None:
        self.variables: list[SavedVariable] = []
        self.left_bytes = 0
        self._waiting: Iterator[FoundVariable] = iter(found)
        self._current: FoundVariable | None = None
        self._digest = hashlib.sha256()
        self._next()

    def update(self, data: bytes) -> None:
        """Takes the next bytes."""
        view = memoryview(data)

        while view and self._current is not None:
            taken = view[: self.left_bytes]
            self._digest.update(taken)
            self.left_bytes -= len(taken)
            view = view[len(taken) :]

            if not self.left_bytes:
                self._end()

    def _end(self) -> None:
        found = self._current
        assert found is not None
        digest = self._digest.hexdigest()
        self.variables.append(
            SavedVariable(name=found.name, type=found.type[:200], size_bytes=found.size_bytes, sha256=digest)
        )
        self._next()

    def _next(self) -> None:
        self._current = next(self._waiting, None)
        self._digest = hashlib.sha256()
        self.left_bytes = 0 if self._current is None else self._current.size_bytes

        if self._current is not None and self.left_bytes <= 0:
            raise GuestStepError("it describes a variable of no bytes")
