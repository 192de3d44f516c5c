"""The options of all sandboxes of one host, from the command line.

Files of this machine are copied into a sandbox when it starts; nothing that happens in it changes them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fumehood import AsyncSandbox, InvalidArgumentError, Limits, PathPermissionError
from fumehood.api.silent_runs import arun_silently
from fumehood.bounds import MIB
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.sandbox import IsolationLevel

_MAX_FILES = 2_000
_MAX_BYTES = 512 * MIB
# Code that changes a file in place gets an error, and not a copy that differs from the original unnoticed. It is no
# command, which would stand among those of the user, and leaves no name.
_PROTECT = "[__import__('os').chmod(path, 0o444) for path in {!r}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The default options of sandboxes, which a call may override.

    Attributes:
        template: Their template.
        limits: Their limits that differ from the default, by name.
        envs: Their environment.
        strict: Whether a missing layer of isolation is an error.
        isolation: The weakest isolation that is accepted; None: the default.
        run_seconds: How long one call of run_code may take.
        folder: A folder of this machine that is copied to /mnt/data; empty: none.
        files: Files of this machine, each with its path inside.
        output: A folder of this machine for files that the sandboxes make; empty: none.
    """

    template: str = "default"
    limits: Mapping[str, float] = field(default_factory=dict)
    envs: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    isolation: IsolationLevel | None = None
    run_seconds: float = Limits().wall_seconds
    folder: str = ""
    files: Sequence[tuple[str, str]] = ()
    output: str = ""

    async def fill(self, sandbox: AsyncSandbox) -> None:
        """Copy the folder and the files into a new sandbox.

        Raises:
            InvalidArgumentError: The folder has become too large.
            FumehoodError: A file cannot be written inside.
        """
        if self.folder:
            found = files_of(self.folder)

            for path, inside in found:
                with open(path, "rb") as content:
                    await sandbox.files.write(inside, content)

            done = await arun_silently(sandbox, _PROTECT.format([inside for _, inside in found]))

            if done.error is not None:
                raise PathPermissionError(path=DATA_PATH, operation="chmod", errno_value=errno.EPERM)

        for path, inside in self.files:
            with open(path, "rb") as content:
                await sandbox.files.write(inside, content)


def files_of(folder: str) -> list[tuple[str, str]]:
    """Return the files of a folder that are not hidden, each with its path inside; links are not followed.

    Raises:
        InvalidArgumentError: The path is not a folder, or the folder holds too much.
    """
    if not os.path.isdir(folder):
        raise InvalidArgumentError(field="--folder", value=folder, allowed="a folder of this machine")

    found: list[tuple[str, str]] = []
    size_bytes = 0

    for path in _plain_files(folder):
        size_bytes += os.path.getsize(path)
        found.append((path, f"{DATA_PATH}/{os.path.relpath(path, folder)}"))

        if len(found) > _MAX_FILES or size_bytes > _MAX_BYTES:
            raise InvalidArgumentError(
                field="--folder",
                value=folder,
                allowed=f"a folder of at most {_MAX_FILES:,} files and {_MAX_BYTES // MIB} MiB: it is copied into each "
                "sandbox; name single files with --file",
            )

    return found


def _plain_files(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))

        for name in sorted(names):
            path = os.path.join(parent, name)

            if not name.startswith(".") and os.path.isfile(path) and not os.path.islink(path):
                yield path
