"""The floor: no sandbox is handed out whose isolation is weaker than its caller asks for.

Runs in the host process, on the engine's loop. It has a nursery for each way to isolate, the strongest first, and goes
on to a weaker one only where the caller has named that level. What a sandbox has reached is taken from the sandbox,
never from the name of its runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from fumehood.backends.requests import SandboxSpec
from fumehood.errors import IsolationUnavailableError
from fumehood.host.live_sandbox import LiveSandbox
from fumehood.host.nursery import Means, Nursery
from fumehood.isolation_levels import reaches
from fumehood.models import Isolation
from fumehood.runtimes.base import Runtime
from fumehood.templates.preloads import LeftOut
from fumehood.templates.template import Template

_T = TypeVar("_T")
_DOCTOR = "run `fumehood doctor` to see what this machine allows"


class Floors:
    """Obtains sandboxes that are isolated well enough.

    Args:
        means: The ways to isolate, and what a sandbox must reach whose caller names no level.
        make_nursery: Makes the nursery of one way.
    """

    def __init__(self, means: Means, make_nursery: Callable[[Means], Nursery]) -> None:
        runtimes = (means.runtime, *means.weaker)
        self._ways = [(runtime, make_nursery(replace(means, runtime=runtime))) for runtime in runtimes]
        self._floor = means.floor
        # What this machine cannot do does not change while we look: whoever takes less need not try it each time.
        self._given_up: set[Nursery] = set()

    def define(self, template: Template) -> None:
        """Makes a template known; see the nursery."""
        for _, nursery in self._ways:
            nursery.define(template)

    async def obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Hands out a sandbox that reaches its floor.

        Raises:
            IsolationUnavailableError: None can be had here; the error says which level was reached, what is missing,
                and what could be asked for.
        """
        floor = spec.isolation or self._floor
        *stronger, weakest = self._ways_to(floor)

        for way in stronger:
            if way[1] in self._given_up:
                continue

            try:
                return await _checked(await way[1].obtain(spec), floor)
            except IsolationUnavailableError:
                self._given_up.add(way[1])

        try:
            return await _checked(await weakest[1].obtain(spec), floor)
        except IsolationUnavailableError as error:
            raise self._with_weaker_way(error, floor) from None

    async def wait_warm(self, template: str) -> None:
        """Returns when the pool of a template is full, by the way that its sandboxes are made."""
        await self._with_nursery(lambda nursery: nursery.wait_warm(template))

    async def left_out(self, template: str) -> tuple[LeftOut, ...]:
        """Returns the modules of a template's preload list that are not preloaded, by that same way."""
        return await self._with_nursery(lambda nursery: nursery.left_out(template))

    async def _with_nursery(self, ask: Callable[[Nursery], Awaitable[_T]]) -> _T:
        """Asks the nursery of the strongest way that is possible here."""
        *stronger, weakest = self._ways_to(self._floor)

        for _, nursery in stronger:
            if nursery in self._given_up:
                continue

            try:
                return await ask(nursery)
            except IsolationUnavailableError:
                self._given_up.add(nursery)

        return await ask(weakest[1])

    async def close(self) -> None:
        """Makes no more; see the nursery."""
        for _, nursery in self._ways:
            await nursery.close()

    async def aclose(self) -> None:
        """Ends the processes of all templates; see the nursery."""
        for _, nursery in self._ways:
            await nursery.aclose()

    def _ways_to(self, floor: str) -> list[tuple[Runtime, Nursery]]:
        """The ways by which it can be reached, one at least."""
        ways = [way for way in self._ways if reaches(way[0].level, floor)]

        if ways:
            return ways

        best = self._ways[0][0].level
        raise IsolationUnavailableError(
            layer=floor,
            reason=f"no runtime of this version isolates so well; the strongest level is {best!r}",
            how_to_get_it=f"ask for isolation={best!r}; for a second wall run fumehood inside a virtual machine",
        )

    def _with_weaker_way(self, error: IsolationUnavailableError, floor: str) -> IsolationUnavailableError:
        """Names the next weaker level that this machine could have: nobody gets it without having asked for it."""
        weaker = [
            runtime.level
            for runtime, _ in self._ways
            if not reaches(runtime.level, floor) and runtime.is_possible()
        ]

        if not weaker or error.layer == floor:
            return error

        return IsolationUnavailableError(
            layer=error.layer,
            reason=error.reason,
            how_to_get_it=f"{error.hint}\nor ask for a weaker wall by name: isolation={weaker[0]!r}; "
            "the guide on isolation says what it does not protect against",
        )


async def _checked(sandbox: LiveSandbox, floor: str) -> LiveSandbox:
    """Ends a sandbox that is weaker than its user wants."""
    isolation = sandbox.guest.isolation

    if reaches(isolation.level, floor):
        return sandbox

    sandbox.end("killed")
    await asyncio.shield(sandbox.guest.ended)
    raise _below(isolation, floor)


def _below(isolation: Isolation, floor: str) -> IsolationUnavailableError:
    off = [layer for layer in isolation.layers if layer.state == "off"]
    reasons = "; ".join(f"{layer.name}: {layer.why}" for layer in off)
    return IsolationUnavailableError(
        layer=", ".join(layer.name for layer in off) or floor,
        reason=f"isolation={floor!r} was asked for, and {isolation.level!r} was reached: {reasons}",
        how_to_get_it=f"{_DOCTOR}, or ask for isolation={isolation.level!r}",
    )
