"""A migration that fails reports its cause, whichever of its callers is the first to see it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from tests.tied import tied

from fumehood.errors import ForkError
from fumehood.runtimes.namespaces import migration
from fumehood.runtimes.namespaces.seccomp_notify import RefusedCalls


def test_both_forks_that_one_process_claims_to_move_to_fail_for_that() -> None:
    """The second caller kills the process: the first must not report only that it has ended."""

    async def claim_twice(pid: int) -> None:
        origin = RefusedCalls({}, lambda name, number: None)
        source = migration.MigrationSource(lambda number: True, origin, lambda pidfd: None)
        pidfd = os.pidfd_open(pid)
        try:
            # The target is not reached.
            first = asyncio.ensure_future(migration._lead_over(pid, pidfd, source, None))  # type: ignore[arg-type]
            await asyncio.sleep(0)

            with pytest.raises(ForkError, match="it moves to another one"):
                origin.expect_migrator(pid)

            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

            with pytest.raises(ForkError, match="it moves to another one"):
                await first
        finally:
            os.close(pidfd)

        # The number may be used again.
        assert not origin.is_claimed_twice(pid)

    with subprocess.Popen(tied([sys.executable, "-c", "input()"]), stdin=subprocess.PIPE) as process:
        try:
            asyncio.run(claim_twice(process.pid))
        finally:
            process.kill()
