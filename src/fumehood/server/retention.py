"""Housekeeping: removes expired data of the server at regular intervals.

Runs in the server process, as one task on its loop. A removal that fails is logged and tried again in the next round;
nothing waits for it. Idempotent replies are removed by their own store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fumehood.cancellation import stop
from fumehood.errors import FumehoodError
from fumehood.log import events
from fumehood.storage.blobs import Blobs
from fumehood.storage.files import StoredFiles, discard_file
from fumehood.storage.usage import UsageLedger

_ROUND_SECONDS = 600.0
_USAGE_KEPT_SECONDS = 400 * 24 * 3600.0


@asynccontextmanager
async def housekeeping(
    stored_files: StoredFiles, blobs: Blobs, ledger: UsageLedger
) -> AsyncGenerator[None, None]:
    """Removes expired files with their bytes, and old usage, while the block runs."""
    task = asyncio.create_task(_rounds(stored_files, blobs, ledger))
    try:
        yield
    finally:
        await stop(task)


async def remove_expired_files(stored_files: StoredFiles, blobs: Blobs) -> int:
    """Removes the files whose time is over, and the bytes that no other file shares; returns how many."""
    count = failed = 0

    # Files that cannot be removed would come again and again; they wait for the next round.
    while not failed and (expired := await stored_files.expired()):
        for file in expired:
            try:
                count += await discard_file(stored_files, blobs, file, only_expired=True)
            except FumehoodError as error:
                failed += 1
                events.FILE_NOT_REMOVED.log(reason=error.log_reason)

    return count


async def _rounds(stored_files: StoredFiles, blobs: Blobs, ledger: UsageLedger) -> None:
    while True:
        try:
            if count := await remove_expired_files(stored_files, blobs):
                events.FILES_REMOVED.log(count=count)

            await ledger.prune(before=time.time() - _USAGE_KEPT_SECONDS)
        except FumehoodError as error:
            events.HOUSEKEEPING_FAILED.log(reason=error.log_reason)

        await asyncio.sleep(_ROUND_SECONDS)
