"""Signed URLs of files: they name no sandbox, so the one whose token signed them is looked for among those that live.

Runs in the server process. Who has no signature learns nothing: that no sandbox fits is all that is said.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fumehood.backends.base import Backend
from fumehood.compat.e2b.answers import sandbox_answer
from fumehood.compat.e2b.envd import Envd, signed_path
from fumehood.compat.e2b.tokens import SandboxTokens, SignedPath
from fumehood.errors import FumehoodError
from fumehood.service_errors import UnauthenticatedError


class SignedFiles:
    """Finds the sandbox that a URL was signed for, and has it answer.

    Args:
        backend: Everybody's sandboxes.
        tokens: Their tokens.
        envd: Answers for their daemons.
    """

    def __init__(self, backend: Backend, tokens: SandboxTokens, envd: Envd) -> None:
        self._backend = backend
        self._tokens = tokens
        self._envd = envd

    async def answer(self, request: Request) -> Response:
        """Answers a request by a signed URL."""
        signed = signed_path(request)
        assert signed is not None, "the route takes signed URLs alone"

        try:
            signed.check_time()
            sandbox_id = await self._signer(signed)
        except FumehoodError as error:
            return sandbox_answer(error, "")

        return await self._envd.answer(request, sandbox_id)

    async def _signer(self, signed: SignedPath) -> str:
        for info in await self._backend.list():
            if self._tokens.is_signed(info.id, signed):
                return info.id

        raise UnauthenticatedError(reason="no living sandbox has signed this URL")
