"""Answers one request of E2B's clients, with any error turned into a body that they understand.

An unexpected error becomes such a body and a line in the log; a refusal is sent when the client has sent its body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.dialects.e2b.answers import fault_answer
from fumehood.dialects.e2b.bodies import Inbox
from fumehood.server.incoming import IngressRefusalError
from fumehood.server.problems import request_id_of

_FIRST_REFUSAL = 400


async def answered(
    scope: Scope, receive: Receive, send: Send, handler: Callable[[Request], Awaitable[Response]]
) -> None:
    """Calls a handler and returns its response; answers its errors."""
    inbox = Inbox(receive)
    request = Request(scope, inbox, send)

    try:
        response = await handler(request)
    except (ClientDisconnect, IngressRefusalError):
        # Handled by the ingress.
        raise
    except Exception as error:  # noqa: BLE001 - the clients understand bodies of their own kind alone
        response = fault_answer(request_id_of(request), error)

    if response.status_code >= _FIRST_REFUSAL:
        await inbox.empty()

    await response(scope, inbox, send)
