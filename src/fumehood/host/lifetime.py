"""The time of one sandbox: when it is over, and what happens then.

Runs in the host process, on the engine's loop. It counts by the sandbox's own clock, which a pause stops; the
times of day that it reports are for people.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from fumehood.backends.requests import SandboxSpec
from fumehood.host.clock import Timer
from fumehood.host.live_sandbox import LiveSandbox
from fumehood.host.pausing import pause_or_end
from fumehood.host.unawaited import keep
from fumehood.models import SandboxInfo, SandboxState
from fumehood.runtimes.base import Guest


class Lifetime:
    """A sandbox that was handed out, with its time.

    Args:
        sandbox: The sandbox.
        spec: What it should be.
        pause: Pauses it.
        parent_id: The sandbox that it was forked from.
    """

    def __init__(
        self,
        sandbox: LiveSandbox,
        spec: SandboxSpec,
        pause: Callable[[], Awaitable[object]],
        parent_id: str | None = None,
    ) -> None:
        self.parent_id = parent_id
        self.sandbox = sandbox
        self.spec = spec
        self._pause = pause
        self._started_at = datetime.now(UTC)
        self._timer: Timer | None = None
        self._idle_timer: Timer | None = None
        self._armed_at = self._started_at
        self._stood_still_seconds = 0.0
        self.set_timeout(spec.timeout_seconds)
        self._watch_idleness()

    @property
    def info(self) -> SandboxInfo:
        """What its owner may know of it."""
        spec, sandbox = self.spec, self.sandbox
        state: SandboxState = "paused" if sandbox.pausing.is_paused else "running"
        return SandboxInfo(
            id=sandbox.id,
            template=spec.template_name,
            state=state if sandbox.alive else "ending",
            started_at=self._started_at,
            ends_at=self._ends_at(),
            limits=spec.limits,
            isolation=sandbox.egress.describe(sandbox.guest.isolation),
            idle_timeout_seconds=spec.idle_timeout_seconds,
            metadata=spec.metadata,
            owner=spec.owner,
            on_timeout=spec.on_timeout,
            auto_resume=spec.auto_resume,
            network=sandbox.egress.network,
            pause=sandbox.pausing.report,
            parent_id=self.parent_id,
            generation=sandbox.guest.generation,
            own_interpreter=sandbox.own_interpreter,
        )

    @property
    def tenant(self) -> str:
        """The owner on whose behalf it runs; its own id where there is none."""
        return self.spec.owner or self.sandbox.id

    @property
    def weighted_guest(self) -> Guest:
        """The guest whose CPU weight can be halved."""
        return self.sandbox.guest

    def set_timeout(self, timeout_seconds: float | None) -> None:
        """Lets it live for so long from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

        clock = self.sandbox.clock
        self.spec = replace(self.spec, timeout_seconds=timeout_seconds)
        self._armed_at = datetime.now(UTC)
        self._stood_still_seconds = clock.stood_still_seconds

        if timeout_seconds is not None:
            self._timer = clock.call_later(timeout_seconds, self._time_over)

    def close(self) -> None:
        """It has ended by itself, or was ended."""
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()

    def _ends_at(self) -> datetime | None:
        """When its time is over, as things are: of a paused one, never."""
        if self._timer is None or self.spec.timeout_seconds is None or self.sandbox.clock.is_stopped:
            return None

        paused_seconds = self.sandbox.clock.stood_still_seconds - self._stood_still_seconds
        return self._armed_at + timedelta(seconds=self.spec.timeout_seconds + paused_seconds)

    def _time_over(self) -> None:
        if self.spec.on_timeout == "kill":
            self.sandbox.end("expired")
            return

        # When it is resumed, it has its time once more.
        self.set_timeout(self.spec.timeout_seconds)
        keep(pause_or_end(self._pause, partial(self.sandbox.end, "expired")))

    def _watch_idleness(self) -> None:
        """Sets the timer to when it will have been idle for long enough, if nobody uses it until then."""
        allowed = self.spec.idle_timeout_seconds

        if allowed is None:
            return

        sandbox = self.sandbox
        left = allowed - sandbox.idle_seconds

        if left <= 0:
            sandbox.end("idle")
            return

        self._idle_timer = sandbox.clock.call_later(left, self._watch_idleness)
