"""The simulation of `benchmarks`, small: its figures come from the real placement code."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

_FILE = Path(__file__).parents[3] / "benchmarks" / "simulate_cluster.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_cluster", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ten_times_the_machines_do_nine_times_the_runs(simulation: ModuleType) -> None:
    few, many = (simulation.simulate(count, seconds=5.0, offered=1.2) for count in (5, 50))
    assert many.runs_per_second >= 9 * few.runs_per_second


def test_two_choices_wait_less_than_one(simulation: ModuleType) -> None:
    outcome = simulation.simulate(50, seconds=5.0, offered=0.8)
    assert outcome.wait_p99_seconds < outcome.random_wait_p99_seconds
    assert outcome.refused == 0


def test_a_dead_tenth_gets_nothing_once_its_silence_is_noticed(simulation: ModuleType) -> None:
    cluster = simulation._Cluster(20, at_random=False, seed=3)
    cluster.run(6.0, 0.5, tenth_dies_at=2.0)
    dead = {host.name for host in cluster.hosts if host.died_at is not None}
    assert len(dead) == 2
    assert cluster.sent_to_dead > 0
    assert all(dead.isdisjoint(server.machines) for server in cluster.servers)
    assert all(at < 2.0 for at, _, name in cluster.spans if name in dead)


def test_figures_as_json_and_a_picture(
    simulation: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curves.png"
    assert (
        simulation.main(["--machines", "5", "50", "--seconds", "5", "--json", "--picture", str(picture)]) == 0
    )
    figures = json.loads(capsys.readouterr().out)
    assert [one["machines"] for one in figures["full"]] == [5, 50]
    assert figures["tenth_dies"][1]["lost"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
