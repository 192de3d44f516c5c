"""Whether a sandbox of a caller can reach anything outside.

Runs in the process of the MCP server. Off unless it was asked for when the sandbox was made.
"""

from __future__ import annotations

from fumehood import AsyncSandbox


def has_network(sandbox: AsyncSandbox) -> bool:
    """Tell whether a sandbox was made with a network."""
    return False
