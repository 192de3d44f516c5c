"""Many sandboxes at once, under asyncio: judge a handful of snippets, each in a sandbox of its own."""

from __future__ import annotations

import asyncio

from fumehood import AsyncSandbox, Execution

SNIPPETS = {
    "sum": "sum(range(10))",
    "sorted": "sorted([3, 1, 2])",
    "broken": "undefined + 1",
    "numpy": "import numpy as np; int(np.arange(10).sum())",
}


async def judge(code: str) -> Execution:
    """Run one snippet."""
    async with AsyncSandbox() as sandbox:
        return await sandbox.run_code(code, timeout=10)


async def main() -> None:
    """Run all snippets at the same time."""
    executions = await asyncio.gather(*(judge(code) for code in SNIPPETS.values()))

    for name, execution in zip(SNIPPETS, executions, strict=True):
        print(f"{name:<8}", execution.error.name if execution.error else execution.text)


if __name__ == "__main__":
    asyncio.run(main())
