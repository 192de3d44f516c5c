"""Pages of records of sandboxes that have ended, merged from those of all machines.

Runs in the server process; it only computes. Each machine gives a page from the same place in the order of ends on. A
machine with more records has given all of its records down to the place in its `next_cursor`; older ones are not known
yet, so the merged page ends there and skips none.
"""

from __future__ import annotations

from collections.abc import Iterable

from fumehood.values.codec import DataError
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList

_Place = tuple[int, str]


def merged_records(request: ListRecords, pages: Iterable[RecordList]) -> RecordList:
    """Returns one page merged from the pages of all machines, the latest end first.

    Raises:
        DataError: A page has a malformed cursor.
    """
    found = [*pages]
    ends = [_place_of(page.next_cursor) for page in found if page.next_cursor is not None]
    known_to = max(ends, default=None)
    placed = sorted(
        ((_place(item), item) for page in found for item in page.items),
        key=lambda one: one[0],
        reverse=True,
    )
    known = [(place, item) for place, item in placed if known_to is None or place >= known_to]
    shown = known[: request.limit]
    last = known_to

    if len(shown) < len(known):
        last = shown[-1][0]

    return RecordList(
        is_kept=any(page.is_kept for page in found),
        items=tuple(item for _, item in shown),
        next_cursor=None if last is None else f"{last[0]}.{last[1]}",
        left_out_hosts=tuple(sorted(host_id for page in found for host_id in page.left_out_hosts)),
    )


def _place(item: EndedSandbox) -> _Place:
    return round(item.ended_at.timestamp() * 1_000_000), item.id


def _place_of(cursor: str) -> _Place:
    at, _, name = cursor.partition(".")

    try:
        return int(at), name
    except ValueError:
        raise DataError("the cursor of a page of records is malformed") from None
