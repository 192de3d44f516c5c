"""The snapshots of one sandbox's files, as the host asks init for them.

Runs in the host process, on the engine's loop. It asks, and turns what init refuses into an error of the tree; what a
snapshot holds, and for whom, is the business of who has it taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fumehood.checkpoint_errors import CheckpointError
from fumehood.host.init_client import InitError


class LiveSnapshots:
    """The snapshots of one sandbox, by the numbers that init gives them.

    Args:
        ask: Asks init.
    """

    def __init__(self, ask: Callable[..., Awaitable[tuple[Any, bytes]]]) -> None:
        self._ask_init = ask

    async def take(self, held: Sequence[int]) -> dict[str, Any]:
        """Keeps the files; processes with these numbers inside wait for the host and need not be stopped."""
        return await self._ask("take_snapshot", held=list(held))

    async def put_back(self, snapshot: int, held: Sequence[int]) -> None:
        """Puts the files back."""
        await self._ask("restore_snapshot", snapshot=snapshot, held=list(held))

    async def compare(self, snapshot: int) -> dict[str, Any]:
        """Tells what became of the files since."""
        return await self._ask("compare_snapshot", snapshot=snapshot)

    async def drop(self, snapshot: int) -> None:
        """Gives it up."""
        await self._ask("drop_snapshot", snapshot=snapshot)

    async def _ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        try:
            value, _ = await self._ask_init(verb, **arguments)
        except InitError as error:
            raise CheckpointError.from_errno(error.errno_value, error.message) from None

        return dict(value or {})
