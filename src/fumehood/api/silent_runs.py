"""Code of fumehood itself that runs in a user's context: it prepares a program, and is no cell of the user's.

Runs in the user's process and uses only the backend port. What runs here is in no record, no history and no count, but
in the audit record, as all code. It must never run code that the user has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.portal import call
from fumehood.values.requests import ExecuteRequest

if TYPE_CHECKING:
    from fumehood.api.async_sandbox import AsyncSandbox
    from fumehood.api.sandbox import Sandbox
    from fumehood.values.execution import Execution


async def arun_silently(sandbox: AsyncSandbox, code: str) -> Execution:
    """Run Python in the default context of a sandbox without recording or counting it as a cell."""
    handle = sandbox._sandbox_handle
    return await handle.backend.run(handle.id, ExecuteRequest(code=code, silent=True))


def run_silently(sandbox: Sandbox, code: str) -> Execution:
    """Run Python like `arun_silently`, in a program without a loop."""
    return call(arun_silently, sandbox._async, code)
