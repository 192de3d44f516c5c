"""Problem details (RFC 9457): the one form of every refusal and failure.

The bodies themselves are written by `fumehood.server.problems`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fumehood.server.problems import MEDIA_TYPE


class Problem(BaseModel):
    """The reason of a refused or failed request (RFC 9457)."""

    type: str = Field(description="The kind of problem, as a URN.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The status.")
    detail: str = Field(description="What failed, with the value.")
    code: str = Field(description="Stable name of the kind of problem, for programs.")
    hint: str = Field(description="The way out, or nothing.")
    outcome_unknown: bool = Field(description="True when the act may or may not have happened.")
    request_id: str = Field(description="The request's name in the server's log.")
    fields: dict[str, Any] = Field(description="The values behind `detail`, by name.")


_MEANINGS = {
    400: "The body cannot be read at all.",
    401: "No token came with the request, or one that is not known.",
    403: "The key may not do that, or the sandbox's user may not.",
    404: "There is no such thing, or another key owns it.",
    408: "The rest of the request did not come.",
    409: "It cannot be done as things are: something is there already, is paused, or is under way.",
    410: "The sandbox lived here and has ended; `fields.reason` says why.",
    413: "More was sent, or asked for, than is allowed.",
    416: "The file has no such range.",
    422: "An argument was refused before anything was done.",
    429: "The key has used up what it may use.",
    502: "The sandbox's guest gave no proper answer.",
    503: "There is no room, or what keeps the sandboxes does not answer; `Retry-After` says when to try again.",
    504: "It took longer than was allowed.",
    507: "The sandbox's disk is full.",
}
_REFERENCE = {"$ref": "#/components/schemas/Problem"}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the entries of a route's `responses` for the problems that it may return."""
    return {
        status: {"description": _MEANINGS[status], "content": {MEDIA_TYPE: {"schema": _REFERENCE}}}
        for status in statuses
    }
