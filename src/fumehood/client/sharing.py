"""The client of a server's shares: each verb is one request.

Runs in the caller's process; `HttpBackend` checks the answers.
"""

from __future__ import annotations

from typing import Any

from fumehood.values.codec import DataError, read_value
from fumehood.values.plain_data import as_data
from fumehood.values.shares import MakeShare, Share

SHARES = "/v1/shares"


def share_body(request: MakeShare) -> Any:
    """Returns the body that asks for a share."""
    return as_data(request)


def read_made_share(answer: Any) -> Share:
    """Returns a share that was just made, with its address.

    Raises:
        DataError: The answer does not describe a share.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("share"), dict):
        raise DataError("Share: it has no share")

    return read_value(Share, {**answer["share"], "url": answer.get("url")})


def read_shares(answer: Any) -> tuple[Share, ...]:
    """Returns the shares of a list.

    Raises:
        DataError: An item of the answer does not describe a share.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
        raise DataError("Share: it has no items")

    return tuple(read_value(Share, item) for item in answer["items"])
