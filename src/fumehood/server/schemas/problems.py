"""What a refusal looks like: problem details, for every route alike."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fumehood.server.problems import MEDIA_TYPE


class Problem(BaseModel):
    """Why a request was not done (RFC 9457), with a stable `code` for programs."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What failed, with the value.")
    code: str = Field(description="Stable name of the kind of error.")
    hint: str = Field(description="The way out, or empty.")
    outcome_unknown: bool = Field(description="True when it may or may not have happened.")
    request_id: str
    fields: dict[str, Any] = Field(description="The values that the message is made of.")


_MEANINGS = {
    400: "The request is malformed.",
    401: "There is no token, or none that this server knows.",
    403: "The key may not do this.",
    404: "There is no such thing, or it is not the caller's.",
    409: "The state of the thing does not allow it.",
    410: "The sandbox has ended.",
    413: "The request is too large.",
    421: "The server does not answer to that Host.",
    422: "A value is not allowed.",
    429: "The key has used up what it may use.",
    500: "The server failed.",
    502: "What runs inside did not answer as it should.",
    503: "There is no room, or the host does not answer.",
    504: "It took too long.",
    507: "The sandbox's disk is full.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns descriptions of refusals, for a route's `responses`."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": _MEANINGS[status], "model": Problem, "content": {MEDIA_TYPE: schema}}
        for status in statuses
    }


# What any route may answer.
PROBLEMS = problems(400, 401, 403, 404, 409, 410, 413, 421, 422, 429, 500, 502, 503, 504, 507)
