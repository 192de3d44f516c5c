"""The lifetime of a sandbox that was handed out: its timers, and its description for its owner.

It ends or pauses the sandbox when its time is over or it was idle for too long. It never makes sandboxes, and never
checks the rights of a caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from fumehood.cancellation import keep
from fumehood.engine.clock import Timer
from fumehood.engine.looking import use_of
from fumehood.engine.pause import pause_or_end
from fumehood.engine.sandbox import LiveSandbox
from fumehood.runtimes.base import Guest
from fumehood.values.looking import SandboxUse
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import SandboxInfo, SandboxState


class Lifetime:
    """A sandbox that was handed out, with its timers.

    Args:
        sandbox: The sandbox.
        spec: The caller's request.
        pause: Pauses it.
        parent_id: The sandbox that it was forked from.
    """

    def __init__(
        self,
        sandbox: LiveSandbox,
        spec: SandboxSpec,
        pause: Callable[..., Awaitable[object]],
        parent_id: str | None = None,
    ) -> None:
        self.parent_id = parent_id
        self.sandbox = sandbox
        self.spec = spec
        self._pause = pause
        # Called when its time was changed.
        self.on_change: Callable[[], None] = lambda: None
        self.started_at = datetime.now(UTC)
        self._timer: Timer | None = None
        self._idle_timer: Timer | None = None
        self._armed_at = self.started_at
        self._stood_still_seconds = 0.0
        self.set_timeout(spec.timeout_seconds)
        self._watch_idleness()

    @property
    def info(self) -> SandboxInfo:
        """The description for its owner."""
        spec, sandbox = self.spec, self.sandbox
        state: SandboxState = "paused" if sandbox.pausing.is_paused else "running"
        return SandboxInfo(
            id=sandbox.id,
            template=spec.template_name,
            state=state if sandbox.alive else "ending",
            started_at=self.started_at,
            ends_at=self._ends_at(),
            limits=spec.limits,
            isolation=sandbox.served_ports.describe(sandbox.egress.describe(sandbox.guest.isolation)),
            idle_timeout_seconds=spec.idle_timeout_seconds,
            metadata=spec.metadata,
            owner=spec.owner,
            on_timeout=spec.on_timeout,
            on_host_loss=spec.on_host_loss,
            auto_resume=spec.auto_resume,
            network=sandbox.egress.network,
            pause=sandbox.pausing.report,
            parent_id=self.parent_id,
            generation=sandbox.guest.generation,
            own_interpreter=sandbox.own_interpreter,
            languages=sandbox.languages,
        )

    @property
    def use(self) -> SandboxUse:
        """Its current usage and activity."""
        return use_of(self.sandbox)

    @property
    def id(self) -> str:
        """Its id."""
        return self.sandbox.id

    @property
    def ends_at(self) -> datetime | None:
        """When its lifetime will be over; None while it is paused, or if its lifetime is not limited."""
        return self._ends_at()

    @property
    def tenant(self) -> str:
        """The owner for which the sandbox runs; the sandbox's own id if it has no owner."""
        return self.spec.owner or self.sandbox.id

    @property
    def weighted_guest(self) -> Guest:
        """The guest whose CPU weight can be halved."""
        return self.sandbox.guest

    def set_timeout(self, timeout_seconds: float | None) -> None:
        """Sets the remaining lifetime."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

        clock = self.sandbox.clock
        self.spec = replace(self.spec, timeout_seconds=timeout_seconds)
        self._armed_at = datetime.now(UTC)
        self._stood_still_seconds = clock.stood_still_seconds

        if timeout_seconds is not None:
            self._timer = clock.call_later(timeout_seconds, self._time_over)

        self.on_change()

    def close(self) -> None:
        """Cancels the timers, after the sandbox's end."""
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()

    def _ends_at(self) -> datetime | None:
        """Returns when its time will be over; None while it is paused."""
        if self._timer is None or self.spec.timeout_seconds is None or self.sandbox.clock.is_stopped:
            return None

        paused_seconds = self.sandbox.clock.stood_still_seconds - self._stood_still_seconds
        return self._armed_at + timedelta(seconds=self.spec.timeout_seconds + paused_seconds)

    def _time_over(self) -> None:
        if self.spec.on_timeout == "kill":
            self.sandbox.end("expired")
            return

        # After a resume, it has the whole time again.
        self.set_timeout(self.spec.timeout_seconds)
        pause = partial(self._pause, files_only=self.spec.on_timeout == "pause_files")
        keep(pause_or_end(pause, partial(self.sandbox.end, "expired")))

    def _watch_idleness(self) -> None:
        """Sets the timer to the earliest moment at which it can have been idle for long enough."""
        allowed = self.spec.idle_timeout_seconds

        if allowed is None:
            return

        sandbox = self.sandbox
        left = allowed - sandbox.idle_seconds

        if left <= 0:
            sandbox.end("idle")
            return

        self._idle_timer = sandbox.clock.call_later(left, self._watch_idleness)
