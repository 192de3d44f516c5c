"""Families: who is in one, and that nothing else is looked at for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fumehood.engine import family
from fumehood.engine.family import Families
from fumehood.engine.listing import Listed


class Box:
    """A sandbox as a list needs it, which counts how often it is described."""

    def __init__(self, name: str, parent_id: str | None = None, *, minute: int = 0) -> None:
        self.id = name
        self.parent_id = parent_id
        self.started_at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
        self.spec = SimpleNamespace(owner="key")
        self.described = 0

    @property
    def sandbox(self) -> Any:
        self.described += 1
        recorder = SimpleNamespace(last_outcome="ok", count=1)
        return SimpleNamespace(recorder=recorder, alive=True, pausing=SimpleNamespace(is_paused=False))


def listed(box: Box) -> Listed:
    return cast("Listed", box)


def ids(families: Families, box: Box, *living: Box) -> list[str]:
    found = families.of(listed(box), {one.id: listed(one) for one in living})
    assert {one.owner for one in found.items} == {"key"}
    return [one.id for one in found.items]


def test_a_family_is_walked_and_no_stranger_is_described() -> None:
    """Over members that have ended; a stranger, alive or ended, costs nothing."""
    families = Families()
    root, ended = Box("root"), Box("ended", "root", minute=1)
    late, early = Box("late", "root", minute=3), Box("early", "root", minute=2)
    grandchild = Box("grandchild", "ended", minute=4)
    stranger, fork = Box("stranger"), Box("fork", "stranger")
    families.note_end(listed(ended), "ended", "killed")
    families.note_end(listed(Box("gone", "stranger")), "gone", "killed")
    living = (root, late, early, grandchild, stranger, fork)

    for member in (root, late, grandchild):
        assert ids(families, member, *living) == ["root", "ended", "early", "late", "grandchild"]

    assert (stranger.described, fork.described) == (0, 0)
    assert ids(families, fork, *living) == ["stranger", "fork", "gone"]


def test_so_many_that_have_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ended first is forgotten, also as a fork; one whose place is taken is there once."""
    monkeypatch.setattr(family, "_REMEMBERED", 2)
    families, root = Families(), Box("root")

    for name in ("a", "b", "c"):
        families.note_end(listed(Box(name, "root")), name, "killed")

    assert ids(families, root, root) == ["root", "b", "c"]
    assert ids(families, root, root, Box("c", "root", minute=1)) == ["root", "b", "c"]
    families.forget("b")
    families.forget("c")
    assert ids(families, root, root) == ["root"]
    assert families._ended_forks == {}
