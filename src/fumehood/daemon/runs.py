"""Runs in sandboxes of their own that a server of a cluster begins together: one request, and lines as they end.

Each run has a sandbox of its own, is ended by itself, and delays no other; answers of runs that end at nearly the same
time are sent as one piece. The server in front has checked the runs, and counts them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from fastapi import Path

from fumehood.cancellation import cancel_and_wait
from fumehood.client.stateless import GroupedRun
from fumehood.errors import FumehoodError, InvalidArgumentError, SandboxClosedError
from fumehood.log import events
from fumehood.log.request_ids import logged_request
from fumehood.log.traces import TRACES
from fumehood.port.backend import Backend
from fumehood.server.problems import problem_data
from fumehood.server.responses import Line, LinesAtOnce, line_of
from fumehood.server.schemas.execute import GROUP_NAME, MOST_GROUPED
from fumehood.values.carried import carried
from fumehood.values.plain_data import as_data

# Each piece of an answer costs a server and an adapter more than a run does; a sandbox takes some milliseconds.
_GATHER_SECONDS = 0.005
_MOST_EARLY = 10_000
RunName = Annotated[str, Path(pattern=GROUP_NAME, description="The name of the group.")]
RunIndex = Annotated[int, Path(ge=0, lt=MOST_GROUPED, description="The place of the run in it.")]


class RunGroup:
    """Runs that have begun together.

    Args:
        backend: The engine.
        runs: The runs.
    """

    def __init__(self, backend: Backend, runs: Sequence[GroupedRun]) -> None:
        self._backend = backend
        self._tasks = [asyncio.create_task(self._run(index, run)) for index, run in enumerate(runs)]

    def end(self, index: int) -> None:
        """Ends a run; does nothing if the run has ended or does not exist."""
        if index < len(self._tasks):
            self._tasks[index].cancel()

    async def lines(self) -> AsyncGenerator[Line, None]:
        """Yields a line for each run as it ends; closing the iterator ends the remaining runs."""
        left: set[asyncio.Task[Line]] = set(self._tasks)

        try:
            while left:
                ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)

                if left:
                    more, left = await asyncio.wait(left, timeout=_GATHER_SECONDS)
                    ended |= more

                yield LinesAtOnce([task.result() for task in ended if not task.cancelled()])
        finally:
            await cancel_and_wait(*self._tasks)

    async def _run(self, index: int, run: GroupedRun) -> Line:
        with logged_request(run.request_id), TRACES.span("run of a group", run.trace):
            try:
                reply = await self._backend.run_once(run.request)
                # Results stay bytes, as in a single run's answer: a guest chooses how deep their JSON is.
                return await line_of({"index": index, "reply": carried(reply)}, _as_object)
            except FumehoodError as error:
                return {"index": index, "problem": problem_data(error, run.request_id)}
            except Exception as error:  # noqa: BLE001 - of this run alone: the others are of other callers
                events.REQUEST_FAILED.log(exc_info=error, method="POST", route="/v1/host/runs")
                unknown = SandboxClosedError(sandbox_id="", reason="died", outcome_unknown=True)
                return {"index": index, "problem": problem_data(unknown, run.request_id)}


class RunGroups:
    """The groups whose runs have not all ended, by their names."""

    def __init__(self) -> None:
        self._groups: dict[str, RunGroup] = {}
        # Runs that were ended before their group came: the two requests have connections of their own.
        self._ended_early: OrderedDict[tuple[str, int], None] = OrderedDict()

    async def lines(
        self, name: str, backend: Backend, runs: Sequence[GroupedRun]
    ) -> AsyncGenerator[Line, None]:
        """Begins runs and yields their lines.

        Raises:
            InvalidArgumentError: A group of this name is running.
        """
        if name in self._groups:
            raise InvalidArgumentError(field="name", value=name, allowed="a name that no group has")

        group = self._groups[name] = RunGroup(backend, runs)

        for index in range(len(runs)):
            if self._ended_early.pop((name, index), ()) is None:
                group.end(index)

        lines = group.lines()

        try:
            async for line in lines:
                yield line
        finally:
            del self._groups[name]
            await lines.aclose()

    def end(self, name: str, index: int) -> None:
        """Ends a run of a group, even if the group has not arrived yet; does nothing if the run has ended."""
        if (group := self._groups.get(name)) is not None:
            group.end(index)
            return

        self._ended_early[name, index] = None

        while len(self._ended_early) > _MOST_EARLY:
            self._ended_early.popitem(last=False)


def _as_object(value: Any) -> dict[str, Any]:
    data = as_data(value)
    assert isinstance(data, dict)
    return data
