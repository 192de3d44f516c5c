"""Signed URLs of files: they name no sandbox, so the living sandbox whose token signed them is searched for.

A caller without a valid signature learns only that no sandbox fits; and however many requests arrive, one list of the
sandboxes is made at a time.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from fumehood.dialects.e2b.answers import sandbox_answer
from fumehood.dialects.e2b.envd import Envd, signed_path
from fumehood.dialects.e2b.tokens import SandboxTokens, SignedPath
from fumehood.errors import FumehoodError, UnauthenticatedError
from fumehood.port.backend import Backend


class SignedFiles:
    """Finds the sandbox that a URL was signed for, and answers for it.

    Args:
        backend: The sandboxes of all keys.
        tokens: Their tokens.
        envd: Answers for their daemons.
    """

    def __init__(self, backend: Backend, tokens: SandboxTokens, envd: Envd) -> None:
        self._living = _Living(backend)
        self._tokens = tokens
        self._envd = envd

    async def answer(self, request: Request) -> Response:
        """Answers a request by a signed URL."""
        signed = signed_path(request)
        assert signed is not None, "the route takes signed URLs alone"

        try:
            signed.check_form()
            signed.check_time()
            sandbox_id = await self._signer(signed)
        except FumehoodError as error:
            return sandbox_answer(error, "")

        return await self._envd.answer(request, sandbox_id)

    async def _signer(self, signed: SignedPath) -> str:
        for sandbox_id in await self._living.ids():
            if self._tokens.is_signed(sandbox_id, signed):
                return sandbox_id

        raise UnauthenticatedError(reason="no living sandbox has signed this URL")


class _Living:
    """Lists the living sandboxes, once for all requests of the same time.

    A request gets a list that was begun after it arrived: a sandbox that lives when the request arrives is in it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._alone = asyncio.Lock()
        # Numbers of lists: the last one begun, and the one that filled `_ids`.
        self._begun = 0
        self._listed = 0
        self._ids: tuple[str, ...] = ()

    async def ids(self) -> tuple[str, ...]:
        before = self._begun

        async with self._alone:
            if self._listed <= before:
                self._begun += 1
                self._ids = tuple([info.id for info in await self._backend.list()])
                self._listed = self._begun

            return self._ids
