"""The kernels of a server: the sandbox of each, and its state in this process.

A kernel's id is its sandbox's id, in the form of Jupyter's ids; its kernel spec is stored in the sandbox's metadata, so
that a kernel that this process has not seen yet is found as well. The backend decides the owner of a sandbox.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from fumehood.bounds import BOUNDS
from fumehood.dialects.jupyter.kernel import Kernel, context_for
from fumehood.dialects.jupyter.shell import CELL_RESULTS, CELL_SECONDS
from fumehood.dialects.jupyter.spec import DEFAULT_SPEC, KernelSpec, find_spec
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.log import events
from fumehood.port.backend import Backend
from fumehood.server.principal import Principal
from fumehood.server.services import Services
from fumehood.values.limits import Limits
from fumehood.values.requests import ListContexts, SandboxSpec
from fumehood.values.sandbox import SandboxInfo

DIALECT_LABEL = {"dialect": "jupyter"}
NAME_LABEL = "kernel_name"
IDLE_SECONDS = 3600.0
_LOOK_SECONDS = 10.0
_KERNEL_ID = re.compile(r"[a-z0-9]{8}-[a-z0-9]{4}-[a-z0-9]{4}-[a-z0-9]{4}-[a-z0-9]{1,44}")
# The folder of a gateway's client and its user name: nothing that a sandbox could use.
_NOT_PASSED_ON = frozenset({"KERNEL_WORKING_DIR", "KERNEL_USERNAME"})
_GONE = (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError)


class Kernels:
    """The kernels of one server.

    Args:
        services: The services of the handlers.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[str, Kernel] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self.started = datetime.now(UTC)

    async def start(self, caller: Principal, name: str | None, envs: Mapping[str, str]) -> Kernel:
        """Starts a kernel for a caller.

        Raises:
            InvalidArgumentError: The kernel spec does not exist.
            QuotaError: The caller already has the maximum number of sandboxes.
        """
        backend = self._services.backend_for(caller)
        spec = await asyncio.to_thread(find_spec, name)
        info = await backend.create(
            SandboxSpec(
                template=spec.template,
                limits=_limits(caller),
                envs={name: value for name, value in envs.items() if name not in _NOT_PASSED_ON},
                metadata={**DIALECT_LABEL, NAME_LABEL: spec.name},
                # The server's maximum; a forgotten kernel ends by the idle timeout.
                timeout_seconds=self._services.settings.max_sandbox_seconds,
                idle_timeout_seconds=IDLE_SECONDS,
            )
        )
        try:
            return await self._restore(backend, info, spec)
        except BaseException:
            await backend.kill(info.id, wait=False)
            raise

    async def find(self, caller: Principal, kernel_id: str) -> Kernel:
        """Returns a caller's kernel.

        Raises:
            SandboxNotFoundError: The caller has no kernel with this id.
        """
        if not _KERNEL_ID.fullmatch(kernel_id):
            raise SandboxNotFoundError(sandbox_id=kernel_id)

        sandbox_id = kernel_id.replace("-", "")
        backend = self._services.backend_for(caller)
        try:
            info = await backend.info(sandbox_id)
        except SandboxClosedError:
            self._forget(sandbox_id)
            raise

        if not _is_kernel(info):
            raise SandboxNotFoundError(sandbox_id=kernel_id)

        return self._known.get(sandbox_id) or await self._find_again(backend, info)

    async def all_of(self, caller: Principal) -> list[Kernel]:
        """Returns a caller's kernels, the oldest first."""
        backend = self._services.backend_for(caller)
        found = []

        for info in await backend.list(caller.key_id):
            if _is_kernel(info):
                # A kernel that ends at this moment is left out.
                with suppress(*_GONE):
                    found.append(self._known.get(info.id) or await self._find_again(backend, info))

        return found

    async def _find_again(self, backend: Backend, info: SandboxInfo) -> Kernel:
        """Returns a kernel that an earlier server process has started."""
        name = info.metadata.get(NAME_LABEL, DEFAULT_SPEC)
        try:
            spec = await asyncio.to_thread(find_spec, name)
        except InvalidArgumentError:
            # Its template was removed since, which does not affect it.
            spec = KernelSpec(name=name, template=info.template)

        return await self._restore(backend, info, spec)

    async def _restore(self, backend: Backend, info: SandboxInfo, spec: KernelSpec) -> Kernel:
        context_id = await context_for(backend, info.id, spec.language)

        # A concurrent request may have added it meanwhile.
        if (known := self._known.get(info.id)) is not None:
            return known

        kernel = Kernel(_kernel_id(info.id), info.id, spec, context_id)
        self._known[info.id] = kernel
        watch = asyncio.create_task(self._watch(kernel, backend))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return kernel

    async def _watch(self, kernel: Kernel, backend: Backend) -> None:
        """Waits for the end of its sandbox, and keeps it from being idle while it has clients."""
        while kernel.state != "dead":
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                info = await backend.info(kernel.sandbox_id)

                if len(kernel.audience) and info.state == "running":
                    await backend.context_call(kernel.sandbox_id, ListContexts())
            except _GONE:
                break
            except FumehoodError as error:
                events.KERNEL_UNSEEN.log(kernel_id=kernel.id, reason=error.code)

        self._forget(kernel.sandbox_id)

    def _forget(self, sandbox_id: str) -> None:
        if (kernel := self._known.pop(sandbox_id, None)) is not None:
            kernel.die()


def _limits(caller: Principal) -> Limits:
    """Returns the default limits with those that notebooks need, each within what the caller may have."""
    wanted = {"wall_seconds": CELL_SECONDS, "result_count": CELL_RESULTS}
    maxima = caller.policy.max_limits
    ordinary = Limits()
    names = {*wanted, *maxima}
    fitted: dict[str, float] = {}

    for name in names:
        value = wanted.get(name, getattr(ordinary, name))
        least = min(math.inf if value is None else value, maxima.get(name, math.inf))
        fitted[name] = int(least) if BOUNDS[name].whole else least

    return Limits(**fitted)  # type: ignore[arg-type]  # whole where it must be


def _is_kernel(info: SandboxInfo) -> bool:
    return all(info.metadata.get(name) == value for name, value in DIALECT_LABEL.items())


def _kernel_id(sandbox_id: str) -> str:
    """Returns an id of five parts, as the routes of Jupyter's own servers expect it."""
    ends = (8, 12, 16, 20)
    starts = (0, *ends)
    return "-".join(sandbox_id[start:end] for start, end in zip(starts, (*ends, None), strict=True))
