"""The current resource use of a sandbox, in the fields of E2B's metrics.

There is no history here: an answer holds the current values only.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from typing import Any

from fumehood.port.backend import Backend
from fumehood.values.sandbox import SandboxInfo

# The period over which the CPU is measured.
_SAMPLE_SECONDS = 0.1


def cpu_count(info: SandboxInfo, host_cores: float) -> int:
    """Returns the number of processors that a sandbox may use, as an integer."""
    return max(1, math.ceil(info.limits.cpu_cores or host_cores))


async def measures_data(backend: Backend, sandbox_id: str) -> dict[str, Any]:
    """Measures a sandbox for a short period."""
    info = await backend.info(sandbox_id)
    cores = cpu_count(info, (await backend.capacity()).cpu_cores)
    begun, before = time.monotonic(), await backend.metrics(sandbox_id)
    await asyncio.sleep(_SAMPLE_SECONDS)
    after = await backend.metrics(sandbox_id)
    used = (after.cpu_seconds - before.cpu_seconds) / (time.monotonic() - begun)
    now = time.time()
    return {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        "timestampUnix": int(now),
        "cpuCount": cores,
        # In percent of one processor, as at E2B.
        "cpuUsedPct": round(max(0.0, used) * 100, 2),
        "memUsed": after.memory_bytes,
        "memTotal": info.limits.memory_bytes,
        "memCache": 0,
        "diskUsed": after.disk_used_bytes,
        "diskTotal": after.disk_total_bytes or info.limits.disk_bytes,
    }
