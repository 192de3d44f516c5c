"""The list of a caller's sandboxes: filters, order, pages.

Pure functions. A page's token says where the last page ended, so nothing is remembered between pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import QueryParams

from fumehood.dialects.e2b.sandbox_words import given_metadata, our_template, state_of, template_of
from fumehood.errors import InvalidArgumentError
from fumehood.values.sandbox import SandboxInfo

_MAX_PAGE = 100
_STATES = ("running", "paused")
# The position of a sandbox in the list.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """The parameters of a list request.

    Attributes:
        states: running, paused or both.
        metadata: Labels that a sandbox must have.
        template: The template, by any of its names; empty for all.
        started_after: Only sandboxes that were started then or later.
        is_ascending: The oldest first.
        limit: How many at most.
        after: The place of the last sandbox of the page before.
    """

    states: tuple[str, ...] = _STATES
    metadata: tuple[tuple[str, str], ...] = ()
    template: str = ""
    started_after: datetime | None = None
    is_ascending: bool = False
    limit: int = _MAX_PAGE
    after: Place | None = None


def read_query(query: QueryParams) -> ListQuery:
    """Returns the parameters in a query.

    Raises:
        InvalidArgumentError: A part of it has no sense.
    """
    states = tuple(state for value in query.getlist("state") for state in value.split(",") if state)

    if unknown := [state for state in states if state not in _STATES]:
        raise InvalidArgumentError(field="state", value=unknown[0], allowed="running or paused")

    order = query.get("order", "desc")

    if order not in ("asc", "desc"):
        raise InvalidArgumentError(field="order", value=order, allowed="asc or desc")

    return ListQuery(
        states=states or _STATES,
        metadata=tuple(read_metadata(query.get("metadata", ""))),
        template=query.get("template", ""),
        started_after=_time(query.get("startedAfter", "")),
        is_ascending=order == "asc",
        limit=_limit(query.get("limit", "")),
        after=_place(query.get("nextToken", "")),
    )


def read_metadata(text: str) -> Iterable[tuple[str, str]]:
    """Returns the labels of a filter, whose names and values are quoted twice."""
    return ((unquote(name), unquote(value)) for name, value in parse_qsl(text, keep_blank_values=True))


def page_of(infos: Iterable[SandboxInfo], query: ListQuery) -> tuple[list[SandboxInfo], str]:
    """Returns a page, and the token of the next one; empty when there is none."""
    chosen = sorted(
        (info for info in infos if _fits(info, query)), key=_place_of, reverse=not query.is_ascending
    )

    if query.after is not None:
        chosen = [info for info in chosen if _is_behind(info, query.after, query.is_ascending)]

    page = chosen[: query.limit]
    return page, _token(page[-1]) if len(chosen) > len(page) else ""


def token_headers(token: str) -> dict[str, str]:
    """Returns the header with the next page's token; no header on the last page, where an empty one is a token too."""
    return {"x-next-token": token} if token else {}


def _fits(info: SandboxInfo, query: ListQuery) -> bool:
    metadata = given_metadata(info)
    return (
        info.state != "ending"
        and state_of(info) in query.states
        and all(metadata.get(name) == value for name, value in query.metadata)
        and (not query.template or query.template == template_of(info) or _is_own_name(info, query.template))
        and (query.started_after is None or info.started_at >= query.started_after)
    )


def _is_own_name(info: SandboxInfo, name: str) -> bool:
    """Tells whether `name` is our own name of its template, rather than one of E2B's for the default one."""
    return name == info.template and our_template(name) == name


def _place_of(info: SandboxInfo) -> Place:
    return info.started_at.astimezone(UTC).isoformat(timespec="microseconds"), info.id


def _is_behind(info: SandboxInfo, after: Place, is_ascending: bool) -> bool:
    place = _place_of(info)
    return place > after if is_ascending else place < after


def _token(info: SandboxInfo) -> str:
    return base64.urlsafe_b64encode("|".join(_place_of(info)).encode()).decode()


def _place(token: str) -> Place | None:
    if not token:
        return None

    try:
        started, name = base64.b64decode(token, b"-_", validate=True).decode().split("|")
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(field="nextToken", value=token, allowed="the token of a page") from None

    return started, name


def _limit(text: str) -> int:
    if not text:
        return _MAX_PAGE

    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_PAGE:
        raise InvalidArgumentError(field="limit", value=text, allowed=f"a number from 1 to {_MAX_PAGE}")

    return int(text)


def _time(text: str) -> datetime | None:
    if not text:
        return None

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(field="startedAfter", value=text, allowed="a time of ISO 8601") from None

    return time if time.tzinfo else time.replace(tzinfo=UTC)
