"""A call of run_code over the Model Context Protocol, against the same tool on an ipykernel.

Both servers are processes that the official client has started and speaks to on their standard input and output;
blocks of calls are taken in turn.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

from mcp import Client, StdioServerParameters

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import Samples, percentile

_CODE = "y = 1"
_BLOCK = 20
_WARM_UP = 5
_OURS = ["-m", "fumehood", "mcp"]
_REFERENCE = ["-m", "fumehood_bench.mcp_reference"]


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of one call."""
    samples = asyncio.run(_take(plan.repetitions(1000)))
    yield Figure(
        name="MCP: run_code `y = 1` over stdio, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=len(samples["ours"]),
        target=0.5,
        reference=percentile(samples["reference"], 50),
        reference_name="the same tool on ipykernel, through jupyter_client",
    )


async def _take(repetitions: int) -> Samples:
    samples: Samples = {"ours": [], "reference": []}

    async with Client(_server(_OURS)) as ours, Client(_server(_REFERENCE)) as reference:
        made = await ours.call_tool("create_sandbox", {})
        in_it = {"sandbox_id": made.structured_content["sandbox_id"]}

        for _ in range(_WARM_UP):
            await _call(ours, in_it)
            await _call(reference, {})

        for _ in range(0, repetitions, _BLOCK):
            samples["ours"] += [await _call(ours, in_it) for _ in range(_BLOCK)]
            samples["reference"] += [await _call(reference, {}) for _ in range(_BLOCK)]

    return samples


async def _call(client: Client, where: dict[str, Any]) -> float:
    """How long one call takes, in milliseconds."""
    start = time.perf_counter()
    result = await client.call_tool("run_code", {"code": _CODE, **where})
    elapsed = (time.perf_counter() - start) * 1e3

    if result.is_error:
        raise RuntimeError(f"a call failed: {result.content}")

    return elapsed


def _server(arguments: list[str]) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=arguments)
