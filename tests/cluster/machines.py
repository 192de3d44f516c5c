"""Machines of a cluster on this one: each has a network, processes, and folders of Ray of its own, joined by a bridge.

A machine is a holder process, the first of a PID namespace in namespaces of its own for mounts and network. When the
holder ends, the kernel ends everything else on the machine, so that no test leaves a process behind. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.waiting import until

from fumehood.client.backend import connect_to_host
from fumehood.cluster.ray_settings import environment, head_environment, start_arguments
from fumehood.values.sandbox import SandboxInfo

ROOT = Path(__file__).parents[2]
# Ray's agents import whatever they find, so that it has an environment with little in it.
CLUSTER_PYTHON = ROOT / ".venv-cluster" / "bin" / "python"
# The sources of this tree, also where that environment was copied from another tree.
_OWN_SOURCES = {"PYTHONPATH": str(ROOT / "src")}
_HEAD_PORT = 6379
_SERVER_PORT = 8765
_LOOK_SECONDS = 0.2
_START_SECONDS = 240.0
# The holder: folders of its own where Ray has fixed ones, then it waits for the end of its input.
_HOLD = """
mount -t proc proc /proc
mkdir -p /tmp/ray
mount --bind "$1" /tmp/ray
mount --bind "$2" "$3"
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
read -r _
"""


def missing() -> str:
    """Returns what these machines need and is not here."""
    if os.geteuid() != 0:
        return "needs root"

    return "" if CLUSTER_PYTHON.exists() else f"needs {CLUSTER_PYTHON}: make .venv-cluster/.installed"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """A bridge that joins machines and this process; `unplug` is a partition."""

    def __init__(self) -> None:
        self.name = f"fh{secrets.token_hex(4)}"
        # One of 2^14 networks of four hundred machines; two runs at once have the same one once in a blue moon.
        number = secrets.randbelow(1 << 14)
        self.prefix = f"10.{192 + (number >> 8)}.{number & 255}"
        _ip("link", "add", self.name, "type", "bridge")
        _ip("address", "add", f"{self.prefix}.1/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def plug(self, pid: int, number: int) -> str:
        """Joins the network namespace of a process, and returns its address."""
        outside, address = f"{self.name}-{number}", f"{self.prefix}.{number + 1}"
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", outside, "master", self.name, "up")
        inside = ["nsenter", "--net", "--target", str(pid), "ip"]
        subprocess.run([*inside, "address", "add", f"{address}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        subprocess.run([*inside, "route", "add", "default", "via", f"{self.prefix}.1"], check=True)
        return address

    def unplug(self, number: int) -> None:
        """Cuts a machine off: what it sends is lost, as with a broken cable."""
        _ip("link", "set", f"{self.name}-{number}", "down")

    def replug(self, number: int) -> None:
        """Heals what `unplug` has cut."""
        _ip("link", "set", f"{self.name}-{number}", "up")

    def pull(self, number: int) -> None:
        """Removes the link of a machine, which the kernel would do some time after the machine's end."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", f"{self.name}-{number}")

    def close(self) -> None:
        """Removes the bridge."""
        _ip("link", "delete", self.name)


class Machine:
    """One machine.

    Args:
        network: What joins it to others.
        number: Which of them it is, from 1; 1 is the head.
        folder: Where its files lie; short, because of the paths of sockets.
    """

    def __init__(self, network: Network, number: int, folder: Path) -> None:
        self.network = network
        self.number = number
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.token_file = folder / "ray.token"
        self.log = folder / "log"
        # Its templates lie at the same path as on the others, and are its own.
        self.data = folder.parent / "data"

        for place in (folder / "ray", folder / "data", self.data):
            place.mkdir(parents=True, exist_ok=True)

        self._holder = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--pid",
                "--net",
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                _HOLD,
                "sh",
                folder / "ray",
                folder / "data",
                self.data,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self.first_pid = int(children)
        self._pid_space = os.readlink(f"/proc/{self.first_pid}/ns/pid")
        self.address = network.plug(self.first_pid, number)

    # -- its parts

    def start_host(self, *, is_here: bool = False, is_older: bool = False, **flags: object) -> None:
        """Starts the host daemon.

        Args:
            is_here: On the network of this process, where tests have servers.
            is_older: One of an earlier version: `tests/older_host.py`.
            flags: Settings.
        """
        given = {"socket": self.socket, "state_folder": self.folder / "host", "pool_size": 0}
        given |= {"records": "keep", **flags}
        program = [ROOT / "tests" / "older_host.py"] if is_older else ["-m", "fumehood", "host"]
        self.start("host", [sys.executable, *program, *_flags(given)], {}, is_here=is_here)
        # The socket is there before the name is.
        until((self.folder / "host" / "host-id").exists, "the host has a name", seconds=_START_SECONDS)

    @property
    def socket(self) -> Path:
        """The socket of its host daemon."""
        return self.folder / "run" / "host.sock"

    @property
    def host_id(self) -> str:
        """The name of its host."""
        return (self.folder / "host" / "host-id").read_text().strip()

    def list_sandboxes(self) -> tuple[SandboxInfo, ...]:
        """What lives on it, asked at the socket of its host daemon: also while its network is cut off."""

        async def listed() -> tuple[SandboxInfo, ...]:
            daemon = connect_to_host(str(self.socket))

            try:
                return await daemon.list()
            finally:
                await daemon.aclose()

        return asyncio.run(listed())

    def start_ray(
        self, token: str, head: Machine | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Starts Ray: the head, or a machine that joins one."""
        self.token_file.write_text(token)
        self.token_file.chmod(0o600)
        arguments = start_arguments(
            address=f"{head.address}:{_HEAD_PORT}" if head else "",
            node_address=self.address,
            host_id=self.host_id,
            labels=labels or {},
            head_port=None if head else _HEAD_PORT,
        )
        envs = {"FUMEHOOD_HOST_SOCKET": str(self.socket), **_OWN_SOURCES}
        envs |= {} if head else head_environment(str(self.folder / "gcs"))
        argv: list[object] = [CLUSTER_PYTHON.with_name("ray"), *arguments]
        # What a crash has left makes the next start refuse.
        started = self.folder / "ray" / "ray_current_cluster"
        started.unlink(missing_ok=True)
        self.start("ray", argv, envs)

        def has_started() -> bool:
            # A raylet gives its agents 15 s, and dies if they need longer: on a busy machine it is started again, as by
            # the node agent or a unit.
            if self.processes["ray"].poll() is not None:
                self.processes.pop("ray")
                self.kill_all_of_ray()
                self.start("ray", argv, envs)

            return started.exists()

        until(has_started, "Ray has started", seconds=_START_SECONDS)

    def start_server(
        self, head: Machine, name: str = "server", port: int = _SERVER_PORT, **flags: object
    ) -> Server:
        """Starts a server of the cluster on this machine."""
        token = "test-token-0123456789"
        state = self.folder / name
        given = {
            "host": "0.0.0.0",
            "port": port,
            "cluster": f"{head.address}:{_HEAD_PORT}",
            "cluster_token_file": self.token_file,
            "state_folder": state,
            "wrong_tokens_per_minute": 0,
            "allowed_hosts": self.address,
            **flags,
        }
        argv = [CLUSTER_PYTHON, "-m", "fumehood", "serve", *_flags(given)]
        self.start(name, argv, {"FUMEHOOD_TOKEN": token, **_OWN_SOURCES})
        return Server(f"http://{self.address}:{port}", token, self, name)

    # -- processes

    def start(self, name: str, argv: list[object], envs: Mapping[str, str], *, is_here: bool = False) -> None:
        """Starts a process on this machine; its output goes to the log."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("FUMEHOOD_", "RAY_"))
        }
        ours = {
            "HOME": str(self.folder),
            "FUMEHOOD_HOME": str(self.data),
            **environment(str(self.token_file)),
        }
        with self.log.open("a") as log:
            self.processes[name] = subprocess.Popen(
                [*([] if is_here else self._inside), *map(str, argv)],
                env={**kept, **ours, **envs},
                stdout=log,
                stderr=log,
                text=True,
            )

    def run(self, *argv: object) -> subprocess.CompletedProcess[str]:
        """Runs a command on this machine to its end, with the machine's folder as its home."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("FUMEHOOD_", "RAY_"))
        }
        return subprocess.run(
            [*self._inside, *map(str, argv)],
            env={
                **kept,
                "HOME": str(self.folder),
                "FUMEHOOD_HOME": str(self.data),
                "FUMEHOOD_POOL_SIZE": "0",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def output(self, *argv: object) -> str:
        """Runs a command on this machine, and returns what it prints."""
        return subprocess.run(
            [*self._inside, *map(str, argv)], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def pids(self, *words: str) -> list[int]:
        """The processes of this machine whose command line has all these words, as seen from outside."""
        found = []

        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and os.readlink(entry / "ns" / "pid") == self._pid_space:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")

                    if line and all(word in line for word in words):
                        found.append(int(entry.name))

        return found

    def kill(self, *words: str) -> int:
        """Kills the processes whose command line has all these words; returns how many there were."""
        pids = self.pids(*words)

        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        return len(pids)

    def kill_part(self, name: str) -> None:
        """Kills a part and everything that it has started on this machine, at once."""
        process = self.processes.pop(name)

        # `nsenter` waits for its child, which is the part.
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)

        process.wait()

    def stop_ray(self) -> None:
        """Kills every process of Ray on this machine."""
        self.kill_part("ray")
        self.kill_all_of_ray()

    def kill_all_of_ray(self) -> None:
        """Kills what `ray start` has left."""
        while self.kill("/ray/") + self.kill("ray::"):
            time.sleep(0.05)

    def end(self) -> None:
        """Switches it off: the kernel ends all of its processes at once."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.kill()
        self._holder.wait()
        self.network.pull(self.number)
        self._holder.stdin.close()
        self._holder.stdout.close()

        for process in self.processes.values():
            # One that is not on the machine has not ended with it.
            process.terminate()
            process.wait(30)

        self.processes.clear()

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", "--mount", "--net", "--pid", "--target", str(self.first_pid)]


class Server:
    """A server of a cluster.

    Args:
        url: Its address.
        token: Its owner's token.
        machine: Where it runs.
        name: The name of its process there.
    """

    def __init__(self, url: str, token: str, machine: Machine, name: str) -> None:
        self.url = url
        self.token = token
        self.machine = machine
        self.name = name

    @property
    def headers(self) -> dict[str, str]:
        """What a request of the owner brings."""
        return {"Authorization": f"Bearer {self.token}"}

    def wait_ready(self, machines: int, seconds: float = 180) -> None:
        """Waits until it takes work, with so many machines."""
        process = self.machine.processes[self.name]

        def is_ready() -> bool:
            assert process.poll() is None, "the server has ended"
            # Each look is a request of its own.
            time.sleep(_LOOK_SECONDS)
            return len(self.machines()) >= machines

        until(is_ready, f"{machines} machines answer", seconds=seconds)

    def machines(self) -> dict[str, dict[str, object]]:
        """The machines that answer it, by host."""
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            request = urllib.request.Request(f"{self.url}/v1/machines", headers=self.headers)

            with urllib.request.urlopen(request, timeout=10) as answer:
                items = json.load(answer)["items"]
                return {one["host_id"]: one for one in items if one["state"] != "absent"}

        return {}


class Cluster:
    """A head with a server, and more machines, each with a host.

    Args:
        folder: Where their files lie.
        machines: How many there are.
        labels: The labels of machines, by number.
        host_is_here: Whether the hosts run outside of their machines, on the network of this process.
        flags: Settings of the server.
    """

    def __init__(
        self,
        folder: Path,
        machines: int,
        labels: Mapping[int, Mapping[str, str]] | None = None,
        host_is_here: bool = False,
        **flags: object,
    ) -> None:
        self.network = Network()
        self.machines: list[Machine] = []
        self.token = secrets.token_hex(32)

        try:
            for number in range(1, machines + 1):
                self.machines.append(Machine(self.network, number, folder / str(number)))

            _at_once([partial(machine.start_host, is_here=host_is_here) for machine in self.machines])
            self.head = self.machines[0]
            self.head.start_ray(self.token, labels=(labels or {}).get(1))
            for machine in self.machines[1:]:
                machine.start_ray(self.token, self.head, (labels or {}).get(machine.number))

            self.server = self.head.start_server(self.head, **flags)
            self.server.wait_ready(machines)
        except BaseException:
            for machine in self.machines:
                with contextlib.suppress(OSError):
                    print(machine.log.read_text()[-4000:])

            self.close()
            raise

    def close(self) -> None:
        """Switches all off."""
        for machine in self.machines:
            machine.end()

        self.network.close()


def _at_once(functions: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(functions)) as pool:
        for ending in [pool.submit(function) for function in functions]:
            ending.result()


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
