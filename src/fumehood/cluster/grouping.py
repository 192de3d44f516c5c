"""Groups single runs: runs for one machine that begin at the same time are sent as one call of Ray.

Runs in the server process, on its loop; one object for each machine. A call of Ray costs the same for one run as for
sixty. A run that comes alone is sent at once, as it would be without this. Answers come as runs end: a long run
delays no other. It must not repeat a run whose outcome is unknown, and a caller that leaves ends its own run only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass

from fumehood.cancellation import keep, stop
from fumehood.client.backend import HttpBackend
from fumehood.client.stateless import GroupedRun, fits_one_request, weight_of
from fumehood.errors import FumehoodError, HostUnavailableError
from fumehood.log.request_ids import apart, request_id
from fumehood.log.traces import TRACES
from fumehood.values.stateless import StatelessReply, StatelessRequest

MOST_RUNS = 64
# Together with the rest of their bodies they fit into what Ray carries within a call.
_MOST_BYTES = 32 * 1024
# After a call the next runs are gathered for so long; a tenth of what the start of a sandbox takes.
_GATHER_SECONDS = 0.002


@dataclass(slots=True, eq=False)
class _Waiting:
    """A run that is to be sent."""

    run: GroupedRun
    weight: int
    outcome: asyncio.Future[StatelessReply]


class _Group:
    """Runs that were sent together.

    Args:
        backend: The port to the host daemon.
        members: The runs.
    """

    def __init__(self, backend: HttpBackend, members: list[_Waiting]) -> None:
        self._backend = backend
        self._name = secrets.token_hex(12)
        self._left = dict(enumerate(members))
        self._places = {member: index for index, member in self._left.items()}
        self.work = apart(self._follow([member.run for member in members]))

    def leave(self, member: _Waiting) -> None:
        """Ends a run whose caller has left; when no caller is left, the whole call is ended."""
        index = self._places[member]

        if self._left.pop(index, None) is not None:
            keep(self._end(index))

    async def _end(self, index: int) -> None:
        if not self._left:
            await stop(self.work)
            return

        # The daemon, or the run, may be gone: then nothing is left to be ended.
        with suppress(FumehoodError):
            await self._backend.end_grouped(self._name, index)

    async def _follow(self, runs: list[GroupedRun]) -> None:
        error: FumehoodError = HostUnavailableError(
            host="the host of the sandboxes", reason="it left runs unanswered", outcome_unknown=True
        )

        try:
            async with aclosing(self._backend.run_grouped(self._name, runs)) as answers:
                async for index, answer in answers:
                    self._settle(index, answer)
        except FumehoodError as fault:
            error = fault
        finally:
            for index in [*self._left]:
                self._settle(index, _one_more(error))

    def _settle(self, index: int, answer: StatelessReply | FumehoodError) -> None:
        member = self._left.pop(index, None)

        if member is None or member.outcome.done():
            return

        if isinstance(answer, FumehoodError):
            member.outcome.set_exception(answer)
        else:
            member.outcome.set_result(answer)


def _one_more(error: FumehoodError) -> FumehoodError:
    """Returns a copy of a lost host's error for one caller, since raising an error adds to its traceback."""
    if not isinstance(error, HostUnavailableError):
        return error

    return HostUnavailableError(host=error.host, reason=error.reason, outcome_unknown=error.outcome_unknown)


class Grouping:
    """The runs of one machine.

    Args:
        backend: The port to its host daemon.
        loop: The loop of the calls.
    """

    def __init__(self, backend: HttpBackend, loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._loop = loop
        self._waiting: deque[_Waiting] = deque()
        self._groups: dict[_Waiting, _Group] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -_GATHER_SECONDS
        self.calls = 0

    async def run(self, request: StatelessRequest) -> StatelessReply:
        """Does what `Backend.run_once` does."""
        weight = weight_of(request)

        if not fits_one_request(request) or weight > _MOST_BYTES:
            return await self._backend.run_once(request)

        run = GroupedRun(request, request_id(), TRACES.parent())
        waiting = _Waiting(run, weight, self._loop.create_future())
        self._waiting.append(waiting)
        self._send_soon()

        try:
            return await waiting.outcome
        except asyncio.CancelledError:
            self._leave(waiting)
            raise
        finally:
            self._groups.pop(waiting, None)

    def _leave(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        elif (group := self._groups.get(waiting)) is not None:
            group.leave(waiting)

    def _send_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._sent_at + _GATHER_SECONDS, self._send)

    def _send(self) -> None:
        self._timer = None
        self._sent_at = self._loop.time()

        while self._waiting:
            self._send_group(self._next())

    def _next(self) -> list[_Waiting]:
        members: list[_Waiting] = []
        room = _MOST_BYTES

        while self._waiting and len(members) < MOST_RUNS and self._waiting[0].weight <= room:
            members.append(self._waiting.popleft())
            room -= members[-1].weight

        return members

    def _send_group(self, members: list[_Waiting]) -> None:
        group = _Group(self._backend, members)
        self.calls += 1

        for member in members:
            self._groups[member] = group
