"""Files and pictures of a sandbox, brought back into a directory of this machine by a program without a loop.

Over the public `Sandbox` only; how names and sizes that a guest chose are bounded stands in `fumehood.api.transfers`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

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
    max_bytes: int = transfers.MAX_DOWNLOAD_BYTES,
) -> list[Saved]:
    """Bring files of a sandbox back, as `fumehood.api.transfers.save_files` does."""
    return call(
        transfers.save_files,
        files._async,
        entries,
        root=root,
        into=into,
        overwrite=overwrite,
        max_bytes=max_bytes,
    )


def list_tree(files: Filesystem, root: str) -> list[FileInfo]:
    """List the files below `root` without hidden ones and those in hidden directories."""
    return call(transfers.list_tree, files._async, root)


def save_pictures(results: Iterable[Result], *, into: str, stem: str) -> list[Saved]:
    """Write the picture of each result that has one; its name gets an unused number."""
    saved: list[Saved] = []

    for result in results:
        picture = picture_of(result)

        if picture is not None:
            content, ending = picture
            os.makedirs(into, exist_ok=True)
            path = _write_numbered(content, into=into, stem=stem, ending=ending)
            saved.append(Saved(source=f"figure {len(saved) + 1}", path=path, size_bytes=len(content)))

    return saved


def picture_of(result: Result) -> tuple[bytes, str] | None:
    """Return the bytes of a result's picture and the suffix of its file, or None if it has none."""
    for name, ending in _PICTURES:
        content: bytes | None = getattr(result, name)

        if content is not None:
            return content, ending

    return None


def _write_numbered(content: bytes, *, into: str, stem: str, ending: str) -> str:
    number = 1

    while True:
        path = os.path.join(into, f"{stem}-{number}.{ending}")

        try:
            with open(path, "xb") as file:
                file.write(content)
        except FileExistsError:
            number += 1
        else:
            return path
