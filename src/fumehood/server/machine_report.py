"""What the machine of the server offers to sandboxes: the rows of `fumehood doctor`, for the server's owner.

Runs in the server process, which starts the command: it tries kernel features by forking, and starts a first sandbox,
which is not safe in a process with threads and with sandboxes of callers. One command runs at a time, and its answer is
reused for a minute.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from fumehood.cancellation import wait_shared
from fumehood.errors import HostUnavailableError

_KEPT_SECONDS = 60.0
_LONGEST_SECONDS = 120.0
_MAX_BYTES = 1 << 20
# Of the command line, not of a server.
_NOT_OURS = "warm runs"


class MachineReport:
    """The last report, and the one in progress."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._at = -_KEPT_SECONDS
        self._making: asyncio.Task[None] | None = None

    async def rows(self) -> list[dict[str, Any]]:
        """Returns the rows, at most a minute old.

        Raises:
            HostUnavailableError: The command did not answer.
        """
        if time.monotonic() - self._at >= _KEPT_SECONDS:
            if self._making is None or self._making.done():
                self._making = asyncio.create_task(self._make())

            await wait_shared(self._making)

        return self._rows

    async def _make(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Without the folder that the server was started in: what lies there is not the server's.
            "-P",
            "-m",
            "fumehood",
            "doctor",
            "--json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_MAX_BYTES,
        )
        try:
            assert process.stdout is not None
            found = json.loads(await asyncio.wait_for(_read(process.stdout), _LONGEST_SECONDS))
            self._rows = [row for row in found if row["name"] != _NOT_OURS]
            self._at = time.monotonic()
        except (TimeoutError, ValueError, TypeError, KeyError):
            raise HostUnavailableError(
                host="this machine", reason="`fumehood doctor` gave no answer", outcome_unknown=False
            ) from None
        finally:
            if process.returncode is None:
                process.kill()

            await process.wait()


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Returns all output of the command; raises ValueError if it is more than `_MAX_BYTES`."""
    text = b""

    while piece := await stream.read(_MAX_BYTES):
        text += piece

        if len(text) > _MAX_BYTES:
            raise ValueError("the report is too long")

    return text
