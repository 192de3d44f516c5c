"""The backend of a key that may look at sandboxes and do nothing with them: the scope `watch`.

Runs in the server process, in front of the tenant's backend, which decides whose sandboxes the key sees. A verb passes
only if it is named here: none of these resumes a sandbox, extends its lifetime or counts as its use. Stateless runs,
which touch no sandbox that the key sees, pass with the scope `execute` alone. A verb of the port that is new is
refused.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fumehood.errors import ForbiddenError
from fumehood.port.backend import Backend
from fumehood.port.record_keeping import RecordKeeping
from fumehood.server.tenancy import TenantBackend
from fumehood.values.events import Event
from fumehood.values.stateless import StatelessReply, StatelessRequest

_LOOKS = (
    "info list page look watch_events watch_sandboxes capacity egress_log audit_log security_events metrics"
)
_RECORDS = "record find_records ended_sandbox look_back kept_record kept_audit"
LOOKING = frozenset(f"{_LOOKS} {_RECORDS}".split())
# With the scope `execute`. The port makes `run_many` of `run_once`.
_STATELESS = frozenset({"run_once", "stream_once"})


def _guarding(kind: type[Backend]) -> Any:
    """Gives the backend each verb of both ports: a read-only verb is passed on, any other is refused."""
    for port in (Backend, RecordKeeping):
        for verb in port.__abstractmethods__ - vars(kind).keys():
            setattr(kind, verb, _guarded(getattr(port, verb), verb))

    return abc.update_abstractmethods(kind)


def _guarded(declared: Any, verb: str) -> Callable[..., Any]:
    async def ask(self: WatchingBackend, *args: Any, **options: Any) -> Any:
        return await getattr(self._at(verb), verb)(*args, **options)

    async def stream(self: WatchingBackend, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        items: AsyncGenerator[Any, None] = getattr(self._at(verb), verb)(*args, **options)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    method: Any = functools.wraps(declared)(ask if inspect.iscoroutinefunction(declared) else stream)
    method.__isabstractmethod__ = False
    return method  # type: ignore[no-any-return]


@_guarding
class WatchingBackend(Backend, RecordKeeping):
    """The backend for a key that may look at sandboxes but not use them.

    Args:
        inner: The backend of that key, which knows whose sandboxes it sees, and counts its runs.
        may_execute: Whether the key has the scope `execute`.
    """

    def __init__(self, inner: TenantBackend, *, may_execute: bool = False) -> None:
        self._inner = inner
        self._passing = LOOKING | _STATELESS if may_execute else LOOKING

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        """Run code in a sandbox of its own, if the key has the scope `execute`."""
        return await self._at("run_once").run_once(request)

    async def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        """Do what `run_once` does, and yield events as they happen."""
        async with aclosing(self._at("stream_once").stream_once(request)) as items:
            async for item in items:
                yield item

    def _at(self, verb: str) -> TenantBackend:
        if verb not in self._passing:
            raise ForbiddenError(
                reason="it lacks the scope 'sandboxes': a key with 'watch' may look, and no more"
            )

        return self._inner

    async def aclose(self) -> None:
        """Do nothing: a caller cannot close the shared backend."""
