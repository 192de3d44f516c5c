"""Chooses the runtime of each new sandbox, for the engine.

It makes sure that no sandbox is handed out whose isolation is weaker than its caller requires. A weaker runtime is used
only where a caller names its level; a runtime that this machine cannot offer is given up once, with a line in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from fumehood.cancellation import wait_shared
from fumehood.engine.pool import Pool
from fumehood.engine.provisioner import EngineConfig, Provisioner
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import IsolationUnavailableError
from fumehood.log import events
from fumehood.runtimes.base import Runtime
from fumehood.templates.recipe import SkippedModule
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import Isolation, reaches
from fumehood.values.template import Template

_T = TypeVar("_T")
_DOCTOR = "run `fumehood doctor` to see what this machine allows"


class IsolationSelector:
    """Obtains sandboxes whose isolation is at least what the caller requires.

    Args:
        config: The runtimes, and the level that a sandbox must reach if its caller names no level.
        make_provisioner: Makes the provisioner of one runtime.
    """

    def __init__(self, config: EngineConfig, make_provisioner: Callable[[EngineConfig], Provisioner]) -> None:
        runtimes = (config.runtime, *config.weaker)
        self._runtimes = [
            (runtime, make_provisioner(replace(config, runtime=runtime))) for runtime in runtimes
        ]
        self._required_level = config.required_level
        # Missing features do not appear at run time: an unavailable runtime is not tried again.
        self._unavailable: set[Provisioner] = set()
        # The provisioners that have made a sandbox.
        self._proven: set[Provisioner] = set()

    def define(self, template: Template) -> None:
        """Registers a template with the provisioner of every runtime."""
        for _, provisioner in self._runtimes:
            provisioner.define(template)

    async def obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Hands out a sandbox that reaches the required level.

        Raises:
            IsolationUnavailableError: This machine cannot make such a sandbox; the error says which level was reached,
                what is missing, and which level could be requested.
        """
        required_level = spec.isolation or self._required_level
        *stronger, weakest = self._runtimes_that_reach(required_level)

        for choice in stronger:
            if choice[1] in self._unavailable:
                continue

            try:
                return await self._obtain(choice[1], spec, required_level)
            except IsolationUnavailableError as error:
                self._give_up(*choice, error)

        try:
            return await self._obtain(weakest[1], spec, required_level)
        except IsolationUnavailableError as error:
            events.ISOLATION_REFUSED.log(
                required_level=required_level, layer=error.layer, reason=error.reason
            )
            raise self._with_weaker_runtime(error, required_level) from None

    async def _obtain(self, provisioner: Provisioner, spec: SandboxSpec, required_level: str) -> LiveSandbox:
        sandbox = await _checked(await provisioner.obtain(spec), required_level)

        if provisioner not in self._proven:
            self._proven.add(provisioner)
            isolation = sandbox.guest.isolation
            layers = {layer.name: layer.state for layer in isolation.layers}
            events.RUNTIME_CHOSEN.log(isolation_level=isolation.level, layers=layers)

        return sandbox

    def _give_up(self, runtime: Runtime, provisioner: Provisioner, error: IsolationUnavailableError) -> None:
        self._unavailable.add(provisioner)
        events.RUNTIME_GIVEN_UP.log(isolation_level=runtime.level, layer=error.layer, reason=error.reason)

    @property
    def isolation(self) -> Isolation | None:
        """What isolates the sandboxes of the strongest runtime that has made one; None before the first one."""
        found = (provisioner.isolation for _, provisioner in self._runtimes)
        return next((isolation for isolation in found if isolation is not None), None)

    async def wait_warm(self, template: str) -> None:
        """Returns when the pool of a template is full, with the runtime that makes its sandboxes."""
        await self._with_provisioner(lambda provisioner: provisioner.wait_warm(template))

    def pools(self) -> list[Pool]:
        """Returns the pools of all started templates, of every runtime."""
        return [pool for _, provisioner in self._runtimes for pool in provisioner.pools()]

    async def left_out(self, template: str) -> tuple[SkippedModule, ...]:
        """Returns the modules of a template's preload list that its runtime does not preload."""
        return await self._with_provisioner(lambda provisioner: provisioner.left_out(template))

    async def _with_provisioner(self, ask: Callable[[Provisioner], Awaitable[_T]]) -> _T:
        """Calls the provisioner of the strongest available runtime."""
        *stronger, weakest = self._runtimes_that_reach(self._required_level)

        for runtime, provisioner in stronger:
            if provisioner in self._unavailable:
                continue

            try:
                return await ask(provisioner)
            except IsolationUnavailableError as error:
                self._give_up(runtime, provisioner, error)

        return await ask(weakest[1])

    async def close(self) -> None:
        """Closes the provisioner of every runtime: no sandbox is made any more."""
        for _, provisioner in self._runtimes:
            await provisioner.close()

    async def aclose(self) -> None:
        """Ends the processes of the templates of every runtime."""
        for _, provisioner in self._runtimes:
            await provisioner.aclose()

    def _runtimes_that_reach(self, required_level: str) -> list[tuple[Runtime, Provisioner]]:
        """Returns the runtimes that can reach a level, at least one."""
        choices = [choice for choice in self._runtimes if reaches(choice[0].level, required_level)]

        if choices:
            return choices

        best = self._runtimes[0][0].level
        raise IsolationUnavailableError(
            layer=required_level,
            reason=f"no runtime of this engine isolates so well; the strongest level is {best!r}",
            how_to_get_it=f"ask for isolation={best!r}; for a second wall run fumehood inside a virtual machine",
        )

    def _with_weaker_runtime(
        self, error: IsolationUnavailableError, required_level: str
    ) -> IsolationUnavailableError:
        """Adds the next weaker level that this machine supports to the hint; it is used only if a caller names it."""
        weaker = [
            runtime.level
            for runtime, _ in self._runtimes
            if not reaches(runtime.level, required_level) and runtime.is_possible()
        ]

        if not weaker or error.layer == required_level:
            return error

        return IsolationUnavailableError(
            layer=error.layer,
            reason=error.reason,
            how_to_get_it=f"{error.hint}\nor ask for a weaker wall by name: isolation={weaker[0]!r}; "
            "the guide on isolation says what it does not protect against",
        )


async def _checked(sandbox: LiveSandbox, required_level: str) -> LiveSandbox:
    """Returns the sandbox, or ends it if it is weaker than its caller requires."""
    isolation = sandbox.guest.isolation

    if reaches(isolation.level, required_level):
        return sandbox

    sandbox.end("killed")
    await wait_shared(sandbox.guest.ended)
    raise _below(isolation, required_level)


def _below(isolation: Isolation, required_level: str) -> IsolationUnavailableError:
    off = [layer for layer in isolation.layers if layer.state == "off"]
    reasons = "; ".join(f"{layer.name}: {layer.why}" for layer in off)
    return IsolationUnavailableError(
        layer=", ".join(layer.name for layer in off) or required_level,
        reason=f"isolation={required_level!r} was asked for, and {isolation.level!r} was reached: {reasons}",
        how_to_get_it=f"{_DOCTOR}, or ask for isolation={isolation.level!r}",
    )
