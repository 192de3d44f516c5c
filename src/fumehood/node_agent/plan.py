"""The plan of a machine of a cluster: its programs and files; stored as `plan.json` in the state folder.

Used by the command line and the node agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from fumehood.cluster.adapter import SOCKET_VARIABLE
from fumehood.cluster.ray_settings import (
    HOST_LABEL,
    environment,
    head_environment,
    loopback_environment,
    start_arguments,
)
from fumehood.errors import InvalidArgumentError

STATE_NAME = "fumehood-cluster"
# An address that no other machine reaches: all ports of Ray listen there alone.
LOOPBACK = "127.0.0.1"
# The path of a unix socket has 107 bytes; Ray adds "/session_", date, time and process, and "/sockets/plasma_store".
_RAY_NAME = "t"
_MAX_RAY_PATH_BYTES = 107 - len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one machine.

    Attributes:
        state: The folder of its files.
        head: The address of Ray's head, HOST:PORT.
        is_head: Whether this machine is the head.
        node_address: The address by which the other machines reach this one, where Ray listens; `LOOPBACK`: none
            does. Empty: Ray finds one.
        labels: The machine's labels.
        has_host: Whether a host daemon is started here.
        host_socket: The socket of a host daemon that runs already, as under a unit of its own; empty: none.
        host_id: The name of that daemon's host.
        server_address: The address on which a server listens, HOST:PORT; empty: none is started here.
    """

    FILE: ClassVar[str] = "plan.json"

    state: str
    head: str
    is_head: bool = True
    node_address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    has_host: bool = True
    host_socket: str = ""
    host_id: str = ""
    server_address: str = ""

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return Path(self.state)

    @property
    def token_file(self) -> Path:
        """The file with the cluster's token."""
        return self.folder / "ray.token"

    @property
    def socket(self) -> Path:
        """The socket of the host daemon."""
        return Path(self.host_socket) if self.host_socket else self.folder / "run" / "host.sock"

    @property
    def ray_folder(self) -> Path:
        """The folder of Ray's sockets and logs, for this user alone; below /tmp where the state folder's path is long.

        Ray makes its folder accessible to all users, so it gets a folder inside of this one.
        """
        folder = self.folder / "ray"

        if len(os.fsencode(folder / _RAY_NAME)) <= _MAX_RAY_PATH_BYTES:
            return folder

        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()
        return Path(f"/tmp/fh-ray-{os.geteuid()}-{digest[:8]}")  # noqa: S108 - checked by the node agent

    @property
    def server_token_file(self) -> Path:
        """The file with the token of the server's owner."""
        return self.folder / "server" / "token"

    def save(self) -> None:
        """Writes the plan into its folder."""
        text = json.dumps({**asdict(self), "labels": dict(self.labels)}, indent=2)
        (self.folder / self.FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Returns the plan of a folder.

        Raises:
            InvalidArgumentError: The folder has no plan.
        """
        try:
            return cls(**json.loads((folder / cls.FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise InvalidArgumentError(
                field="--state-folder",
                value=str(folder),
                allowed="the folder of a machine that has joined a cluster: see `fumehood cluster join`",
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One program of a machine.

    Attributes:
        name: Its name, which its log file has too.
        argv: Its command line.
        envs: Variables that are added to the node agent's environment.
        signs: Files that exist once it has started.
        address: HOST:PORT where it accepts connections once it has started; empty: nowhere.
        stale: A file that makes a start fail if a crash has left it behind.
        private: A folder that no other user may enter; made before the start.
        stop_seconds: Seconds that it may take to end.
    """

    name: str
    argv: tuple[str, ...]
    envs: Mapping[str, str]
    signs: tuple[Path, ...] = ()
    address: str = ""
    stale: Path | None = None
    private: Path | None = None
    stop_seconds: float = 30.0


def host_part(plan: Plan) -> Part:
    """Returns the part that runs the host daemon."""
    envs = {SOCKET_VARIABLE: str(plan.socket), "FUMEHOOD_HOST_STATE_FOLDER": str(plan.folder / "host")}
    signs = (plan.socket, _host_id_file(plan))
    return Part(name="host", argv=(sys.executable, "-P", "-m", "fumehood", "host"), envs=envs, signs=signs)


def ray_part(plan: Plan) -> Part:
    """Returns the part that runs Ray; the host daemon must have run before, so that the host has a name."""
    host_id = _host_id_file(plan).read_text(encoding="ascii").strip() if plan.has_host else plan.host_id
    arguments = start_arguments(
        address=plan.head,
        node_address=plan.node_address,
        host_id=host_id,
        labels=plan.labels,
        head_port=int(plan.head.rpartition(":")[2]) if plan.is_head else None,
        temp_folder=str(plan.ray_folder / _RAY_NAME),
    )
    envs = {**environment(str(plan.token_file)), SOCKET_VARIABLE: str(plan.socket)}
    envs |= head_environment(str(plan.folder / "gcs")) if plan.is_head else {}
    envs |= _reach(plan)
    argv = (sys.executable, "-P", "-m", "ray.scripts.scripts", *arguments)
    # Ray writes it when it has started.
    started = plan.ray_folder / _RAY_NAME / "ray_current_cluster"
    return Part(name="ray", argv=argv, envs=envs, signs=(started,), stale=started, private=plan.ray_folder)


def _host_id_file(plan: Plan) -> Path:
    return plan.folder / "host" / "host-id"


def _reach(plan: Plan) -> dict[str, str]:
    return loopback_environment() if plan.node_address == LOOPBACK else {}


def server_part(plan: Plan) -> Part:
    """Returns the part that runs the server; settings from the environment apply, except those of the plan."""
    host, _, port = plan.server_address.rpartition(":")
    envs = {
        "FUMEHOOD_HOST": host,
        "FUMEHOOD_PORT": port,
        "FUMEHOOD_CLUSTER": plan.head,
        "FUMEHOOD_CLUSTER_TOKEN_FILE": str(plan.token_file),
        "FUMEHOOD_STATE_FOLDER": str(plan.folder / "server"),
        **_reach(plan),
    }
    argv = (sys.executable, "-P", "-m", "fumehood", "serve")
    return Part(name="server", argv=argv, envs=envs, address=plan.server_address)


def check_label(word: str) -> tuple[str, str]:
    """Returns the name and the value of `NAME=VALUE`.

    Raises:
        InvalidArgumentError: The text is not a label, or the name is reserved by fumehood or Ray.
    """
    name, sign, value = word.partition("=")

    if not (sign and name and value) or name == HOST_LABEL or name.startswith("ray.io/") or "," in word:
        raise InvalidArgumentError(field="--label", value=word, allowed="NAME=VALUE, such as zone=a")

    return name, value


def check_address(field: str, address: str) -> str:
    """Returns an address.

    Raises:
        InvalidArgumentError: The address is not HOST:PORT.
    """
    host, _, port = address.rpartition(":")

    if not host or not port.isdecimal() or "/" in host:
        raise InvalidArgumentError(field=field, value=address, allowed="HOST:PORT")

    return address
