"""One machine as a server sees it: the handle of its adapter, whether it answers, and the calls under way.

Runs in the server process, on its loop. It passes bytes, and knows neither sandboxes nor placement. A call that cannot
be sent raises `NotSentError`: nothing was begun. One that breaks off raises `BrokenOffError`: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from fumehood.cluster.exchange import BROKEN_OFF, NOT_REACHED, ExchangeReply, NotAnAnswerError, unpack
from fumehood.log import events

# Pieces of a stream that wait for their reader, until the adapter stops reading from the daemon.
_WAITING_PIECES = 8
# Errors of Ray after which nothing was begun: no machine could run the adapter.
_NOT_BEGUN = ("ActorUnschedulableError", "ActorPlacementGroupRemoved", "PendingCallsLimitExceeded")
_T = TypeVar("_T")


# No look at the cluster for so long: what happened in between is not known.
_LOOK_GAP_SECONDS = 10.0


class NotSentError(ConnectionError):
    """The machine cannot be reached: nothing was begun."""


class BrokenOffError(ConnectionError):
    """The connection broke after the call was sent: whether it was carried out is unknown."""


class MachinePresence:
    """Whether the cluster counts a machine in, and when its sandboxes are lost; all times are of the steady clock.

    A machine ends the sandboxes that may be restored elsewhere when its lease is over (`fumehood.daemon.lease`). A
    token extends it only if the machine was seen in the cluster afterwards, and sandboxes are lost only when it was
    seen to be away for longer than a lease, without a break: so they are never in two places.

    Args:
        grace_seconds: How long after a machine has gone its sandboxes may still come back with it.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._gone_at: float | None = None
        self._looked_at = 0.0
        self._ended = 0
        self._token = ""
        self._token_at = 0.0
        # The token of the last answer, sent back or not: the machine was not lost before.
        self.last_token = ""
        self.is_lost = False
        # Whether its next answer has to be that to the words that it was lost.
        self.was_lost = False

    @property
    def is_gone(self) -> bool:
        """Whether the machine has left the cluster, or died."""
        return self._gone_at is not None

    def note_there(self, looked_at: float, ended: int) -> None:
        """Records that a look found the machine; `ended` is how many times it has left in all."""
        self.was_lost = self.was_lost or self.is_lost
        self._gone_at, self.is_lost = None, False
        self._looked_at, self._ended = looked_at, ended

    def note_away(self, looked_at: float, ended: int) -> None:
        """Records a failed poll of the machine."""
        is_unbroken = ended == self._ended and looked_at - self._looked_at <= _LOOK_GAP_SECONDS

        if self._gone_at is None or not (is_unbroken or self.is_lost):
            self._gone_at = looked_at

        self.is_lost = self.is_lost or looked_at - self._gone_at > self._grace_seconds
        self._looked_at, self._ended = looked_at, ended
        self._token = ""

    def note_token(self, token: str, now: float) -> None:
        """Stores the token of an answer; it is not sent back while an earlier token is still to be sent."""
        self.last_token = token

        if not self._token:
            self._token, self._token_at = token, now

    def take_token(self) -> str:
        """Returns the token to send back; "" until a look that began after its arrival has found the machine."""
        if self.is_gone or self._looked_at <= self._token_at:
            return ""

        token, self._token = self._token, ""
        return token


class Machine:
    """One machine.

    Args:
        host_id: The name of its host, with which the ids of its sandboxes begin.
        loop: The loop of the calls.
    """

    def __init__(self, host_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.host_id = host_id
        self.labels: dict[str, str] = {}
        # The adapter's handle; None until Ray has made the adapter, and while the machine is gone.
        self.adapter: Any = None
        self.heard_at = loop.time()
        # Why no call is sent to it; empty while it answers.
        self.fault = "its adapter has not answered yet"
        self._loop = loop
        self._under_way: set[asyncio.Future[Any]] = set()

    def note_answer(self) -> None:
        """Records that the machine answers: calls are sent to it."""
        self.heard_at = self._loop.time()
        self.fault = ""

    def note_fault(self, reason: str) -> None:
        """Records that the machine does not answer: no call is sent to it until it does."""
        self.fault = reason

    def break_off(self, reason: str) -> int:
        """Ends all calls under way, whose outcome is unknown, and returns how many there were."""
        self.fault = reason
        broken = [outcome for outcome in self._under_way if not outcome.done()]

        for outcome in broken:
            outcome.set_exception(BrokenOffError(reason))

        return len(broken)

    async def call(self, *request: Any, is_probe: bool = False) -> ExchangeReply:
        """Asks the adapter's `call` and returns the whole answer.

        Args:
            request: The arguments of `HostAdapter.call`.
            is_probe: Whether to send the call even if the machine does not answer.

        Raises:
            NotSentError: The machine, or its daemon, cannot be reached.
            BrokenOffError: The connection broke after the call was sent.
        """
        return self._checked(await self._outcome(self._reachable(is_probe).call.remote(*request)))

    async def stream(self, method: str, *request: Any) -> AsyncGenerator[bytes | ExchangeReply, None]:
        """Asks `stream` or `connect` of the adapter and yields the head of the answer, then pieces.

        Raises:
            NotSentError: The machine, or its daemon, cannot be reached.
            BrokenOffError: The stream broke off before its end.
        """
        verb = getattr(self._reachable(False), method)
        items = verb.options(
            num_returns="streaming", _generator_backpressure_num_objects=_WAITING_PIECES
        ).remote(*request)
        is_ended = False

        try:
            yield self._checked(await self._next(items))

            while (piece := await self._next(items)) is not None:
                # The adapter ends a whole answer with an empty piece; a connection has no such end.
                is_ended = not piece

                if not is_ended:
                    yield piece

            if not is_ended and method == "stream":
                raise BrokenOffError("its answer was cut off")

            is_ended = True
        finally:
            if not is_ended:
                _cancel(items)

    async def feed(self, name: str, piece: bytes) -> None:
        """Adds a piece to an upload that the machine's adapter is waiting for.

        Raises:
            NotSentError: The machine cannot be reached.
            BrokenOffError: The machine has gone.
        """
        await self._outcome(self._reachable(False).feed.remote(name, piece))

    async def _next(self, items: Any) -> bytes | None:
        """Returns the next piece of a stream, or None at its end."""
        step = asyncio.ensure_future(_item(items))
        outcome: asyncio.Future[bytes | None] = self._loop.create_future()
        step.add_done_callback(partial(_settle, outcome))

        try:
            return await self._answered(outcome)
        finally:
            step.cancel()

    def _reachable(self, is_probe: bool) -> Any:
        if self.adapter is None or (self.fault and not is_probe):
            raise NotSentError(self.fault or "its adapter is being made")

        return self.adapter

    async def _outcome(self, reference: Any) -> bytes:
        outcome: asyncio.Future[bytes] = self._loop.create_future()
        future: Future[bytes] = reference.future()
        future.add_done_callback(partial(self._settle_soon, outcome))

        try:
            return await self._answered(outcome)
        except (asyncio.CancelledError, BrokenOffError):
            _cancel(reference)
            raise

    async def _answered(self, outcome: asyncio.Future[_T]) -> _T:
        """Waits for an outcome, which `break_off` may end."""
        self._under_way.add(outcome)

        try:
            return await outcome
        except (BrokenOffError, NotSentError):
            raise
        except Exception as error:  # noqa: BLE001 - of many kinds of Ray; a caller gets one of ours.
            # Ray says that the adapter died, was not reached, or was cancelled. Until it answers a probe, no other
            # call needs to find that out.
            self.note_fault(f"its adapter does not answer ({type(error).__name__})")

            if type(error).__name__ in _NOT_BEGUN:
                raise NotSentError(self.fault) from None

            raise BrokenOffError(self.fault) from None
        finally:
            self._under_way.discard(outcome)

    def _settle_soon(self, outcome: asyncio.Future[bytes], done: Future[bytes]) -> None:
        """Sets an outcome from one of Ray's threads."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, outcome, done)

    def _checked(self, data: bytes | None) -> ExchangeReply:
        try:
            answer = unpack(data)
        except NotAnAnswerError as error:
            raise BrokenOffError(f"its adapter does not fit: {error}") from None

        if answer.status == NOT_REACHED:
            raise NotSentError(f"its host daemon cannot be reached ({answer.body.decode(errors='replace')})")

        if answer.status == BROKEN_OFF:
            raise BrokenOffError(f"its host daemon broke off ({answer.body.decode(errors='replace')})")

        return answer


async def _item(items: Any) -> bytes | None:
    try:
        data: bytes = await (await items.__anext__())
    except StopAsyncIteration:
        return None

    return data


def _settle(outcome: asyncio.Future[Any], done: Future[Any] | asyncio.Future[Any]) -> None:
    """Sets the outcome that a caller waits for, unless it was set meanwhile."""
    if outcome.done() or done.cancelled():
        return

    error = done.exception()

    if error is None:
        outcome.set_result(done.result())
    elif isinstance(error, Exception):
        outcome.set_exception(error)
    else:
        outcome.set_exception(BrokenOffError(type(error).__name__))


def _cancel(reference: Any) -> None:
    """Ends a call at the adapter, which closes its connection to the daemon."""
    # Late: only a server of a cluster needs Ray.
    import ray

    try:
        ray.cancel(reference)
    except Exception as error:  # noqa: BLE001 - the adapter is gone, or the call has ended: nothing is left to end.
        events.CANCEL_FAILED.log(reason=type(error).__name__)
