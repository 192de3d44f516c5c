"""Log entries about the sandboxes of a host: which ones were made, refused or ended, and why.

It never logs code, output or variables, and never changes what happens to a sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from fumehood.engine.lifetime import Lifetime
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import CapacityError, FumehoodError, InvalidArgumentError, IsolationUnavailableError
from fumehood.log import events
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import SandboxInfo

# Ends that are faults.
_FAILURES = frozenset({"protocol_violation", "out_of_memory", "died", "policy", "excess"})


@contextmanager
def logged_refusals(spec: SandboxSpec, forked_id: str | None = None) -> Iterator[None]:
    """Logs why a sandbox or a fork could not be made."""
    try:
        yield
    except CapacityError as error:
        events.ADMISSION_REFUSED.log(
            owner=spec.owner or None, resource=error.resource, used=error.used, maximum=error.maximum
        )
        raise
    except (IsolationUnavailableError, InvalidArgumentError):
        # The first is logged where it was found; the second is a mistake of the caller, and shows what was given.
        raise
    except FumehoodError as error:
        if forked_id is not None:
            events.FORK_FAILED.log(sandbox_id=forked_id, code=error.code, reason=error.log_reason)
        else:
            events.SANDBOX_NOT_CREATED.log(
                template=spec.template_name,
                owner=spec.owner or None,
                code=error.code,
                reason=error.log_reason,
            )

        raise


def log_creation(info: SandboxInfo, seconds: float) -> None:
    """Logs that a sandbox or a fork was handed out."""
    events.SANDBOX_CREATED.log(
        sandbox_id=info.id,
        template=info.template,
        isolation_level=info.isolation.level,
        owner=info.owner or None,
        parent_id=info.parent_id,
        duration_seconds=seconds,
    )


def log_end(sandbox: LiveSandbox, lifetime: Lifetime | None) -> None:
    """Logs how a sandbox ended; a sandbox without a lifetime was never handed out."""
    reason, rule = sandbox.end_cause

    if lifetime is None:
        # A sandbox that was ended on purpose before it was handed out has an event of its own, or none.
        if reason in _FAILURES:
            events.SANDBOX_WASTED.log(sandbox_id=sandbox.id, reason=reason, rule=rule)

        return

    spec, seconds = lifetime.spec, (datetime.now(UTC) - lifetime.started_at).total_seconds()
    owner = spec.owner or None

    if reason in _FAILURES:
        events.SANDBOX_FAILED.log(
            sandbox_id=sandbox.id,
            template=spec.template_name,
            owner=owner,
            reason=reason,
            rule=rule,
            lifetime_seconds=seconds,
        )
    else:
        events.SANDBOX_ENDED.log(
            sandbox_id=sandbox.id,
            template=spec.template_name,
            owner=owner,
            reason=reason,
            lifetime_seconds=seconds,
        )
