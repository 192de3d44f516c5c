"""Shares of a sandbox: `sandbox.shares`, asynchronous and synchronous.

Runs in the user's process and uses only the port of shares, which a server's client implements. The address of a
share opens it without further rights: it is returned once, and never logged.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from fumehood.api.handle import SandboxHandle
from fumehood.errors import InvalidArgumentError
from fumehood.port.sharing import Sharing
from fumehood.tracebacks import PlainErrors
from fumehood.values.requests import DEFAULT_CONTEXT_ID
from fumehood.values.sandbox import ContextInfo
from fumehood.values.shares import DAY_SECONDS, MakeShare, Share, SharedPart

SharedParts: TypeAlias = Sequence[SharedPart]
ShareList: TypeAlias = builtins.list[Share]


class AsyncShares(PlainErrors):
    """The shares of a `Sandbox` of a server: read-only views of it, for people without an account."""

    def __init__(self, sandbox_handle: SandboxHandle) -> None:
        self._sandbox_handle = sandbox_handle

    async def create(
        self,
        shows: SharedParts = ("record",),
        *,
        context: ContextInfo | str = DEFAULT_CONTEXT_ID,
        seconds: int = DAY_SECONDS,
        from_at: datetime | None = None,
        until_at: datetime | None = None,
    ) -> Share:
        """Share the sandbox, and return the share with its address in `url`.

        Everyone with that address can open it in a browser, live and without an account. Viewing changes nothing: it
        resumes no sandbox and extends no lifetime.

        Args:
            shows: The parts that it shows: `record` (code and outputs), `variables`, `files`, `audit`, `network`.
            context: The only context that it shows. `network`, which concerns the whole sandbox, is allowed only with
                the default context.
            seconds: How long the share lasts, from a minute to 30 days; a day unless given.
            from_at: Executions that began before this time are hidden; None hides none. It must have a time zone.
            until_at: Executions that ended after this time are hidden; None shows the sandbox live. Not for `variables`
                and `files`.

        Raises:
            InvalidArgumentError: An argument is refused, or the sandbox does not live at a server.
            ForbiddenError: The server has shares switched off, or the key may make none.
            QuotaError: The key already has 200 shares.
        """
        request = MakeShare(
            sandbox_id=self._sandbox_handle.id,
            shows=shows,
            context_id=context.id if isinstance(context, ContextInfo) else context,
            seconds=seconds,
            from_at=from_at,
            until_at=until_at,
        )
        return await _sharing(self._sandbox_handle).make_share(request)

    async def list(self) -> ShareList:
        """Return the shares of the sandbox that have not ended, the newest first; their `url` is empty.

        Raises:
            InvalidArgumentError: The sandbox does not live at a server.
        """
        return [*await _sharing(self._sandbox_handle).list_shares(self._sandbox_handle.id)]

    async def revoke(self, share: Share | str) -> None:
        """End a share, and its readers' connections within two seconds; does nothing if it has ended.

        Args:
            share: The share, or its id.

        Raises:
            InvalidArgumentError: The sandbox does not live at a server.
        """
        await _sharing(self._sandbox_handle).revoke_share(share.id if isinstance(share, Share) else share)


def _sharing(handle: SandboxHandle) -> Sharing:
    backend = handle.plain_backend

    if not isinstance(backend, Sharing):
        raise InvalidArgumentError(
            field="url",
            value=...,
            allowed="the address of the server that the sandbox lives at, or FUMEHOOD_URL: only a server shows it to "
            "others",
        )

    return backend
