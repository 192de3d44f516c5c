"""The port of shares: read-only views of sandboxes, for a backend whose server can publish them.

Only the client of a server implements it: a sandbox of this process has no web page that others could open.
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
            QuotaError: The key already has the maximum number of shares.
        """

    @abstractmethod
    async def list_shares(self, sandbox_id: str) -> tuple[Share, ...]:
        """Return the shares of a sandbox that have not ended, the newest first, without their addresses."""

    @abstractmethod
    async def revoke_share(self, share_id: str) -> None:
        """End a share and the connections of its readers; does nothing if it has ended."""
