"""Quick traits behave as those of traitlets: whoever watches is told, what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
from traitlets import HasTraits, TraitError

from fumehood_guest.context.fast_traits import QuickInteger, QuickUnicode


class _Counter(HasTraits):
    count = QuickInteger(1)
    label = QuickUnicode("")


def test_a_value_that_nobody_watches_is_kept() -> None:
    counter = _Counter()
    counter.count = 2
    assert (counter.count, _Counter().count) == (2, 1)


@pytest.mark.parametrize("names", ["count", ["count", "label"], None])
def test_who_watches_is_reported(names: Any) -> None:
    counter = _Counter()
    seen: list[tuple[str, object, object]] = []

    def note(change: Any) -> None:
        seen.append((change.name, change.old, change.new))

    watching = {} if names is None else {"names": names}
    counter.observe(note, **watching)
    counter.count = 5
    counter.unobserve(note, **watching)
    counter.count = 6

    assert seen == [("count", 1, 5)]
    assert counter.count == 6


@pytest.mark.parametrize(("name", "value"), [("count", "2"), ("count", None), ("label", 3)])
def test_what_does_not_fit_is_refused(name: str, value: object) -> None:
    counter = _Counter()

    with pytest.raises(TraitError):
        setattr(counter, name, value)
