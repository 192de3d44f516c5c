"""Authentication of the daemon's callers: by the kernel's credentials of the peer, without a token."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fumehood.daemon.socket import is_trusted
from fumehood.log import events
from fumehood.log.request_ids import note_key
from fumehood.server.admission import admit_caller
from fumehood.server.authenticator import Authenticator
from fumehood.server.principal import OWNER_ID, Principal


class PeerProtocol(HttpToolsProtocol):
    """HTTP on connections of trusted peers; connections of others are closed before a byte is read."""

    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Checks the peer of a new connection."""
        self._is_refused = not is_trusted(transport.get_extra_info("socket"))

        if self._is_refused:
            events.PEER_REFUSED.log()
            transport.abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the connection, if its peer was trusted."""
        if not self._is_refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses bytes of a trusted peer."""
        if not self._is_refused:
            super().data_received(data)

    def eof_received(self) -> Any:
        """Handles the end of the peer's bytes."""
        return None if self._is_refused else super().eof_received()


class PeerAuthenticator(Authenticator):
    """Authenticates every caller as the owner: connections of other users were closed."""

    async def authenticate(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the owner, and admits the caller; the token is not read."""
        admit_caller()
        note_key(OWNER_ID)
        return Principal(key_id=OWNER_ID)

    async def look(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the owner; the token is not read."""
        return Principal(key_id=OWNER_ID)

    async def signer(self, key_id: str) -> Principal:
        """Returns the owner, and admits the caller, whatever the key."""
        admit_caller()
        note_key(OWNER_ID)
        return Principal(key_id=OWNER_ID)
