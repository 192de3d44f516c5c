"""Saving and loading where the sandboxes live: what needs the engine itself, beside the verbs of the port.

Runs in the host process. Archives are written and read in `fumehood.saved`; here is what that cannot do over the port.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from fumehood.backends.requests import BASH_CONTEXT_ID
from fumehood.backends.save_requests import Loaded, LoadRequest
from fumehood.record import Record

if TYPE_CHECKING:
    from fumehood.host.live_sandbox import LiveSandbox


class LocalStateVerbs:
    """`StateVerbs`, for `LocalBackend`."""

    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts; see the port."""
        # Late, as below: who never saves does not load what writes archives.
        from fumehood.host.time_travel.live_moment import LiveMoment
        from fumehood.saved.packing import pack

        # What this is to a backend is said in its own class.
        backend = cast(Any, self)

        async def begin() -> AsyncGenerator[bytes, None]:
            sandbox = await backend._supervisor.awake(sandbox_id)
            return pack(backend, sandbox_id, LiveMoment(sandbox))

        return cast("AsyncGenerator[bytes, None]", backend._items(begin))

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state; see the port."""
        from fumehood.saved.unpacking import unpack

        backend = cast(Any, self)

        async def remember(sandbox_id: str, context_id: str, record: Record) -> None:
            await backend._with(sandbox_id, lambda sandbox: _remember(sandbox, context_id, record))

        return await unpack(backend, request, archive, remember)


async def _remember(sandbox: LiveSandbox, context_id: str, record: Record) -> None:
    """Lets the record of a context begin with what ran in the one that was saved."""
    contexts = sandbox.contexts
    context = contexts.named(None, "bash") if context_id == BASH_CONTEXT_ID else contexts.named(context_id)
    # What a context of bash held is in no saved state.
    context.record.begin_with(record, is_loaded=context.info.language == "python")
