"""CPU fairness: long computations yield to short requests of other tenants while processors are contended.

The kernel shares a contended processor equally and in turns of some milliseconds, so a request that needs half a
millisecond may wait for a whole turn at each of its four switches between caller and guest. While another tenant
makes short requests, a sandbox that computes for long has half of its weight; at all other times it has its full
weight, which is that of any other process or control group.

Nothing here polls: usage is read when a request arrives, at most every 100 ms. A timer to restore the weight exists
only while a weight is halved.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

# The shortest time between two readings, for few and for many sandboxes: a reading of one takes about 10 us.
_SHORTEST_INTERVAL_SECONDS = 0.1
_INTERVAL_SECONDS_PER_SANDBOX = 0.001
# How long a weight stays halved after the last short request of another tenant, and after the last long computation.
_HOLD_SECONDS = 2.0
_RESTORE_INTERVAL_SECONDS = 0.25
# A sandbox computes for long if it keeps this much of a processor busy, and needs this much CPU time for each request.
_LONG_CORES = 0.25
_LONG_SECONDS_PER_REQUEST = 0.02
# Processors are contended if tasks have waited for one for this part of the time.
_CONTENDED_PART = 0.05
_PRESSURE = "/proc/pressure/cpu"
_MAX_FILE_BYTES = 4096


class WeightedGuest(Protocol):
    """The guest of a sandbox whose weight can be halved."""

    def used_cpu_seconds(self) -> float | None:
        """Return the CPU time used so far; None if the CPU time is not counted."""

    def halve_cpu_weight(self, halved: bool) -> None:
        """Halve the CPU weight of the guest, or restore it."""


class WeighedSandbox(Protocol):
    """A living sandbox."""

    @property
    def tenant(self) -> str:
        """The owner for which the sandbox runs, or the sandbox's own id if it has no owner."""

    @property
    def weighted_guest(self) -> WeightedGuest:
        """The guest of the sandbox."""


@dataclass(slots=True)
class _Record:
    """The record of one sandbox: the last reading, requests since then, and when it last computed for long."""

    requests: int = 0
    read_at: float = 0.0
    cpu_seconds: float | None = None
    long_at: float | None = None
    is_halved: bool = False


class CpuFairness:
    """Halves and restores the CPU weights of the sandboxes of one host.

    Args:
        sandboxes: The living sandboxes by id; this class only reads them.
    """

    def __init__(self, sandboxes: Mapping[str, WeighedSandbox]) -> None:
        self._sandboxes = sandboxes
        self._records: dict[WeighedSandbox, _Record] = {}
        # When each tenant made its last short request.
        self._short_at: dict[str, float] = {}
        self._next_reading_at = 0.0
        self._pressure: tuple[float, float | None] = (0.0, None)
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def note_request(self, sandbox: WeighedSandbox) -> None:
        """Count a request to a sandbox; usage is read soon after, if the last reading is old enough."""
        if len(self._sandboxes) < 2:
            return

        self._record(sandbox).requests += 1
        loop = asyncio.get_running_loop()

        # After the request has been sent: reading is done while the guest works.
        if not self._is_scheduled and loop.time() >= self._next_reading_at:
            self._is_scheduled = True
            loop.call_soon(self._read)

    def forget(self, sandbox: WeighedSandbox) -> None:
        """Drop the record of a sandbox that has ended."""
        self._records.pop(sandbox, None)

    def close(self) -> None:
        """Stop restoring weights."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        self._is_scheduled = False
        now = asyncio.get_running_loop().time()
        self._next_reading_at = now + max(
            _SHORTEST_INTERVAL_SECONDS, _INTERVAL_SECONDS_PER_SANDBOX * len(self._sandboxes)
        )
        is_contended = self._is_contended(now)

        for sandbox in self._sandboxes.values():
            # A guest may be about to end, and its control group with it.
            with suppress(OSError):
                self._judge(self._record(sandbox), sandbox, now)

        self._short_at = {tenant: at for tenant, at in self._short_at.items() if now - at < _HOLD_SECONDS}
        self._adjust(now, may_halve=is_contended)

    def _record(self, sandbox: WeighedSandbox) -> _Record:
        record = self._records.get(sandbox)

        if record is None:
            record = self._records[sandbox] = _Record()

        return record

    def _judge(self, record: _Record, sandbox: WeighedSandbox, now: float) -> None:
        """Take a reading of one sandbox, and compare it with the last one: are its requests short or long?"""
        used = sandbox.weighted_guest.used_cpu_seconds()
        before, since = record.cpu_seconds, record.read_at
        requests, record.requests = record.requests, 0
        record.cpu_seconds, record.read_at = used, now

        if used is None:
            return

        spent = 0.0 if before is None else used - before
        is_busy = before is not None and spent >= _LONG_CORES * (now - since)

        if is_busy and spent >= _LONG_SECONDS_PER_REQUEST * max(1, requests):
            record.long_at = now
        elif requests:
            self._short_at[sandbox.tenant] = now

    def _adjust(self, now: float, *, may_halve: bool) -> None:
        """Halve and restore weights; repeat with a timer as long as one is halved."""
        for sandbox, record in self._records.items():
            halved = self._is_to_be_halved(record, sandbox, now)

            if halved != record.is_halved and (may_halve or not halved):
                with suppress(OSError):
                    sandbox.weighted_guest.halve_cpu_weight(halved)
                    record.is_halved = halved

        if self._timer is None and any(record.is_halved for record in self._records.values()):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_RESTORE_INTERVAL_SECONDS, self._on_timer)

    def _is_to_be_halved(self, record: _Record, sandbox: WeighedSandbox, now: float) -> bool:
        if record.long_at is None or now - record.long_at >= _HOLD_SECONDS:
            return False

        tenant = sandbox.tenant
        return any(other != tenant and now - at < _HOLD_SECONDS for other, at in self._short_at.items())

    def _on_timer(self) -> None:
        self._timer = None
        self._adjust(asyncio.get_running_loop().time(), may_halve=False)

    def _is_contended(self, now: float) -> bool:
        (then, before), self._pressure = self._pressure, (now, _waited_seconds())
        waited = self._pressure[1]
        # Without the kernel's figure they count as contended.
        return waited is None or before is None or waited - before >= _CONTENDED_PART * (now - then)


def _waited_seconds() -> float | None:
    """Return how long tasks have waited for a processor since boot; None where the kernel does not count it."""
    try:
        fd = os.open(_PRESSURE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

    try:
        some = os.read(fd, _MAX_FILE_BYTES).partition(b"\n")[0]
        return int(some.partition(b"total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
