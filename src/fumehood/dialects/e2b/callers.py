"""The authenticated caller, and the backend as that caller may see it.

On the control plane the caller is the holder of the API key. In a sandbox it is the holder of the sandbox's token, and
acts for the key that the sandbox belongs to, within that key's limits, on that sandbox alone; when a key is revoked or
expires, the tokens of its sandboxes end too.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import Request

from fumehood.errors import KeyNotFoundError, UnauthenticatedError
from fumehood.port.backend import Backend
from fumehood.server.principal import OWNER_ID, Principal
from fumehood.server.services import Services
from fumehood.values.sandbox import SandboxInfo

_REMEMBERED = 10_000
_FRESH_SECONDS = 5.0
_PREFIX = "e2b_"


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller on the control plane, and its backend."""

    principal: Principal
    backend: Backend


class Callers:
    """Authenticates the callers of a server.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[str, tuple[Principal, float]] = OrderedDict()

    async def of_key(self, request: Request) -> Caller:
        """Returns the holder of the API key of a request.

        Raises:
            UnauthenticatedError: The key is missing or not known.
            ForbiddenError: The key may not use sandboxes.
        """
        principal = await self._holder(_token_of(request))
        principal.require("sandboxes")
        return Caller(principal, self._services.backend_for(principal))

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Returns the description of a sandbox, without checking its owner.

        Raises:
            SandboxNotFoundError: There is no such sandbox; SandboxClosedError, there was one.
        """
        return await self._services.backend.info(sandbox_id)

    async def _holder(self, token: str | None) -> Principal:
        """Returns the holder of a token, in its own form or in that of E2B's clients."""
        authenticator = self._services.authenticator

        try:
            return await authenticator.authenticate(token)
        except UnauthenticatedError:
            if (meant := read_key(token or "")) is None:
                raise

        return await authenticator.authenticate(meant)

    async def backend_of(self, sandbox_id: str) -> Backend:
        """Returns the backend for the holder of a sandbox's token, which has been checked.

        Raises:
            SandboxNotFoundError: There is no such sandbox; SandboxClosedError, there was one.
            UnauthenticatedError: The key of its owner is not valid any more.
        """
        owner = await self._services.owners.owner_of(sandbox_id)
        return self._services.backend_for(await self._principal(owner))

    async def _principal(self, key_id: str) -> Principal:
        if key_id in ("", OWNER_ID):
            return Principal(key_id=OWNER_ID)

        principal, until = self._known.get(key_id, (None, 0.0))

        if principal is None or not 0 <= until - time.monotonic() <= _FRESH_SECONDS:
            principal = await self._ask(key_id)
            self._known[key_id] = principal, time.monotonic() + _FRESH_SECONDS
            self._known.move_to_end(key_id)

            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

        return principal

    async def _ask(self, key_id: str) -> Principal:
        try:
            record = await self._services.keys.get(key_id)
        except KeyNotFoundError:
            raise UnauthenticatedError(reason="the sandbox's key is gone") from None

        ends = record.policy.expires_at

        if record.revoked_at is not None or (ends is not None and ends <= time.time()):
            self._known.pop(key_id, None)
            raise UnauthenticatedError(reason="the sandbox's key has expired or was revoked")

        principal = Principal(key_id=record.id, scopes=frozenset(record.scopes), policy=record.policy)
        principal.require("sandboxes")
        return principal


def read_key(token: str) -> str | None:
    """Returns the token that one in the form of E2B stands for: some of its clients insist on `e2b_` and hex."""
    try:
        return bytes.fromhex(token[len(_PREFIX) :]).decode("ascii") if token.startswith(_PREFIX) else None
    except ValueError:
        return None


def _token_of(request: Request) -> str | None:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return request.headers.get("x-api-key") or (value.strip() if kind.lower() == "bearer" else None)
