"""Files and pictures of a sandbox, brought back into a directory of this machine by a program without a loop.

Over the public `Sandbox` only; `fumehood.api.transfers` bounds the names and sizes, which a guest chose.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Literal

from fumehood.api import transfers
from fumehood.api.sandbox import Filesystem
from fumehood.api.transfers import Saved
from fumehood.portal import call
from fumehood.values.results import Result
from fumehood.values.sandbox import FileInfo

# Attribute of `Result` and suffix of the file, the best first.
_PICTURES = (("png", "png"), ("jpeg", "jpg"), ("pdf", "pdf"))


def save_files(
    files: Filesystem,
    entries: Iterable[FileInfo],
    *,
    root: str,
    into: str,
    overwrite: bool | Callable[[str], bool] = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> list[Saved]:
    """Bring files of a sandbox back, as `fumehood.api.transfers.save_files` does.

    Args:
        files: The sandbox's files.
        entries: The files; directories and links are skipped.
        root: The directory of the sandbox that corresponds to `into`.
        into: Directory of this machine; made if it does not exist.
        overwrite: Whether existing files may be replaced; or a function that decides it for a path.
        on_bytes: Called in another thread with the size of each received piece.
    """
    source = _Counted(files._async, on_bytes)
    return call(transfers.save_files, source, entries, root=root, into=into, overwrite=overwrite)


class _Counted:
    """Files of a sandbox; counts the bytes of each piece that is read."""

    def __init__(self, files: transfers.FileSource, on_bytes: Callable[[int], None]) -> None:
        self._files = files
        self._on_bytes = on_bytes

    async def read(self, path: str, *, format: Literal["stream"]) -> AsyncGenerator[bytes, None]:
        """Return the content piece by piece."""
        return self._pieces(await self._files.read(path, format=format))

    async def _pieces(self, content: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(content):
            async for piece in content:
                self._on_bytes(len(piece))
                yield piece


def list_tree(files: Filesystem, root: str) -> list[FileInfo]:
    """List the files below `root` without hidden files and files in hidden directories."""
    return call(transfers.list_tree, files._async, root)


def save_pictures(
    results: Iterable[Result],
    *,
    into: str,
    stem: str,
    may_replace: Callable[[str], bool] = lambda _: False,
) -> list[Saved]:
    """Write the picture of each result that has one; its name gets the first number that it may take.

    Args:
        results: The results.
        into: Directory of this machine; made if it does not exist.
        stem: The beginning of the names.
        may_replace: Whether an existing file may be replaced; never one of the same call.
    """
    written: set[str] = set()
    saved: list[Saved] = []

    for result in results:
        picture = picture_of(result)

        if picture is not None:
            content, ending = picture
            os.makedirs(into, exist_ok=True)
            path, is_new = _free_path(
                f"{into}/{stem}", ending, lambda path: path not in written and may_replace(path)
            )

            try:
                _write_whole(content, path)
            except BaseException:
                if is_new:
                    os.unlink(path)

                raise

            written.add(path)
            saved.append(
                Saved(
                    source=f"figure {len(saved) + 1}",
                    path=path,
                    size_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                )
            )

    return saved


def picture_of(result: Result) -> tuple[bytes, str] | None:
    """Return the bytes of a result's picture and the suffix of its file, or None if it has none."""
    for name, ending in _PICTURES:
        content: bytes | None = getattr(result, name)

        if content is not None:
            return content, ending

    return None


def _free_path(beginning: str, ending: str, may_replace: Callable[[str], bool]) -> tuple[str, bool]:
    """Returns the first path that is not in use or may be replaced, and whether it is new: taken by an empty file."""
    number = 1

    while True:
        path = os.path.normpath(f"{beginning}-{number}.{ending}")

        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            if may_replace(path):
                return path, False

            number += 1
        else:
            return path, True


def _write_whole(content: bytes, path: str) -> None:
    """Writes a file in one step: a reader, or a disk that is full, never leaves half of one."""
    old = os.lstat(path).st_mode
    temporary = os.path.join(os.path.dirname(path), f".fumehood-{secrets.token_hex(8)}")
    # Not mkstemp: the umask decides the mode, as of any new file.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    try:
        with open(descriptor, "wb") as file:
            file.write(content)

        # The mode of a link is always 0777.
        if stat.S_ISREG(old):
            os.chmod(temporary, stat.S_IMODE(old) & 0o777)

        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
