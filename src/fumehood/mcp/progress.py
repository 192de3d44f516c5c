"""Progress of a long call: its time and its latest output, for clients that ask for it.

The last few hundred characters of running code's output are kept and sent at a bounded rate, so that code that prints
without end costs the client no more than code that prints a line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from fumehood.cancellation import cancel_and_wait
from fumehood.llm.readable_text import readable
from fumehood.mcp.caller import CallContext

_TICK_SECONDS = 1.0
_APART_SECONDS = 0.1
_MESSAGE_CHARS = 500
# Escape sequences and overwritten text make output shorter, so a little more is kept than is sent.
_KEPT_CHARS = 4 * _MESSAGE_CHARS

Note = Callable[[str], None]


@asynccontextmanager
async def reporting(context: CallContext, total_seconds: float | None) -> AsyncGenerator[Note | None, None]:
    """Report progress while the block runs.

    Args:
        context: The context of the MCP call.
        total_seconds: The time limit of the call.

    Yields:
        A function to call with each piece of output; None when the client did not ask for progress.
    """
    if not _is_wanted(context):
        yield None
        return

    teller = _Teller(context, total_seconds)
    task = asyncio.create_task(teller.tell())
    try:
        yield teller.note
    finally:
        await cancel_and_wait(task)


class _Teller:
    def __init__(self, context: CallContext, total_seconds: float | None) -> None:
        self._context = context
        self._total_seconds = total_seconds
        self._begun = time.monotonic()
        self._text = ""
        self._news = asyncio.Event()

    def note(self, text: str) -> None:
        self._text = (self._text + text)[-_KEPT_CHARS:]
        self._news.set()

    async def tell(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._news.wait()

            self._news.clear()
            elapsed = time.monotonic() - self._begun
            await self._context.report_progress(
                round(elapsed, 3), self._total_seconds, self._message(elapsed)
            )
            await asyncio.sleep(_APART_SECONDS)

    def _message(self, elapsed: float) -> str:
        said = readable(self._text).strip()
        self._text = ""
        return said[-_MESSAGE_CHARS:] or f"running for {elapsed:.0f} s"


def _is_wanted(context: CallContext) -> bool:
    meta = context.request_context.meta
    return meta is not None and meta.get("progress_token") is not None
