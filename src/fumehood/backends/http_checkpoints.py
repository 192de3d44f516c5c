"""Checkpoints and judging in the words of a server's routes.

Runs in the process that asks one. Translation only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from fumehood.backends.checkpoint_requests import (
    CheckpointCall,
    DropCheckpoint,
    ListCheckpoints,
    RollBack,
    TakeCheckpoint,
)
from fumehood.backends.http_paths import quoted, sandbox_path
from fumehood.judging import JudgeRequest
from fumehood.models import CheckpointInfo

_MOST_CASES = 200

Ask = Callable[..., Awaitable[Any]]
Read = Callable[[type[CheckpointInfo], object], CheckpointInfo]


async def call_checkpoints(
    ask: Ask, read: Read, sandbox_id: str, call: CheckpointCall
) -> tuple[CheckpointInfo, ...]:
    """Asks a server to make, list, go back to or drop checkpoints."""
    place = sandbox_path(sandbox_id, "checkpoints")

    match call:
        case TakeCheckpoint(context_id=context_id, name=name, strict=strict):
            wish = {"context_id": context_id, "name": name, "strict": strict}
            return (read(CheckpointInfo, await ask("POST", place, json=wish)),)
        case ListCheckpoints():
            found = await ask("GET", place)
            return tuple(read(CheckpointInfo, item) for item in found["items"])
        case RollBack(checkpoint_id=checkpoint_id):
            made = await ask("POST", f"{place}/{quoted(checkpoint_id)}/rollback")
            return (read(CheckpointInfo, made),)
        case DropCheckpoint(checkpoint_id=checkpoint_id):
            await ask("DELETE", f"{place}/{quoted(checkpoint_id)}")
            return ()


def judge_bodies(request: JudgeRequest) -> Iterator[dict[str, Any]]:
    """Yields the bodies of the requests that judge all cases; a server takes so many at once."""
    for start in range(0, len(request.stdins), _MOST_CASES):
        yield {
            "code": request.code,
            "stdins": list(request.stdins[start : start + _MOST_CASES]),
            "timeout_seconds": request.wall_seconds,
            "memory_bytes": request.memory_bytes,
            "concurrency": request.concurrency,
        }
