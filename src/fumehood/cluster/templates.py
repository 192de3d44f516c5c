"""Brings templates to the machines that lack them: each once, from a machine that has it, beside running work.

Runs in the server process, on its loop. It moves streams from one host daemon to another and looks at none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fumehood.cancellation import cancel_and_wait, wait_shared, when_done
from fumehood.client.backend import HttpBackend
from fumehood.cluster.placement import Report
from fumehood.errors import FumehoodError
from fumehood.log import events

# After a refusal, sandboxes of the template are made on other machines for so long.
_RETRY_SECONDS = 60.0


class Templates:
    """The templates of a cluster's machines.

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

    async def are_there(self, template: str, host_id: str) -> bool:
        """Returns whether a machine can make sandboxes of a template, after bringing it there if need be.

        True also for a template that no machine has: the machine says what is wrong.
        """
        reports = self._reports()
        there = reports.get(host_id)

        # Nearly always: no other machine is looked at.
        if not template or (there is not None and template in there.templates):
            return True

        sources = [name for name, report in reports.items() if template in report.templates]

        if not sources:
            return True

        key = (template, host_id)

        if self._loop.time() - self._refused_at.get(key, -_RETRY_SECONDS) < _RETRY_SECONDS:
            return False

        task = self._under_way.get(key)

        if task is None:
            # A task of its own: a caller that leaves ends nothing that others wait for.
            task = self._under_way[key] = asyncio.create_task(self._bring(template, sources[0], host_id))
            when_done(task, self._under_way.pop, key, None)

        return await wait_shared(task)

    async def aclose(self) -> None:
        """Ends what is under way."""
        await cancel_and_wait(*self._under_way.values())

    async def _bring(self, template: str, source: str, host_id: str) -> bool:
        begun = self._loop.time()

        try:
            await self._backend_of(source).copy_template(template, self._backend_of(host_id))
        except FumehoodError as error:
            self._refused_at[template, host_id] = self._loop.time()
            events.TEMPLATE_NOT_CARRIED.log(
                template=template, host_id=host_id, source=source, reason=str(error)
            )
            return False

        seconds = round(self._loop.time() - begun, 2)
        events.TEMPLATE_CARRIED.log(template=template, host_id=host_id, source=source, seconds=seconds)
        return True
