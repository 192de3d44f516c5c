"""Every fault of a cluster, on three machines: what callers are told, for how long, and that the sandboxes are there.

Two servers, one beside the head and one on the second machine. Each row prints its counts; `docs/reliability.md` has
them from a run. `EVERY_FAULT=1` runs them, as `make test-cluster` does: the fastest are in `test_cluster.py` as well.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from tests.waiting import until

from fumehood import HostUnavailableError, Sandbox

from .load import Load, Told, new_sandbox, run
from .machines import Cluster, Machine, Server, missing

pytestmark = pytest.mark.timeout(600)
# Ray restarts an adapter or notices a death within this on a busy machine; the rows say how long it took.
_LONG_SECONDS = 150.0
_PER_MACHINE = 4


class Scene:
    """The cluster, both servers, and sandboxes with a variable on each machine."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, 3, sandbox_seconds=0, max_sandbox_seconds=0)
        self.second = self.cluster.machines[1].start_server(self.cluster.head)
        self.second.wait_ready(3)
        self.sandboxes: dict[int, list[str]] = {}
        self.fill()

    def fill(self) -> None:
        """Makes sandboxes until each machine that answers has some."""
        answering = self.second.machines()

        with self.client() as api:
            for machine in self.cluster.machines:
                kept = self.sandboxes.setdefault(machine.number, [])

                while machine.host_id in answering and len(kept) < _PER_MACHINE:
                    if (name := new_sandbox(api)).startswith(machine.host_id):
                        run(api, name, "x = 41")
                        kept.append(name)
                    else:
                        api.delete(f"/v1/sandboxes/{name}")

    def restored_on(self, number: int) -> Sandbox:
        """A sandbox on a machine that is made again elsewhere when the machine is lost."""
        at = {"url": self.second.url, "api_key": self.second.token}

        while True:
            sandbox = Sandbox(on_host_loss="restore", **at)

            if sandbox.id.startswith(self.machine(number).host_id):
                return sandbox

            sandbox.kill()

    def client(self, server: Server | None = None) -> httpx2.Client:
        """A client of the second server, or of another."""
        server = server or self.second
        return httpx2.Client(base_url=server.url, headers=server.headers, timeout=120)

    def load(self, server: Server | None = None) -> Load:
        """Callers of all sandboxes, through the second server or another."""
        return Load(server or self.second, [name for names in self.sandboxes.values() for name in names])

    def assert_state_is_there(self, *numbers: int) -> None:
        """The sandboxes of these machines have their variables."""
        with self.client() as api:
            for number in numbers:
                for name in self.sandboxes[number]:
                    assert run(api, name, "x + 1")["text"] == "42"

    def of(self, told: dict[str, Told], *numbers: int) -> list[Told]:
        """What callers of the sandboxes of these machines were told."""
        return [told[name] for number in numbers for name in self.sandboxes[number]]

    def machine(self, number: int) -> Machine:
        """One of the machines, from 1."""
        return self.cluster.machines[number - 1]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Three machines, two servers, four sandboxes on each."""
    if why := missing():
        pytest.skip(why)

    with tempfile.TemporaryDirectory(prefix="fh-", dir="/tmp") as folder:
        scene = Scene(Path(folder))
        yield scene
        scene.cluster.close()


def report(row: str, load: Load, fault_at: float, hit: list[Told], others: list[Told]) -> None:
    """Prints a row of the table: calls and errors there and elsewhere, and for how long."""
    errors: Counter[str] = Counter()

    for one in hit:
        for (code, unknown), count in one.errors.items():
            errors[f"{code}{', outcome unknown' if unknown else ''}"] += count

    began = min((one.first_error_at for one in hit if one.first_error_at is not None), default=fault_at)
    ended = max((one.last_error_at for one in hit if one.last_error_at is not None), default=fault_at)
    kinds = "; ".join(f"{count} {kind}" for kind, count in errors.items()) or "none"
    print(
        f"\n| {row} | {sum(one.calls for one in hit)} | {kinds} | {began - fault_at:.1f} to {ended - fault_at:.1f} s "
        f"| {sum(one.calls for one in others)} calls, {sum(sum(one.errors.values()) for one in others)} errors |"
    )


def elapsed(load: Load) -> float:
    """Seconds since the load began."""
    return time.monotonic() - load.began


def only_known(told: list[Told], *codes: str) -> None:
    """They had errors of these codes only."""
    assert {code for one in told for code, _ in one.errors} <= set(codes)


def test_the_adapter_is_killed(scene: Scene) -> None:
    """Ray makes another one on the same machine, which finds the same sandboxes; other machines notice nothing."""
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    assert scene.machine(3).kill("ray::HostAdapter") == 1

    for name in scene.sandboxes[3]:
        load.until_well_again(name, _LONG_SECONDS)

    told = load.end()
    report("adapter killed", load, at, scene.of(told, 3), scene.of(told, 1, 2))
    only_known(scene.of(told, 3), "host_unavailable")
    assert not any(one.errors for one in scene.of(told, 1, 2))
    scene.assert_state_is_there(1, 2, 3)


def test_the_raylet_is_killed_and_comes_back(scene: Scene) -> None:
    """The machine joins anew under another name of Ray's, and has its sandboxes."""
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    scene.machine(3).stop_ray()
    scene.machine(3).start_ray(scene.cluster.token, scene.cluster.head)

    for name in scene.sandboxes[3]:
        load.until_well_again(name, _LONG_SECONDS)

    told = load.end()
    report("raylet killed, started again", load, at, scene.of(told, 3), scene.of(told, 1, 2))
    only_known(scene.of(told, 3), "host_unavailable")
    assert not any(one.errors for one in scene.of(told, 1, 2))
    scene.assert_state_is_there(1, 2, 3)


def test_the_head_is_away_for_twelve_seconds(scene: Scene) -> None:
    """Calls through the other server go on without one error; Ray and that server come back by themselves."""
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    scene.cluster.head.stop_ray()
    until(lambda: elapsed(load) - at >= 12, "twelve seconds are over", seconds=30)
    on_others = scene.of(load.told, 2, 3)
    assert not any(one.errors for one in on_others)
    scene.cluster.head.start_ray(scene.cluster.token)

    for name in scene.sandboxes[1]:
        load.until_well_again(name, _LONG_SECONDS)

    told = load.end()
    report("head away for 12 s", load, at, scene.of(told, 1), scene.of(told, 2, 3))
    only_known(scene.of(told, 1), "host_unavailable")
    assert not any(one.errors for one in scene.of(told, 2, 3))
    scene.assert_state_is_there(1, 2, 3)


def test_one_server_of_two_is_killed(scene: Scene) -> None:
    """The other one answers for all sandboxes without one error; a new one knows them at once."""
    machine = scene.machine(1)

    # The server beside the head may have ended with its raylet; a unit would have started it again.
    with suppress(KeyError):
        machine.kill_part("server")

    first = machine.start_server(scene.cluster.head)
    first.wait_ready(3)
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    machine.kill_part("server")
    began = time.monotonic()
    first = machine.start_server(scene.cluster.head)
    first.wait_ready(3)

    with scene.client(first) as api:
        assert run(api, scene.sandboxes[3][0], "x + 1")["text"] == "42"

    print(f"\na server that starts knows all sandboxes after {time.monotonic() - began:.1f} s")
    told = load.end()
    report("one server of two killed", load, at, [], scene.of(told, 1, 2, 3))
    assert not any(one.errors for one in scene.of(told, 1, 2, 3))


def test_a_host_daemon_is_killed(scene: Scene) -> None:
    """Its sandboxes are over, which its next run says of each; those of other machines have no error."""
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    scene.machine(3).kill_part("host")
    scene.machine(3).start_host()

    for name in scene.sandboxes[3]:
        load.until_error(name, "sandbox_closed", _LONG_SECONDS)

    told = load.end()
    report("host daemon killed, started again", load, at, scene.of(told, 3), scene.of(told, 1, 2))
    only_known(scene.of(told, 3), "host_unavailable", "sandbox_closed")
    assert not any(one.errors for one in scene.of(told, 1, 2))
    scene.sandboxes[3] = []
    until(lambda: len(scene.second.machines()) == 3, "the daemon is back", seconds=_LONG_SECONDS)
    scene.fill()


def test_a_machine_is_cut_off_and_comes_back(scene: Scene) -> None:
    """Callers are told within 10 s; it keeps its sandboxes, and is the only one that answers for them afterwards."""
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    scene.cluster.network.unplug(3)

    for name in scene.sandboxes[3]:
        load.until_error(name, "host_unavailable", 60)

    seen = max(one.first_error_at or 0.0 for one in scene.of(load.told, 3)) - at
    assert seen < 10 + 5, "the last caller was told too late, also for a busy machine"

    with scene.client() as api:
        assert not new_sandbox(api).startswith(scene.machine(3).host_id)

    scene.cluster.network.replug(3)

    # Ray may have given the machine up meanwhile: then its raylet ends, and is started again as by its unit.
    def is_back() -> bool:
        machine = scene.machine(3)

        if machine.processes["ray"].poll() is not None:
            machine.start_ray(scene.cluster.token, scene.cluster.head)

        return all(one.well_since >= 5 for one in scene.of(load.told, 3))

    until(is_back, "it is well again", seconds=2 * _LONG_SECONDS)
    told = load.end()
    report("machine cut off, healed", load, at, scene.of(told, 3), scene.of(told, 1, 2))
    print(f"\nthe last caller was told after {seen:.1f} s")
    only_known(scene.of(told, 3), "host_unavailable")
    assert not any(one.errors for one in scene.of(told, 1, 2))
    scene.assert_state_is_there(1, 2, 3)


def test_what_was_restored_elsewhere_ends_on_a_machine_that_is_cut_off(scene: Scene, tmp_path: Path) -> None:
    """It is never in two places: the machine ends it by itself before it is restored, and again when it is back.

    Sandboxes of other callers there live on, and have their variables.
    """
    restored = scene.restored_on(3)
    first_id = restored.id
    restored.run_code("n = 41")
    restored.save(tmp_path / "state.fumehood")
    machine = scene.machine(3)
    began = time.monotonic()
    scene.cluster.network.unplug(3)

    def is_restored() -> bool:
        with suppress(HostUnavailableError):
            return restored.run_code("n + 1").text == "42"

        return False

    until(is_restored, "it goes on elsewhere", seconds=_LONG_SECONDS)
    print(f"\nrestored after {time.monotonic() - began:.1f} s")
    assert (restored.restored, restored.id.startswith(machine.host_id)) == (1, False)
    # Asked at its own socket, as it is still cut off.
    there = {info.id for info in machine.list_sandboxes()}
    assert there == set(scene.sandboxes[3])

    scene.cluster.network.replug(3)

    def is_back() -> bool:
        if machine.processes["ray"].poll() is not None:
            machine.start_ray(scene.cluster.token, scene.cluster.head)

        return machine.host_id in scene.second.machines()

    until(is_back, "it is back", seconds=2 * _LONG_SECONDS)

    with scene.client() as api:
        answer = api.get(f"/v1/sandboxes/{first_id}")
        assert (answer.status_code, answer.json()["fields"]["reason"]) == (410, "lost")

    assert restored.run_code("n + 1").text == "42"
    scene.assert_state_is_there(1, 2, 3)
    # It takes such sandboxes again.
    scene.restored_on(3).kill()
    restored.kill()


def test_a_machine_is_gone(scene: Scene, tmp_path: Path) -> None:
    """Callers are told within 10 s; new sandboxes are made elsewhere at once; later calls have a definite answer.

    A sandbox that is to be restored goes on from its last save on another machine.
    """
    restored = scene.restored_on(3)
    restored.run_code("n = 41")
    restored.save(tmp_path / "state.fumehood")
    load = scene.load()
    load.run_for(2)
    at = elapsed(load)
    gone = scene.machine(3)
    host_id = gone.host_id
    gone.end()

    for name in scene.sandboxes[3]:
        load.until_error(name, "host_unavailable", 60)

    seen = max(one.first_error_at or 0.0 for one in scene.of(load.told, 3)) - at
    assert seen < 10 + 5, "the last caller was told too late, also for a busy machine"

    with scene.client() as api:
        assert not new_sandbox(api).startswith(host_id)

    for name in scene.sandboxes[3]:
        load.until_error(name, "sandbox_closed", _LONG_SECONDS)

    told = load.end()
    report("machine gone", load, at, scene.of(told, 3), scene.of(told, 1, 2))
    print(f"\nthe last caller was told after {seen:.1f} s")
    only_known(scene.of(told, 3), "host_unavailable", "sandbox_closed")
    assert not any(one.errors for one in scene.of(told, 1, 2))
    scene.assert_state_is_there(1, 2)
    assert restored.run_code("n + 1").text == "42"
    assert (restored.restored, restored.id.startswith(host_id)) == (1, False)
    restored.kill()


def test_everything_is_restarted(scene: Scene) -> None:
    """Old ids have a definite answer, and new sandboxes are made; nothing of the former machines is left."""
    cluster = scene.cluster
    lost = scene.sandboxes[1][0]
    folders = [machine.folder for machine in cluster.machines[:2]]

    for machine in cluster.machines[:2]:
        machine.end()

    assert not any(machine.pids() for machine in cluster.machines)
    machines = [Machine(cluster.network, number, folder) for number, folder in enumerate(folders, 1)]
    cluster.machines[:2] = machines
    cluster.head = machines[0]
    began = time.monotonic()

    for machine in machines:
        machine.start_host()

    machines[0].start_ray(cluster.token)
    machines[1].start_ray(cluster.token, machines[0])
    server = machines[1].start_server(machines[0])
    server.wait_ready(2, seconds=_LONG_SECONDS)
    print(f"\n| everything restarted | | | after {time.monotonic() - began:.1f} s new sandboxes | |")

    with scene.client(server) as api:
        answer = api.get(f"/v1/sandboxes/{lost}")
        assert (answer.status_code, answer.json()["fields"]["reason"]) == (410, "lost")
        assert run(api, new_sandbox(api), "6 * 7")["text"] == "42"
