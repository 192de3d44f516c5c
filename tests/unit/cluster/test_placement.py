from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from fumehood.cluster.placement import Placement, Report, Wish
from fumehood.errors import CapacityError
from fumehood.values.sandbox import Capacity

GIB = 1 << 30


def report(host_id: str, **figures: object) -> Report:
    in_report = {name: figures.pop(name) for name in tuple(figures) if name in Report.__dataclass_fields__}
    capacity = Capacity(
        sandboxes=0,
        max_sandboxes=100,
        memory_available_bytes=16 * GIB,
        memory_total_bytes=16 * GIB,
        cpu_cores=4.0,
        load=0.0,
        host_id=host_id,
        incarnation="aaaaaa",
        version="1",
    )
    return Report(capacity=replace(capacity, **figures), **in_report)  # type: ignore[arg-type]


def placement(*reports: Report) -> Placement:
    made = Placement(Random(7))

    for one in reports:
        made.note(one)

    return made


def test_the_cheaper_of_two_machines_is_taken() -> None:
    machines = placement(report("busyaa", load=4.0), report("idleaa"))
    assert machines.choose(Wish()) == "idleaa"


@pytest.mark.parametrize(
    "worse",
    [
        {"load": 3.0},
        {"sandboxes": 90},
        {"memory_available_bytes": 2 * GIB},
        {"key_sandboxes": {"key": 40}, "sandboxes": 40},
        {"templates": frozenset()},
        {"pool_ready": 0},
    ],
)
def test_each_figure_counts(worse: dict[str, object]) -> None:
    good: dict[str, object] = {"templates": frozenset({"data"}), "pool_ready": 4}
    wish = Wish(owner="key", template="data")

    for names in (("goodaa", "worsea"), ("worsea", "goodaa")):
        figures = {"goodaa": good, "worsea": {**good, **worse}}
        machines = placement(*(report(name, **figures[name]) for name in names))
        assert machines.choose(wish) == "goodaa"


def test_a_burst_between_two_reports_is_spread() -> None:
    names = [f"host{number:02}" for number in range(10)]
    machines = placement(*map(report, names))
    placed = Counter(machines.choose(Wish()) for _ in range(400))
    assert set(placed) == set(names)
    assert max(placed.values()) - min(placed.values()) <= 8


def test_a_report_replaces_what_was_counted() -> None:
    machines = placement(report("onlyaa", max_sandboxes=2))
    machines.choose(Wish())
    machines.choose(Wish())

    with pytest.raises(CapacityError):
        machines.choose(Wish())

    machines.note(report("onlyaa", max_sandboxes=2, sandboxes=1))
    assert machines.choose(Wish()) == "onlyaa"


def test_labels_and_draining_exclude_a_machine() -> None:
    machines = placement(
        report("eastaa", labels={"zone": "east"}),
        report("westaa", labels={"zone": "west"}),
        report("westbb", labels={"zone": "west"}, is_draining=True),
    )
    assert {machines.choose(Wish(labels={"zone": "west"})) for _ in range(20)} == {"westaa"}

    with pytest.raises(CapacityError, match="0 of 0 places on the cluster's machines with zone=north"):
        machines.choose(Wish(labels={"zone": "north"}))


def test_the_last_machine_with_room_is_found_among_many() -> None:
    full = [report(f"f{number:05}", sandboxes=100) for number in range(500)]
    machines = placement(*full, report("freeaa"))
    assert machines.choose(Wish()) == "freeaa"


def test_memory_that_was_promised_is_not_promised_again() -> None:
    machines = placement(report("onlyaa", memory_available_bytes=3 * GIB))
    machines.choose(Wish(memory_bytes=2 * GIB))

    with pytest.raises(CapacityError):
        machines.choose(Wish(memory_bytes=2 * GIB))


def test_a_host_that_has_just_refused_is_passed_over() -> None:
    machines = placement(report("oneaaa"), report("twoaaa"))
    assert {machines.choose(Wish(), but=["oneaaa"]) for _ in range(10)} == {"twoaaa"}

    with pytest.raises(CapacityError):
        machines.choose(Wish(), but=["oneaaa", "twoaaa"])


def test_a_machine_that_is_gone_gets_nothing() -> None:
    machines = placement(report("oneaaa"), report("twoaaa"))
    machines.forget("oneaaa")
    machines.forget("never0")
    assert list(machines.machines) == ["twoaaa"]
    assert {machines.choose(Wish()) for _ in range(10)} == {"twoaaa"}


def test_an_empty_cluster_has_no_room() -> None:
    with pytest.raises(CapacityError, match="0 of 0 places"):
        placement().choose(Wish())
