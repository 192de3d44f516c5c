"""The port of shares: what a backend can do besides sandboxes when its server hands on views of them.

Only the client of a server implements it: a sandbox of this process has no page at which others could look on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from fumehood.values.shares import MakeShare, Share


class Sharing(ABC):
    """A backend whose sandboxes can be shared."""

    @abstractmethod
    async def make_share(self, request: MakeShare) -> Share:
        """Make a read-only view of a sandbox, and return it with its address.

        Raises:
            ForbiddenError: The server or the key has no shares.
            QuotaError: The key has the maximum number already.
        """

    @abstractmethod
    async def list_shares(self, sandbox_id: str) -> tuple[Share, ...]:
        """Return the shares of a sandbox that have not ended, the newest first, without their addresses."""

    @abstractmethod
    async def revoke_share(self, share_id: str) -> None:
        """End a share, and what its readers have open; does nothing if it has ended."""
