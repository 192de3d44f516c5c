"""Publishing without a store: the server of a sandbox signs addresses of the files in it.

Runs in the process of a client of that server, over the public sandbox only. Nothing is copied: an address gives the
content of the file when it is read, as an attachment, and ends with its time or with the sandbox.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fumehood.errors import FileError, InvalidArgumentError
from fumehood.portal import call
from fumehood.storage.published_files import (
    PublishedFiles,
    Version,
    find_files,
    is_new,
    left_out,
    mime_of,
    name_of,
    pictures_of,
    shown_name,
)
from fumehood.values.checks import check_integer
from fumehood.values.execution import Execution
from fumehood.values.published_file import PublishedFile
from fumehood.values.sandbox import FileInfo

if TYPE_CHECKING:
    from fumehood.api.async_sandbox import AsyncSandbox
    from fumehood.api.sandbox import Sandbox
    from fumehood.client.backend import SignFile

_WEEK_SECONDS = 7 * 86_400
_MAX_SANDBOXES = 10_000


class AsyncSignedFiles:
    """Publishes files of sandboxes at a server by addresses that this server signs; nothing is copied.

    An address gives the content of the file when it is read, ends after `expires_seconds`, and with the sandbox. To
    keep files for longer, use an `ArtifactStore`.

    Attributes:
        async_impl: The same publisher for asyncio.

    Args:
        expires_seconds: How long an address works, a week at most.
        max_files: How many files at once.
    """

    def __init__(self, *, expires_seconds: int = 3600, max_files: int = 1000) -> None:
        check_integer("expires_seconds", expires_seconds, low=1, high=_WEEK_SECONDS)
        check_integer("max_files", max_files, low=1, high=100_000)
        self._expires_seconds = expires_seconds
        self._max_files = max_files
        self._versions: OrderedDict[str, dict[str, Version]] = OrderedDict()

    async def publish(
        self, sandbox: AsyncSandbox, paths: Iterable[str] | None = None, *, execution: Execution | None = None
    ) -> PublishedFiles:
        """Sign addresses of files of a sandbox; the arguments are those of `ArtifactStore.publish`.

        Pictures that were only displayed have no file, so they are left out.

        Raises:
            InvalidArgumentError: The sandbox is not at a server.
            PathNotFoundError: A file of `paths` does not exist.
        """
        sign = _signer_of(sandbox)
        versions = self._versions_of(sandbox.id)
        found = await find_files(sandbox, paths)
        wanted = found if paths is not None else [entry for entry in found if is_new(entry, versions)]
        done = [_only_shown(number, *picture) for number, picture in enumerate(pictures_of(execution), 1)]

        for number, entry in enumerate(wanted):
            if number >= self._max_files:
                done.append(
                    left_out(entry, f"{self._max_files} files are the most", len(wanted) - number - 1)
                )
                break

            done.append(await self._sign(sign, sandbox.id, entry))
            versions[entry.path] = (entry.modified_at, entry.size_bytes)

        return done

    async def _sign(self, sign: SignFile, sandbox_id: str, entry: FileInfo) -> PublishedFile:
        if entry.type != "file":
            return left_out(entry, "it is no file")

        try:
            url, expires_at = await sign(sandbox_id, entry.path, self._expires_seconds)
        except (FileError, InvalidArgumentError) as error:
            # The latter for a name that is no text, which cannot be requested.
            return left_out(entry, error.message)

        return PublishedFile(
            name=shown_name(name_of(entry)),
            mime=mime_of(entry.name),
            size_bytes=entry.size_bytes,
            url=url,
            expires_at=expires_at,
            path=entry.path,
        )

    def _versions_of(self, sandbox_id: str) -> dict[str, Version]:
        versions = self._versions.setdefault(sandbox_id, {})
        self._versions.move_to_end(sandbox_id)

        while len(self._versions) > _MAX_SANDBOXES:
            self._versions.popitem(last=False)

        return versions


class SignedFiles:
    """Publishes files of sandboxes at a server by addresses that this server signs; nothing is copied.

    An address gives the content of the file when it is read, ends after `expires_seconds`, and with the sandbox. To
    keep files for longer, use an `ArtifactStore`.

    Attributes:
        async_impl: The same publisher for asyncio.

    Args:
        expires_seconds: How long an address works, a week at most.
        max_files: How many files at once.
    """

    def __init__(self, *, expires_seconds: int = 3600, max_files: int = 1000) -> None:
        self.async_impl = AsyncSignedFiles(expires_seconds=expires_seconds, max_files=max_files)

    def publish(
        self, sandbox: Sandbox, paths: Iterable[str] | None = None, *, execution: Execution | None = None
    ) -> PublishedFiles:
        """Sign addresses of files of a sandbox; the arguments are those of `ArtifactStore.publish`.

        Pictures that were only displayed have no file, so they are left out.

        Raises:
            InvalidArgumentError: The sandbox is not at a server.
            PathNotFoundError: A file of `paths` does not exist.
        """
        return call(self.async_impl.publish, sandbox._async, paths, execution=execution)


def _signer_of(sandbox: AsyncSandbox) -> SignFile:
    try:
        # Imported late: its packages are there only where sandboxes can be at a server.
        from fumehood.client.backend import signer_of

        sign = signer_of(sandbox._sandbox_handle.backend)
    except ModuleNotFoundError:
        sign = None

    if sign is None:
        raise InvalidArgumentError(
            field="sandbox", value=sandbox.id, allowed="a sandbox at a server: Sandbox(url=...)"
        )

    return sign


def _only_shown(number: int, content: bytes, mime: str) -> PublishedFile:
    ending = "jpg" if mime == "image/jpeg" else mime.partition("/")[2]
    return PublishedFile(
        name=f"figure-{number}.{ending}",
        mime=mime,
        size_bytes=len(content),
        skipped="it was only shown: what is saved in /mnt/data is published",
    )
