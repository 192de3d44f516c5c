"""The removal of a stored file: hides its record, deletes its bytes, deletes its record.

An error or cancellation in between leaves a record marked as ended, and the next round for expired files finishes it.
"""

from __future__ import annotations

from fumehood.storage.blobs import Blobs
from fumehood.storage.files import StoredFile, StoredFiles


async def discard_file(
    stored_files: StoredFiles, blobs: Blobs, file: StoredFile, *, only_expired: bool = False
) -> bool:
    """Remove a file, and its bytes if no other file shares them; return whether it was there.

    Args:
        stored_files: The records.
        blobs: The bytes.
        file: The file.
        only_expired: Whether it stays when its time was extended meanwhile.

    Raises:
        StorageError: Its bytes could not be removed; the file is hidden, and they are removed later.
    """
    if not await stored_files.end(file, only_expired=only_expired):
        return False

    if not await stored_files.uses_of(file.blob):
        await blobs.delete(file.blob)

    await stored_files.remove(file)
    return True
