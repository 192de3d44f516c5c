"""Which sandboxes have their CPU weight halved, by usage, requests and tenants."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fumehood.engine import cpu_fairness
from fumehood.engine.cpu_fairness import CpuFairness


@dataclass(eq=False)
class Metered:
    """A sandbox and its guest; what it has used is set by the test."""

    tenant: str
    used: float | None = 0.0
    weights: list[bool] = field(default_factory=list)

    @property
    def weighted_guest(self) -> Metered:
        return self

    def used_cpu_seconds(self) -> float | None:
        return self.used

    def halve_cpu_weight(self, halved: bool) -> None:
        self.weights.append(halved)


async def _read_twice(sandboxes: list[Metered], spends: dict[int, float], requests: dict[int, int]) -> None:
    """Let two readings happen, three seconds apart by the loop's clock, with usage and requests between them."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    loop.time = lambda: now  # type: ignore[method-assign]
    fairness = CpuFairness({str(index): sandbox for index, sandbox in enumerate(sandboxes)})
    try:
        fairness.note_request(sandboxes[0])
        await asyncio.sleep(0)

        for index, seconds in spends.items():
            sandboxes[index].used = (sandboxes[index].used or 0.0) + seconds

        now += 3.0

        for index, count in requests.items():
            for _ in range(count):
                fairness.note_request(sandboxes[index])

        await asyncio.sleep(0)
    finally:
        fairness.close()
        del loop.time


def read_twice(sandboxes: list[Metered], spends: dict[int, float], requests: dict[int, int]) -> None:
    """Run it in a loop of its own."""
    asyncio.run(_read_twice(sandboxes, spends, requests))


@pytest.fixture(autouse=True)
def _contended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a figure of the kernel's, processors count as contended."""
    monkeypatch.setattr(cpu_fairness, "_PRESSURE", "/nonexistent")


@pytest.mark.parametrize(
    ("tenants", "requests", "halved"),
    [
        pytest.param(("a", "b"), {1: 100}, True, id="short requests of another tenant"),
        pytest.param(("a", "a"), {1: 100}, False, id="short requests of the same tenant"),
        pytest.param(("a", "b"), {0: 100}, False, id="its own requests"),
        pytest.param(("a", "b"), {0: 1000, 1: 100}, False, id="many short requests of both"),
    ],
)
def test_which_sandboxes_are_halved(tenants: tuple[str, str], requests: dict[int, int], halved: bool) -> None:
    """A second of CPU time in three, for few requests of its own, beside short requests of another tenant."""
    sandboxes = [Metered(tenant) for tenant in tenants]
    read_twice(sandboxes, {0: 1.0, 1: 0.1}, requests)
    assert sandboxes[0].weights == ([True] if halved else [])
    assert sandboxes[1].weights == []


def test_two_long_computations_keep_their_weights() -> None:
    """Neither of them waits for a short turn."""
    sandboxes = [Metered("a"), Metered("b")]
    read_twice(sandboxes, {0: 1.0, 1: 0.9}, {0: 1, 1: 1})
    assert sandboxes[0].weights == sandboxes[1].weights == []


def test_without_a_count_of_cpu_time_nothing_is_changed() -> None:
    """As where the host may write no control group."""
    sandboxes = [Metered("a", None), Metered("b", None)]
    read_twice(sandboxes, {}, {1: 100})
    assert sandboxes[0].weights == sandboxes[1].weights == []


def test_without_contention_nothing_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pressure figure that does not grow; the test above without it is the control."""
    monkeypatch.setattr(cpu_fairness, "_waited_seconds", lambda: 5.0)
    sandboxes = [Metered("a"), Metered("b")]
    read_twice(sandboxes, {0: 1.0, 1: 0.1}, {1: 100})
    assert sandboxes[0].weights == []
