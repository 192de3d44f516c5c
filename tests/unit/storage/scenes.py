"""What several tests of the storage do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

from fumehood.storage.database import Database, open_database


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await open_database(url)

    try:
        yield database
    finally:
        await database.close()


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs the body of `program`, an asynchronous function of `sys.argv`, on a line of input."""
    body = "\n".join(f"    {line}" for line in program.strip().splitlines())
    text = (
        "import asyncio, os, sys\n"
        "from fumehood.storage.database import open_database\n"
        f"async def main():\n{body}\n"
        "print('ready', flush=True)\nsys.stdin.readline()\nasyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def go(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Let processes run at once; how each ended, and what it said."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()

    said = ["".join(process.communicate(timeout=60)) for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]
