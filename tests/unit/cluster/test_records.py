"""Pages of records that are merged from those of machines: nothing is passed over, and nothing comes twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fumehood.cluster.records import merged_records
from fumehood.values.codec import DataError
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation, SandboxInfo

_BEGAN = datetime(2026, 11, 27, tzinfo=UTC)
_INFO = SandboxInfo(
    id="",
    template="default",
    state="ending",
    started_at=_BEGAN,
    ends_at=None,
    limits=Limits(),
    isolation=Isolation(level="namespaces"),
)


def ended(name: str, second: float) -> EndedSandbox:
    """A sandbox that ended then."""
    return EndedSandbox(
        sandbox=replace(_INFO, id=name), ended_at=_BEGAN + timedelta(seconds=second), reason="killed"
    )


class Machine:
    """Records of a machine, which gives so many of them for a page at most."""

    def __init__(self, *items: EndedSandbox, most: int = 100) -> None:
        self.items = sorted(items, key=lambda item: (item.ended_at, item.id), reverse=True)
        self.most = most

    def page(self, request: ListRecords) -> RecordList:
        """What a machine answers."""
        left = [item for item in self.items if request.before is None or place(item) < split(request.before)]
        shown = left[: min(request.limit, self.most)]
        cursor = None if len(shown) == len(left) else "{}.{}".format(*place(shown[-1]))
        return RecordList(is_kept=True, items=tuple(shown), next_cursor=cursor)


def place(item: EndedSandbox) -> tuple[int, str]:
    """The place of a record in the order of ends, as its machine counts it."""
    return round(item.ended_at.timestamp() * 1_000_000), item.id


def split(cursor: str) -> tuple[int, str]:
    """The place that a cursor names."""
    at, _, name = cursor.partition(".")
    return int(at), name


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_have_each_record_once_in_order(limit: int) -> None:
    """Whatever a page holds, and though one machine gives less for a page than was asked for."""
    first = Machine(*(ended(f"a{second}", second) for second in (0, 1, 2, 50, 51)), most=2)
    second = Machine(*(ended(f"b{second}", second) for second in (1, 3.000001, 20, 52)))
    seen: list[str] = []
    cursor: str | None = None

    while True:
        request = ListRecords(limit=limit, before=cursor)
        page = merged_records(request, [machine.page(request) for machine in (first, second, Machine())])
        assert page.is_kept
        assert len(page.items) <= limit
        seen += [item.id for item in page.items]

        if (cursor := page.next_cursor) is None:
            break

    assert seen == ["b52", "a51", "a50", "b20", "b3.000001", "a2", "b1", "a1", "a0"]


def test_no_machine_keeps_records() -> None:
    """Then the server says that it keeps none."""
    assert merged_records(ListRecords(), [RecordList(is_kept=False)]) == RecordList(is_kept=False)


def test_a_cursor_of_a_machine_that_is_none() -> None:
    """It is refused, as all that does not fit."""
    with pytest.raises(DataError):
        merged_records(ListRecords(), [RecordList(is_kept=True, next_cursor="x")])


def test_machines_that_do_not_answer_are_named() -> None:
    """In the order of their names, beside the records of the others."""
    there = Machine(ended("a", 1))
    request = ListRecords()
    left_out = [RecordList(is_kept=False, left_out_hosts=(name,)) for name in ("later", "first")]
    page = merged_records(request, [left_out[0], there.page(request), left_out[1]])
    assert (page.is_kept, page.left_out_hosts) == (True, ("first", "later"))
    assert [item.id for item in page.items] == ["a"]
