"""Pages of a list of sandboxes: in order, without gaps or repetitions, and without describing all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.engine.listing import Listing
from fumehood.errors import InvalidArgumentError
from fumehood.values.looking import ListSandboxes
from fumehood.values.requests import SandboxSpec

BEGIN = datetime(2026, 11, 26, tzinfo=UTC)


class Item:
    """A sandbox of which only its place in a list is real; it counts how often it is described."""

    described = 0

    def __init__(self, number: int, **spec: Any) -> None:
        self.id = f"s{number:05d}"
        self.spec = SandboxSpec(**{"owner": f"key{number % 3}", **spec})
        self.started_at = BEGIN + timedelta(seconds=number // 2)
        self.parent_id: str | None = None
        self.sandbox: Any = SimpleNamespace(alive=True, pausing=SimpleNamespace(is_paused=number % 2 == 0))
        self.ends_at: datetime | None = BEGIN + timedelta(hours=5, seconds=-number) if number % 4 else None

    @property
    def info(self) -> Any:
        Item.described += 1
        return self.id

    @property
    def use(self) -> Any:
        return "use"


def ids(listing: Listing[Any], request: ListSandboxes) -> list[str]:
    """All pages, one after the other."""
    found: list[str] = []

    while True:
        page = listing.page(request)
        found += [str(item.info) for item in page.items]

        if page.next_cursor is None:
            return found

        assert len(page.items) == request.limit
        request = replace(request, cursor=page.next_cursor)


def filled(count: int) -> tuple[Listing[Any], list[Item]]:
    items = [Item(number) for number in range(count)]
    listing: Listing[Any] = Listing()

    for item in sorted(items, key=lambda item: hash(item.id)):
        listing.add(item)

    return listing, items


def test_each_order_gives_each_sandbox_once() -> None:
    listing, items = filled(25)
    names = [item.id for item in items]
    assert ids(listing, ListSandboxes(limit=4)) == names
    assert ids(listing, ListSandboxes(limit=4, order="-started")) == names[::-1]
    by_end = sorted(items, key=lambda item: (item.ends_at is None, item.ends_at or BEGIN, item.id))
    assert ids(listing, ListSandboxes(limit=4, order="ends")) == [item.id for item in by_end]


def test_filters_hold_together() -> None:
    listing, items = filled(24)
    items[4].spec = replace(items[4].spec, metadata={"team": "Blue"})
    items[5].parent_id = "s00001"
    items[7].sandbox.alive = False
    assert ids(listing, ListSandboxes(owner="key1", limit=3)) == [
        item.id for item in items[1::3] if item.sandbox.alive
    ]
    assert ids(listing, ListSandboxes(text="TEAM=bl")) == ["s00004"]
    assert ids(listing, ListSandboxes(parent_id="s00001")) == ["s00005"]
    assert ids(listing, ListSandboxes(labels={"team": "Blue"})) == ["s00004"]
    assert len(ids(listing, ListSandboxes(state="paused"))) == 12
    assert "s00007" not in ids(listing, ListSandboxes())
    assert ids(listing, ListSandboxes(owner="nobody")) == []


def test_what_is_made_or_ends_between_two_pages_moves_nothing() -> None:
    listing, items = filled(10)
    first = listing.page(ListSandboxes(limit=4))
    listing.remove(items[3])
    listing.remove(items[6])
    listing.remove(items[6])
    # Under another id, as one that takes the place of its parent.
    listing.remove(items[8])
    items[8].id = "t"
    listing.add(items[8])
    listing.add(Item(10))
    rest = ids(listing, ListSandboxes(limit=4, cursor=first.next_cursor))
    assert rest == ["s00004", "s00005", "s00007", "s00009", "t", "s00010"]
    listing.remove(items[8])
    assert "t" not in ids(listing, ListSandboxes())


def test_a_page_describes_what_is_on_it() -> None:
    """Of 3,000 sandboxes the five of a page, in every order."""
    listing, _ = filled(3000)

    for order in ("started", "-started", "ends"):
        before = Item.described
        assert len(listing.page(ListSandboxes(limit=5, order=order)).items) == 5  # type: ignore[arg-type]
        assert Item.described - before == 5


@pytest.mark.parametrize("cursor", ["x", "eA==", "é", "MS4w IHMw"])
def test_a_cursor_of_nothing_is_refused(cursor: str) -> None:
    listing, _ = filled(2)

    with pytest.raises(InvalidArgumentError, match="cursor"):
        listing.page(ListSandboxes(cursor=cursor))
