"""Waits until the engine's pool of ready sandboxes is full, so that its work falls on neither side.

Runs in the measuring process. FUMEHOOD_POOL_SIZE decides before that process starts what the pool holds.
"""

from __future__ import annotations

from fumehood.assemble import local_backend
from fumehood.portal import call


def wait_until_full() -> None:
    """Return when the default template has as many ready sandboxes as it should."""
    call(local_backend().wait_warm)
