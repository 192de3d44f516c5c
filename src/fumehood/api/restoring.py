"""Restores a sandbox from its last save when its machine is lost: `on_host_loss="restore"`.

Runs in the user's process, between `AsyncSandbox` and the port. A call that finds the sandbox lost loads the state that
was saved last, on whichever machine has room, and is then repeated if it is certain that it was not begun. The lost one
has ended by then, also if its machine was only cut off (`fumehood.daemon.lease`). It must never repeat a call that may
have been carried out, restore a sandbox that ended for any other reason, or restore one twice.
"""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fumehood.api.saved_states import StatePlace
from fumehood.errors import SandboxClosedError
from fumehood.port.backend import Backend
from fumehood.values.requests import Loaded, LoadRequest

# They only look.
_NEVER_RESTORING = frozenset({"info", "look", "audit_log", "egress_log", "security_events", "watch_events"})
# What `write` sends may be half read; the others name what another sandbox may have too, such as the pid of a process.
_NEVER_REPEATED = frozenset(
    {
        "write",
        "process_call",
        "process_output",
        "answer_input",
        "answer_tool",
        "answer_commit",
        "interrupt",
        "checkpoint_call",
        "fork",
        "adopt",
        "settle_watch",
        "accept_port",
    }
)
# Of these the port has versions made of others, which a backend may do in one step.
_CONCRETE = ("run", "run_once", "stream_once", "run_many")


def _forwarding(kind: type[Backend]) -> Any:
    """Gives the backend all verbs of the port; those about one sandbox restore it if it is lost."""
    for verb in [*Backend.__abstractmethods__ - vars(kind).keys(), *_CONCRETE]:
        declared = getattr(Backend, verb)
        is_of_one = "sandbox_id" in inspect.signature(declared).parameters
        is_coroutine = inspect.iscoroutinefunction(declared)
        made = (
            _plain if not is_of_one or verb in _NEVER_RESTORING else _awaited if is_coroutine else _iterated
        )
        method: Any = made(verb)
        method.__name__, method.__doc__ = verb, declared.__doc__
        setattr(kind, verb, method)

    return abc.update_abstractmethods(kind)


def _plain(verb: str) -> Callable[..., Any]:
    def ask(self: RestoringBackend, *args: Any, **options: Any) -> Any:
        return getattr(self.inner, verb)(*args, **options)

    return ask


def _awaited(verb: str) -> Callable[..., Any]:
    async def ask(self: RestoringBackend, sandbox_id: str, *args: Any, **options: Any) -> Any:
        try:
            return await getattr(self.inner, verb)(sandbox_id, *args, **options)
        except SandboxClosedError as error:
            other_id = await self.place_of(error, sandbox_id)

            if verb in _NEVER_REPEATED:
                raise

            return await getattr(self.inner, verb)(other_id, *args, **options)

    return ask


def _iterated(verb: str) -> Callable[..., Any]:
    async def items(
        self: RestoringBackend, sandbox_id: str, *args: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        has_begun = False

        try:
            async with aclosing(getattr(self.inner, verb)(sandbox_id, *args, **options)) as found:
                async for item in found:
                    has_begun = True
                    yield item
                return
        except SandboxClosedError as error:
            error.outcome_unknown = error.outcome_unknown or has_begun
            other_id = await self.place_of(error, sandbox_id)

            if verb in _NEVER_REPEATED:
                raise

        async with aclosing(getattr(self.inner, verb)(other_id, *args, **options)) as found:
            async for item in found:
                yield item

    return items


@_forwarding
class RestoringBackend(Backend):
    """The backend of one sandbox, which it loads from the last saved state when the machine was lost.

    Args:
        inner: The backend of the sandbox.
        request: The request with which it is restored.
        on_restored: Called with the new sandbox.

    Attributes:
        inner: The backend of the sandbox.
        place: The location of its last saved state; None if there is none.
    """

    def __init__(self, inner: Backend, request: LoadRequest, on_restored: Callable[[Loaded], None]) -> None:
        self.inner = inner
        self.place: StatePlace | None = None
        self._request = request
        self._on_restored = on_restored
        self._restoring = asyncio.Lock()
        # The sandbox that has taken the place of a lost one.
        self._successors: dict[str, str] = {}

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        """Kill the sandbox as the port describes; it is not restored any more."""
        # A host that has been restarted does not know any more why it ended.
        self.place = None

        return await self.inner.kill(sandbox_id, wait=wait)

    async def place_of(self, error: SandboxClosedError, sandbox_id: str) -> str:
        """Returns the id of the sandbox that replaces a lost one.

        Restores it from the last save if that was not done yet.

        Raises:
            SandboxClosedError: The sandbox was not lost, it has no save, or the call may have been carried out.
        """
        if error.reason != "lost" or self.place is None:
            raise error

        async with self._restoring:
            if sandbox_id not in self._successors:
                from fumehood.saved.places import load_from

                loaded = await load_from(self.inner, self._request, self.place)
                self._successors[sandbox_id] = loaded.sandbox.id
                self._on_restored(loaded)

        if error.outcome_unknown:
            raise error

        return self._successors[sandbox_id]


def restoring(inner: Backend, request: LoadRequest, on_restored: Callable[[Loaded], None]) -> Backend:
    """Return a `RestoringBackend`: it loads the sandbox anew from its last save if the machine is lost."""
    # Its decorator defines the verbs that the class does not.
    return RestoringBackend(inner, request, on_restored)  # type: ignore[abstract]
