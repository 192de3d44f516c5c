"""The CPU time of whole sandboxes, charged to the keys that own them.

An execution reports its CPU time and is charged at once. Other work in a sandbox (commands, judged programs,
completions, threads and processes that an execution left behind) is charged by the sandbox's own total, less everything
that was charged before: soon after a verb that makes the guest work, before the sandbox is killed, and for every
sandbox in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cachetools import LRUCache

from fumehood.cancellation import stop
from fumehood.errors import FumehoodError, SandboxClosedError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.server.metrics import ServerMetrics
from fumehood.storage.usage import UsageLedger

_REMEMBERED = 20_000
_SOON_SECONDS = 2.0
_ROUND_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_AT_END_SECONDS = 2.0


@dataclass(slots=True)
class _Account:
    """The owner of a sandbox, its CPU time that was charged, and whether it has worked since."""

    key_id: str
    charged_seconds: float = 0.0
    has_worked: bool = False


class CpuMeter:
    """Charges the CPU time of the sandboxes that this server has made.

    Args:
        backend: The real one, which knows the totals.
        ledger: What keys have used.
        metrics: What the server counts of itself.
    """

    def __init__(self, backend: Backend, ledger: UsageLedger, metrics: ServerMetrics) -> None:
        self._backend = backend
        self._ledger = ledger
        self._metrics = metrics
        self._accounts: LRUCache[str, _Account] = LRUCache(_REMEMBERED)

    def open(self, sandbox_id: str, key_id: str) -> None:
        """Begins to charge a new sandbox to a key."""
        self._accounts[sandbox_id] = _Account(key_id)

    def note_work(self, sandbox_id: str) -> None:
        """Notes that a sandbox works, so that its total is read again soon."""
        if (account := self._accounts.get(sandbox_id)) is not None:
            account.has_worked = True

    def charge(self, key_id: str, seconds: float, sandbox_id: str | None = None) -> None:
        """Charges what an execution has used; `sandbox_id` names its sandbox if that lives on."""
        seconds = max(0.0, seconds)
        self._metrics.cpu_seconds.inc(seconds)
        self._ledger.add(key_id, cpu_seconds=seconds)

        if sandbox_id is not None and (account := self._accounts.get(sandbox_id)) is not None:
            account.charged_seconds += seconds

    async def settle(self, sandbox_id: str, answer_seconds: float = _ANSWER_SECONDS) -> None:
        """Charges the CPU time of a sandbox that was not charged yet.

        A sandbox that does not answer within `answer_seconds` is charged later, if it still lives then.
        """
        if sandbox_id not in self._accounts:
            return

        try:
            async with asyncio.timeout(answer_seconds):
                total = (await self._backend.metrics(sandbox_id)).cpu_seconds
        except (SandboxNotFoundError, SandboxClosedError):
            self._accounts.pop(sandbox_id, None)
            return
        except (FumehoodError, TimeoutError):
            return

        account = self._accounts.get(sandbox_id)

        if account is not None and total > account.charged_seconds:
            self.charge(account.key_id, total - account.charged_seconds, sandbox_id)

    async def close(self, sandbox_id: str) -> None:
        """Charges the CPU time of a sandbox before it is killed."""
        await self.settle(sandbox_id, _AT_END_SECONDS)
        self._accounts.pop(sandbox_id, None)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Reads sandboxes in turn while the block runs, and once more at its end."""
        task = asyncio.create_task(self._rounds())
        try:
            yield
        finally:
            await stop(task)

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        next_round = loop.time() + _ROUND_SECONDS

        while True:
            await asyncio.sleep(_SOON_SECONDS)
            is_whole = loop.time() >= next_round
            due = [name for name, account in self._accounts.items() if is_whole or account.has_worked]

            if is_whole:
                next_round = loop.time() + _ROUND_SECONDS

            for sandbox_id in due:
                if (account := self._accounts.get(sandbox_id)) is None:
                    continue

                account.has_worked = False
                await self.settle(sandbox_id)
