"""The removal of a stored file: first from sight, then its bytes, then what is known of it.

What fails or is given up in the middle leaves a record that says so, and the next look for expired files ends it.
"""

from __future__ import annotations

from fumehood.storage.blobs import Blobs
from fumehood.storage.files import StoredFile, StoredFiles


async def discard_file(
    stored_files: StoredFiles, blobs: Blobs, file: StoredFile, *, only_expired: bool = False
) -> bool:
    """Remove a file, and its bytes if no other file shares them; return whether it was there.

    Args:
        stored_files: Where it is known.
        blobs: Where its bytes are.
        file: The file.
        only_expired: Whether it stays when it has been kept for longer meanwhile.

    Raises:
        StorageError: Its bytes could not be removed; nobody sees it any more, and they are removed later.
    """
    if not await stored_files.end(file, only_expired=only_expired):
        return False

    if not await stored_files.uses_of(file.blob):
        await blobs.delete(file.blob)

    await stored_files.remove(file)
    return True
