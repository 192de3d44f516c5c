"""New sandboxes, once for each idempotency key.

Only the sandbox's id is stored for a key: its tokens are made again for a repeated request.
"""

from __future__ import annotations

import json
import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.cancellation import complete
from fumehood.dialects.e2b.bodies import whole_body
from fumehood.dialects.e2b.callers import Caller
from fumehood.dialects.e2b.fields import read_object
from fumehood.dialects.e2b.new_sandbox import read_spec
from fumehood.dialects.e2b.sandbox_words import our_template, sandbox_data
from fumehood.dialects.e2b.snapshots import Snapshots
from fumehood.dialects.e2b.tokens import SandboxTokens
from fumehood.errors import FumehoodError, IdempotencyConflictError, InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.server.allowance import most_network
from fumehood.server.settings import ServerSettings
from fumehood.storage.idempotency import (
    Begun,
    Idempotency,
    OtherRequest,
    StillRunning,
    StoredReply,
    digest_of,
)
from fumehood.values.sandbox import SandboxInfo

_KEY = re.compile(r"[a-z0-9-]{1,255}", re.ASCII)


class Creation:
    """Makes sandboxes.

    Args:
        idempotency: The store of earlier requests.
        tokens: The sandboxes' tokens.
        settings: The settings of the server.
        snapshots: The snapshots that a sandbox can be made from.
    """

    def __init__(
        self, idempotency: Idempotency, tokens: SandboxTokens, settings: ServerSettings, snapshots: Snapshots
    ) -> None:
        self._idempotency = idempotency
        self._tokens = tokens
        self._snapshots = snapshots
        self._settings = settings
        self._domain = settings.domain
        self._are_ports_public = bool(settings.domain) and settings.public_ports

    async def create(self, request: Request, caller: Caller) -> Response:
        """Makes a sandbox, or returns the one that was made for the same idempotency key."""
        body = await whole_body(request)
        key = request.headers.get("idempotency-key", "")
        info = await (self._create_once(key, body, caller) if key else self._create(body, caller))
        return JSONResponse(sandbox_data(info, self._tokens, self._domain), 201)

    async def _create(self, body: bytes, caller: Caller) -> SandboxInfo:
        fields = read_object(body)

        if not (template := fields.text("templateID")):
            raise InvalidArgumentError(field="templateID", value=template, allowed="the name of a template")

        policy = caller.principal.policy
        most = most_network(self._settings, policy)
        spec = read_spec(fields, policy, most, are_ports_public=self._are_ports_public)

        if our_template(template) == template and (found := await self._snapshots.find(template, caller)):
            return await self._snapshots.load(found, spec, caller)

        return await caller.backend.create(spec)

    async def _create_once(self, key: str, body: bytes, caller: Caller) -> SandboxInfo:
        if not _KEY.fullmatch(key):
            raise InvalidArgumentError(
                field="Idempotency-Key",
                value=key,
                allowed="1 to 255 of lower-case letters, digits and hyphens",
            )

        digest = digest_of((b"e2b create", body))
        answer = await self._idempotency.begin(caller.principal.key_id, key, digest)

        if isinstance(answer, Begun):
            return await self._create_first(answer, body, caller)

        if isinstance(answer, StoredReply) and answer.body:
            return await caller.backend.info(str(json.loads(answer.body)["sandboxID"]))

        reason = "nobody can say whether its request was done"

        if isinstance(answer, StillRunning):
            reason = "its request is still under way"
        elif isinstance(answer, OtherRequest):
            reason = "it was used for another request"

        raise IdempotencyConflictError(key=key, reason=reason)

    async def _create_first(self, begun: Begun, body: bytes, caller: Caller) -> SandboxInfo:
        try:
            info = await self._create(body, caller)
        except FumehoodError as error:
            # If nothing was made for certain, the same key may be used again.
            end = self._idempotency.lose if error.outcome_unknown else self._idempotency.withdraw
            await end(begun)
            raise
        except BaseException:
            await complete(self._idempotency.lose(begun))
            raise

        stored = json.dumps({"sandboxID": info.id}).encode()

        try:
            await self._idempotency.finish(begun, status=201, headers={}, body=stored)
        except StorageError as error:
            # The sandbox was made, and its id must not be lost because storing it failed.
            events.ANSWER_NOT_KEPT.log(reason=error.reason)

        return info
