"""The last checks before a sandbox or its forks are handed out; a sandbox that fails one of them is ended.

A caller never learns the id of a sandbox that did not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fumehood import failpoints
from fumehood.cancellation import wait_shared
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import ForkError, IsolationUnavailableError, SandboxStartError
from fumehood.values.requests import SandboxSpec


@contextmanager
def all_or_none(forks: Sequence[LiveSandbox]) -> Iterator[None]:
    """Ends all forks if the block fails, so that all of them are handed out or none."""
    try:
        # A fork that has ended already would never be reported.
        if not all(fork.alive for fork in forks):
            raise ForkError(step="hand them out", reason="one of them has ended")

        yield
    except BaseException as error:
        for fork in forks:
            fork.end("killed")

        if isinstance(error, SandboxStartError):
            raise ForkError(step=error.step, reason=error.reason, logged=error.log_reason) from None

        raise


async def check_hand_out(spec: SandboxSpec, sandbox: LiveSandbox) -> None:
    """Checks a sandbox right before the hand-out, and ends it if a check fails."""
    try:
        await failpoints.reach("create.hand_out", sandbox)
        await _check_strict(spec, sandbox)
    except BaseException:
        sandbox.end("killed")
        raise


async def _check_strict(spec: SandboxSpec, sandbox: LiveSandbox) -> None:
    """Ends a sandbox that lacks a layer of isolation if its caller requires all layers."""
    missing = sandbox.guest.isolation.missing

    if not spec.strict or not missing:
        return

    sandbox.end("killed")
    await wait_shared(sandbox.guest.ended)
    raise IsolationUnavailableError(
        layer=", ".join(layer.name for layer in missing),
        reason="; ".join(layer.why for layer in missing),
        how_to_get_it="run `fumehood doctor`, or leave `strict` away and read `get_info().isolation`",
    )
