"""`python -m benchmarks.simulate_cluster`: the real placement code on modelled machines, 10, 100 and 1,000 of them.

What is real: `fumehood.cluster.placement`, one object for each of four servers, and the time that its calls take. What
is modelled: a machine is a queue before its processors, its figures reach a server twice a second, and a tenth of the
machines dies at once without a word. Nothing of it measures a sandbox. The same seed gives the same figures, except for
the times of calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from pathlib import Path
from random import Random

from fumehood.cluster.placement import Placement, Report, Wish
from fumehood.errors import CapacityError
from fumehood.values.sandbox import Capacity

_CORES = 4
_MAX_SANDBOXES = 64
_RUN_SECONDS = 0.2
_REPORT_SECONDS = 0.5
# A machine whose reports stay away for so long gets no more sandboxes.
_SILENCE_SECONDS = 2.0
_SERVERS = 4
_TRIES = 3
_MEMORY_BYTES = 32 << 30
_SANDBOX_BYTES = 64 << 20
RUNS_OF_MACHINE = _CORES / _RUN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one simulated cluster.

    Attributes:
        machines: How many machines it has at the beginning.
        offered: Runs that were asked for, as a share of what all machines can do.
        runs_per_second: Runs that ended, for each second.
        refused: Runs that were refused because no room was found.
        wait_p50_seconds: How long a run waits for a processor.
        wait_p99_seconds: The same, p99.
        random_wait_p99_seconds: The same with machines drawn at random.
        choice_p50_microseconds: How long the real code takes to choose a machine.
        choice_p99_microseconds: The same, p99.
        lost: Runs that were in machines which died.
        sent_to_dead: Runs that were sent to a dead machine before its silence was noticed.
        wait_p99_after_seconds: How long a run waits after the death was noticed, p99.
    """

    machines: int
    offered: float
    runs_per_second: float
    refused: int
    wait_p50_seconds: float
    wait_p99_seconds: float
    random_wait_p99_seconds: float
    choice_p50_microseconds: float
    choice_p99_microseconds: float
    lost: int = 0
    sent_to_dead: int = 0
    wait_p99_after_seconds: float = 0.0


class _Host:
    """A modelled machine: runs wait in one line for its processors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.free_at = [0.0] * _CORES
        self.ends: list[float] = []
        self.died_at: float | None = None
        heapify(self.free_at)

    def living(self, now: float) -> int:
        """Returns how many runs are there, and drops those that have ended."""
        while self.ends and self.ends[0] <= now:
            heappop(self.ends)

        return len(self.ends)

    def begin(self, now: float, seconds: float) -> tuple[float, float]:
        """Takes a run, and returns when it begins and when it ends."""
        start = max(now, self.free_at[0])
        heapreplace(self.free_at, start + seconds)
        heappush(self.ends, start + seconds)
        return start, start + seconds

    def report(self, now: float) -> Report:
        """Returns the figures of this moment."""
        living = self.living(now)
        return Report(
            capacity=Capacity(
                sandboxes=living,
                max_sandboxes=_MAX_SANDBOXES,
                memory_available_bytes=_MEMORY_BYTES - living * _SANDBOX_BYTES,
                memory_total_bytes=_MEMORY_BYTES,
                cpu_cores=_CORES,
                load=float(living),
                host_id=self.name,
                incarnation="aaaaaa",
                version="0",
                pool_ready=4,
            )
        )


class _Cluster:
    """One simulated cluster.

    Args:
        machines: How many machines it has.
        at_random: Whether machines are drawn at random instead of by the real code.
        seed: Of all draws.
    """

    def __init__(self, machines: int, *, at_random: bool, seed: int) -> None:
        self.random = Random(seed)
        self.hosts = [_Host(f"{number:06}") for number in range(machines)]
        self.by_name = {host.name: host for host in self.hosts}
        self.servers = [Placement(Random(seed + number)) for number in range(_SERVERS)]
        self.at_random = at_random
        self.choices: list[float] = []
        self.waits: list[tuple[float, float]] = []
        self.spans: list[tuple[float, float, str]] = []
        self.refused = 0
        self.sent_to_dead = 0

        for server in self.servers:
            for host in self.hosts:
                server.note(host.report(0.0))

    def run(self, seconds: float, offered: float, *, tenth_dies_at: float | None = None) -> None:
        """Sends runs to the cluster for a while."""
        rate = offered * RUNS_OF_MACHINE * len(self.hosts)
        reports = [(self.random.random() * _REPORT_SECONDS, number) for number in range(len(self.hosts))]
        heapify(reports)
        now = 0.0

        while (now := now + self.random.expovariate(rate)) < seconds:
            if tenth_dies_at is not None and now >= tenth_dies_at:
                for host in self.hosts[::10]:
                    host.died_at = tenth_dies_at

                tenth_dies_at = None

            while reports[0][0] <= now:
                due, number = reports[0]
                self._report(self.hosts[number], due)
                heapreplace(reports, (due + _REPORT_SECONDS, number))

            self._place(now)

    def _report(self, host: _Host, now: float) -> None:
        for server in self.servers:
            if host.died_at is None:
                server.note(host.report(now))
            elif now - host.died_at >= _SILENCE_SECONDS:
                server.forget(host.name)

    def _place(self, now: float) -> None:
        server = self.random.choice(self.servers)
        refused: list[str] = []

        for _ in range(_TRIES):
            try:
                host = self._choose(server, refused)
            except CapacityError:
                break

            if host.died_at is not None:
                self.sent_to_dead += 1
                return

            if host.living(now) < _MAX_SANDBOXES:
                start, end = host.begin(now, self.random.expovariate(1 / _RUN_SECONDS))
                self.waits.append((now, start - now))
                self.spans.append((now, end, host.name))
                return

            refused.append(host.name)

        self.refused += 1

    def _choose(self, server: Placement, refused: list[str]) -> _Host:
        if self.at_random:
            return self.random.choice(self.hosts)

        began = time.perf_counter()
        name = server.choose(Wish(memory_bytes=_SANDBOX_BYTES), but=refused)
        self.choices.append(time.perf_counter() - began)
        return self.by_name[name]


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def simulate(machines: int, *, seconds: float, offered: float, seed: int = 1) -> Outcome:
    """Simulates a cluster in which nothing dies, by the real code and at random, and returns its figures."""
    cluster = _Cluster(machines, at_random=False, seed=seed)
    cluster.run(seconds, offered)
    random = _Cluster(machines, at_random=True, seed=seed)
    random.run(seconds, offered)
    # The first second fills the machines.
    waits = [wait for at, wait in cluster.waits if at >= 1.0]
    ended = sum(1.0 <= end < seconds for _, end, _ in cluster.spans)
    return Outcome(
        machines=machines,
        offered=offered,
        runs_per_second=ended / (seconds - 1.0),
        refused=cluster.refused,
        wait_p50_seconds=_percentile(waits, 0.5),
        wait_p99_seconds=_percentile(waits, 0.99),
        random_wait_p99_seconds=_percentile([wait for at, wait in random.waits if at >= 1.0], 0.99),
        choice_p50_microseconds=_percentile(cluster.choices, 0.5) * 1e6,
        choice_p99_microseconds=_percentile(cluster.choices, 0.99) * 1e6,
    )


def simulate_death(machines: int, *, seconds: float, offered: float, seed: int = 1) -> Outcome:
    """Simulates a cluster of which a tenth dies at a third of the time, and returns its figures."""
    died_at = seconds / 3
    noticed_at = died_at + _SILENCE_SECONDS + _REPORT_SECONDS
    cluster = _Cluster(machines, at_random=False, seed=seed)
    cluster.run(seconds, offered, tenth_dies_at=died_at)
    dead = {host.name for host in cluster.hosts if host.died_at is not None}
    outcome = simulate(machines, seconds=died_at, offered=offered, seed=seed)
    return replace(
        outcome,
        refused=cluster.refused,
        lost=sum(name in dead and at < died_at < end for at, end, name in cluster.spans),
        sent_to_dead=cluster.sent_to_dead,
        wait_p99_after_seconds=_percentile([wait for at, wait in cluster.waits if at >= noticed_at], 0.99),
    )


def draw(steady: Sequence[Outcome], loads: Sequence[Outcome], path: Path) -> None:
    """Draws the curves: throughput by machines, and the wait by load."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.loglog(
        [one.machines for one in steady], [one.runs_per_second for one in steady], "o-", color="#0f8a7a"
    )
    left.set(xlabel="machines", ylabel="runs a second", title="Throughput, 120 % offered")
    offered = [one.offered * 100 for one in loads]
    right.plot(
        offered, [one.wait_p99_seconds * 1000 for one in loads], "o-", color="#0f8a7a", label="two choices"
    )
    right.plot(
        offered, [one.random_wait_p99_seconds * 1000 for one in loads], "s--", color="#c2410c", label="random"
    )
    right.set(
        xlabel="offered load (%)",
        ylabel="wait for a processor, p99 (ms)",
        title="100 machines",
        yscale="symlog",
    )
    right.legend(frameon=False)
    figure.savefig(path, format="png", dpi=90)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the simulations, prints their figures, and returns the exit code: 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_cluster", description=__doc__)
    parser.add_argument(
        "--machines", type=int, nargs="+", default=[10, 100, 1000], help="sizes of the clusters"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="simulated seconds of each")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--picture", type=Path, help="draw the curves into this PNG file")
    given = parser.parse_args(arguments)
    steady = [simulate(count, seconds=given.seconds, offered=1.2) for count in given.machines]
    deaths = [simulate_death(count, seconds=2 * given.seconds, offered=0.8) for count in given.machines]
    scales = [
        after.runs_per_second / before.runs_per_second / (after.machines / before.machines)
        for before, after in pairwise(steady)
    ]

    if given.picture:
        shares = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
        draw(steady, [simulate(100, seconds=given.seconds, offered=share) for share in shares], given.picture)

    if given.json:
        figures = {"full": [asdict(one) for one in steady], "tenth_dies": [asdict(one) for one in deaths]}
        sys.stdout.write(json.dumps({**figures, "scales": scales}, indent=2) + "\n")
    else:
        sys.stdout.write(_table(steady, deaths, scales))

    return 0 if all(scale >= 0.9 for scale in scales) else 1


def _table(steady: Sequence[Outcome], deaths: Sequence[Outcome], scales: Sequence[float]) -> str:
    lines = [
        "| machines | runs/s at 120 % | choice p50 / p99 | wait p50 / p99 at 80 % | at random, p99 |"
        " lost | sent to dead | refused | wait p99 after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    for full, died in zip(steady, deaths, strict=True):
        lines.append(
            f"| {full.machines} | {full.runs_per_second:,.0f} "
            f"| {full.choice_p50_microseconds:.0f} / {full.choice_p99_microseconds:.0f} µs "
            f"| {died.wait_p50_seconds * 1000:.0f} / {died.wait_p99_seconds * 1000:.0f} ms "
            f"| {died.random_wait_p99_seconds * 1000:.0f} ms | {died.lost} | {died.sent_to_dead} "
            f"| {died.refused} | {died.wait_p99_after_seconds * 1000:.0f} ms |"
        )

    scaled = ", ".join(f"{10 * scale:.1f}" for scale in scales)
    return (
        "\n".join(lines) + f"\nThroughput for ten times the machines: {scaled} times (target: at least 9).\n"
    )


if __name__ == "__main__":
    sys.exit(main())
