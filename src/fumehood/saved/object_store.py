"""One object in a bucket, named by its whole address, which the user chooses.

Runs in the host process; obstore's own threads do the work. Other blobs have names of ours (`blobs`); this one has the
name that its owner gave.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from fumehood.errors import BlobNotFoundError, InvalidArgumentError, StorageError
from fumehood.log import events

_CLIENT: Any = {"timeout": "300s", "connect_timeout": "10s", "allow_http": True}
_READ_BYTES = 1 << 20


class SingleObject:
    """An object in S3, Azure or Google storage; the store's own environment variables open it.

    Args:
        address: The address of the object, such as s3://BUCKET/NAME.
    """

    def __init__(self, address: str) -> None:
        scheme, _, rest = address.partition("://")
        bucket, _, self._name = rest.partition("/")

        if not bucket or not self._name or self._name.endswith("/"):
            raise InvalidArgumentError(
                field="place", value=address, allowed="an address with a bucket and a name"
            )

        try:
            self._store: Any = from_url(f"{scheme}://{quote(bucket)}", client_options=_CLIENT)
        except (OSError, ValueError, BaseError) as error:
            raise _failure(f"{scheme}://{bucket}", "opening a bucket", error) from error

    async def put(self, path: str) -> None:
        """Stores a file of this machine; it appears completely or not at all."""
        try:
            await obstore.put_async(self._store, self._name, Path(path))
        except (OSError, BaseError) as error:
            raise _failure(self._name, "storing a saved state", error) from error

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yields the object."""
        try:
            result = await obstore.get_async(self._store, self._name)

            async for piece in result.stream(min_chunk_size=_READ_BYTES):
                yield bytes(piece)
        except FileNotFoundError:
            raise BlobNotFoundError(name=self._name) from None
        except (OSError, BaseError) as error:
            raise _failure(self._name, "reading a saved state", error) from error


def _failure(location: str, operation: str, error: Exception) -> StorageError:
    """Logs the bucket's message, and returns an error without it."""
    reason = _said(error)
    events.STORAGE_FAILED.log(location=location, operation=operation, reason=reason)
    return StorageError(operation=operation, reason=reason)


def _said(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
