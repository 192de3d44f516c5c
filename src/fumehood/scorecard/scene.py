"""The host's preparations for the attacks, and their removal: places, listening sockets, a file with a secret.

Runs in the user's process. Everything is in one temporary folder and on the loopback, and ends with the scene.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from fumehood.api.sandbox import Sandbox
from fumehood.assemble import local_backend
from fumehood.bounds import MIB
from fumehood.scorecard.places import AttackTarget, ProgramPlace, SandboxPlace, bubblewrap
from fumehood.scorecard.probes import Scene
from fumehood.values.limits import Limits
from fumehood.values.template import Template
from fumehood_jail import seccomp

# Small enough that every attempt at more reaches them, large enough for a Python.
TIGHT = Limits(
    memory_bytes=128 * MIB, disk_bytes=8 * MIB, inodes=1000, processes=40, open_files=256, grace_seconds=0.2
)
POLICY = os.path.join(seccomp.POLICIES, "sandbox.toml")


@dataclass(frozen=True, slots=True)
class Column:
    """A place to attack, which is a column of the scorecard, with its variant under tight limits.

    Attributes:
        place: Runs the programs of the attacks.
        tight: The same place with tight limits, or None if limits cannot be set there.
        scene: The preparations for its probes.
    """

    place: AttackTarget
    tight: AttackTarget
    scene: Scene


def _open_both() -> tuple[socket.socket, socket.socket]:
    """Opens a TCP and a UDP socket at one port; retries, since a port free for one may be in use for the other."""
    while True:
        tcp = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind(tcp.getsockname())
        except OSError as error:
            tcp.close()
            udp.close()

            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return tcp, udp


class CountingListener:
    """A TCP and a UDP socket on the host's loopback that count connections and datagrams."""

    def __init__(self) -> None:
        self.tcp, self.udp = _open_both()
        self.port: int = self.tcp.getsockname()[1]
        self.udp.setblocking(False)
        self.tcp.setblocking(False)

    def visits(self) -> int:
        """Return how many connections and datagrams have come since the last call."""
        count = 0

        while True:
            try:
                self.tcp.accept()[0].close()
            except BlockingIOError:
                break

            count += 1

        while True:
            try:
                self.udp.recvfrom(4096)
            except BlockingIOError:
                return count

            count += 1

    def close(self) -> None:
        """Close the TCP and the UDP socket."""
        self.tcp.close()
        self.udp.close()


class AttackFixtures:
    """All that the attacks need, for one card.

    Args:
        secret: A text in the environment of this process, and nowhere else.
        envs: That environment, for the programs of the host.
    """

    def __init__(self, secret: str, envs: Mapping[str, str] | None = None) -> None:
        self.secret = secret
        self.envs = envs
        self.canary = f"canary-{secrets.token_hex(16)}"
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="fumehood-scorecard-"))
        self.treasure = os.path.join(self.folder, "treasure")
        self.columns: dict[str, Column] = {}
        self._made: list[Sandbox] = []

    def __enter__(self) -> AttackFixtures:
        with open(self.treasure, "w", encoding="ascii") as file:
            file.write(self.canary)

        # As of a server without O_CLOEXEC: a process that inherits it can read the host's file.
        self.leak = os.open(self.treasure, os.O_RDONLY)
        os.set_inheritable(self.leak, True)
        self.listener = CountingListener()
        self._unix = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        self._addresses = (f"\0{self.canary}", os.path.join(self.folder, "host.sock"))

        for sock, address in zip(self._unix, self._addresses, strict=True):
            sock.bind(address)
            sock.listen()

        try:
            self._add_columns()
        except BaseException:
            self.__exit__(None, None, None)
            raise

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sandbox in self._made:
            sandbox.kill(wait=False)

        os.close(self.leak)
        self.listener.close()

        for sock in self._unix:
            sock.close()

        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, limits: Limits | None = None, template: str | Template = "default") -> SandboxPlace:
        """Make a sandbox in this process, which ends with the stage."""
        sandbox = Sandbox(template, limits=limits, backend=local_backend())
        self._made.append(sandbox)
        return SandboxPlace(sandbox)

    def without_names(self, text: str) -> str:
        """Return a text with the names that this run generated replaced by placeholders."""
        names = {self.folder: "FOLDER", self.secret: "the secret", self.canary: "canary", "\0": "@"}

        for name, meaning in names.items():
            text = text.replace(name, meaning)

        return text

    def _add_columns(self) -> None:
        main, tight = self.make(), self.make(TIGHT)
        prefix = main.sandbox.run_code("import os; os.path.dirname(os.__file__)").text or ""
        library = prefix.strip("'")
        self.columns["fumehood"] = Column(main, tight, self._scene(1, ("/etc", "/usr/bin", library), "/tmp"))  # noqa: S108
        wrapped = bubblewrap(self._scratch("bubblewrap"))
        own_library = os.path.dirname(os.__file__)

        if wrapped is not None:
            scene = self._scene(1, ("/usr/bin", own_library), "/tmp")  # noqa: S108
            self.columns["bubblewrap"] = Column(wrapped, wrapped, scene)

        folder = self._scratch("subprocess")
        plain = ProgramPlace("subprocess", folder, envs=self.envs)
        stand_in = os.path.join(folder, "attack")
        system = ("/etc", "/usr/bin", own_library, os.path.dirname(sys.executable), stand_in)
        self.columns["subprocess"] = Column(plain, plain, self._scene(os.getpid(), system, folder))

    def _scratch(self, name: str) -> str:
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        return path

    def _scene(self, other_pid: int, system: tuple[str, ...], scratch: str) -> Scene:
        policy = seccomp.named_calls(seccomp.read_policy(POLICY))
        return Scene(
            host_pid=os.getpid(),
            other_pid=other_pid,
            secret=self.secret,
            sockets=(*self._addresses, "/var/run/docker.sock", "/run/dbus/system_bus_socket"),
            system=system,
            scratch=scratch,
            refused={name: said for name, said in policy.items() if said not in ("allow", "check")},
        )
