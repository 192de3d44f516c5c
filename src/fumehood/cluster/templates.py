"""Copies templates to machines that lack them or have an earlier build, each once, while other work continues.

Runs in the server process, on its loop. It moves streams from one host daemon to another and looks at none of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from fumehood.cancellation import cancel_and_wait, wait_shared, when_done
from fumehood.client.backend import HttpBackend
from fumehood.cluster.placement import Report
from fumehood.errors import FumehoodError
from fumehood.log import events

# After a refusal, sandboxes of the template are made on other machines for so long.
_RETRY_SECONDS = 60.0
# Longer than it takes until a machine's report names what has come to it.
_REPORTED_SECONDS = 5.0


class Templates:
    """Copies the templates of a cluster's machines from one to another.

    Args:
        loop: The loop of the server.
        reports: The last report of each machine that answers, by the id of its host.
        backend_of: Returns the port to a machine's host daemon.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reports: Callable[[], Mapping[str, Report]],
        backend_of: Callable[[str], HttpBackend],
    ) -> None:
        self._loop = loop
        self._reports = reports
        self._backend_of = backend_of
        self._under_way: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._refused_at: dict[tuple[str, str], float] = {}
        # What was brought where, when it was built, and when it came: reports tell of it a little later.
        self._came: dict[tuple[str, str], tuple[float, float]] = {}
        # When the latest build of each template was made, of all that machines have reported.
        self._latest: dict[str, float] = {}

    def note(self, report: Report) -> None:
        """Takes new figures of a machine, and records the time of the latest build of each template."""
        for name, built_at in report.built_at.items():
            if built_at > self._latest.get(name, -math.inf):
                self._latest[name] = built_at

    async def are_there(self, template: str, host_id: str) -> bool:
        """Returns whether a machine can make sandboxes of a template, after copying it there if necessary.

        A machine with an earlier build gets the latest one; if it refuses that, it continues with its own. True also
        for a template that no machine has: the machine then reports the fault.
        """
        reports = self._reports()
        there = reports.get(host_id)
        is_there = there is not None and template in there.templates

        # Nearly always: no other machine is looked at.
        if not template or (there is not None and is_there and self._is_latest(template, there)):
            return True

        if self._has_just_come(template, host_id):
            return True

        source = self._source(template, reports)

        if source is None or source == host_id:
            return True

        return await self._brought(template, source, host_id) or is_there

    def _has_just_come(self, template: str, host_id: str) -> bool:
        built_at, came_at = self._came.get((template, host_id), (-math.inf, -math.inf))
        is_recent = self._loop.time() - came_at < _REPORTED_SECONDS
        return is_recent and built_at >= self._latest.get(template, -math.inf)

    def _is_latest(self, template: str, report: Report) -> bool:
        built_at = report.built_at.get(template)
        return built_at is None or built_at >= self._latest.get(template, -math.inf)

    def _source(self, template: str, reports: Mapping[str, Report]) -> str | None:
        """Returns the machine with the latest build among those that answer, or None."""
        found = [name for name, report in reports.items() if template in report.templates]

        if not found:
            return None

        source = max(found, key=lambda name: reports[name].built_at.get(template, -math.inf))
        # A machine that had a later one may be gone.
        self._latest[template] = reports[source].built_at.get(template, -math.inf)
        return source

    async def _brought(self, template: str, source: str, host_id: str) -> bool:
        key = (template, host_id)

        if self._loop.time() - self._refused_at.get(key, -_RETRY_SECONDS) < _RETRY_SECONDS:
            return False

        task = self._under_way.get(key)

        if task is None:
            # A task of its own: a caller that leaves ends nothing that others wait for.
            task = self._under_way[key] = asyncio.create_task(self._bring(template, source, host_id))
            when_done(task, self._under_way.pop, key, None)

        return await wait_shared(task)

    async def aclose(self) -> None:
        """Ends all copies under way."""
        await cancel_and_wait(*self._under_way.values())

    async def _bring(self, template: str, source: str, host_id: str) -> bool:
        begun = self._loop.time()
        latest = self._latest.get(template, -math.inf)

        try:
            await self._backend_of(source).copy_template(template, self._backend_of(host_id))
        except FumehoodError as error:
            self._refused_at[template, host_id] = self._loop.time()
            events.TEMPLATE_NOT_CARRIED.log(
                template=template, host_id=host_id, source=source, reason=error.log_reason
            )
            return False

        self._refused_at.pop((template, host_id), None)
        self._came[template, host_id] = latest, self._loop.time()
        seconds = round(self._loop.time() - begun, 2)
        events.TEMPLATE_CARRIED.log(template=template, host_id=host_id, source=source, seconds=seconds)
        return True
