"""Runs programs of an image in a jail: the steps of a build, and inspections of the image.

Runs in the host process. A program sees the image's layers and no files of the host; what it writes goes to a new
layer, or is dropped. The only way out is the egress proxy, by the rules of the build, served from a thread of this
process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fumehood.egress.gateway import Gateway, Route
from fumehood.egress.proxy_connection import serve
from fumehood.templates.images.jailed import compiled_policy, jailed
from fumehood.templates.images.layers import NewLayer
from fumehood.templates.images.step_group import default_memory_bytes, step_group
from fumehood.values.network import Network
from fumehood_guest.image.image_root import APT_SETTINGS
from fumehood_guest.init.egress import PORT
from fumehood_jail import users

_OUTPUT_BYTES = 1 << 16
_LIMITS = {"nofile": 65_536, "nproc": 4096, "memlock": 64 << 10}
_HOSTS = "127.0.0.1 localhost build\n::1 localhost\n"
_PROXY = f"http://127.0.0.1:{PORT}"
_POLL_SECONDS = 0.5
# How many connections one step may have through the proxy.
_MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgram:
    """A program of an image.

    Attributes:
        argv: The program and its arguments.
        envs: All of its environment.
        cwd: Its working directory in the image.
        uid: Its user.
        gid: Its group.
        groups: Its other groups.
    """

    argv: Sequence[str]
    envs: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """The outcome of a program.

    Attributes:
        status: Its exit code, 128 and more for a signal.
        is_late: Whether it was ended because it took too long.
        is_large: Whether it was ended because it wrote too much.
        is_heavy: Whether the kernel has ended a process of it because it took too much memory.
    """

    status: int
    is_late: bool = False
    is_large: bool = False
    is_heavy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """The rules and limits of a program.

    Attributes:
        ids: The ids of images.
        network: The network that it may reach.
        seconds: Its time limit.
        is_too_large: Called periodically; returns whether the program has written too much.
        limits: Resource limits by their names, in place of those of every step.
        memory_bytes: The memory limit of all its processes together, where there is a control group.
    """

    ids: users.IdPlan
    network: Network
    seconds: float
    is_too_large: Callable[[], bool] = lambda: False
    limits: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int = field(default_factory=default_memory_bytes)


def run_program(
    layers: Sequence[str],
    made: NewLayer | None,
    program: ImageProgram,
    rules: StepRules,
    hear: Callable[[bytes], None],
) -> ProgramOutcome:
    """Runs a program to its end.

    Args:
        layers: The folders of the image, the lowest first.
        made: The layer that the program writes to; None: what it writes is dropped.
        program: The program.
        rules: The rules for it.
        hear: Called with each piece of its standard output and error.
    """
    ids, network = rules.ids, rules.network
    work = None

    if made is not None:
        work = os.path.join(made.folder, "work")
        os.mkdir(work, 0o755)
        owner = ids.uid_map[0][1]
        os.chown(work, owner, owner if ids.kind == "image" else -1)

    is_emulated = ids.kind != "image"
    files = {"/etc/hosts": _HOSTS, "/etc/resolv.conf": ""}

    if is_emulated:
        files[APT_SETTINGS] = 'APT::Sandbox::User "root";\n'

    plan: dict[str, Any] = {
        "task": "step",
        "ids": ids.to_dict(),
        "layers": list(layers),
        "upper": None if made is None else made.content,
        "work": work,
        "files": files,
        "seccomp": compiled_policy("image_emulated" if is_emulated else "image"),
        "rlimits": {"core": 1},
        "order": {
            "argv": list(program.argv),
            "envs": {
                **_proxy_envs(network),
                **({"APT_CONFIG": APT_SETTINGS} if is_emulated else {}),
                **program.envs,
            },
            "cwd": program.cwd,
            "uid": program.uid,
            "gid": program.gid,
            "groups": list(program.groups),
            "rlimits": {**_LIMITS, **rules.limits},
        },
    }

    with ExitStack() as opened:
        fds = []

        if network.level != "none":
            far = opened.enter_context(_proxy(network))
            plan["proxy_fd"] = far.fileno()
            fds.append(far.fileno())

        processes = rules.limits.get("nproc", _LIMITS["nproc"])
        group = opened.enter_context(step_group(secrets.token_hex(8), rules.memory_bytes, processes))
        plan["cgroup_fds"] = group.fds
        fds += group.fds
        process = opened.enter_context(jailed(plan, *fds, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT))
        outcome = _follow(process.process, rules, hear)
        return replace(outcome, is_heavy=group.has_killed())


def _follow(
    process: subprocess.Popen[bytes], rules: StepRules, hear: Callable[[bytes], None]
) -> ProgramOutcome:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    deadline = time.monotonic() + rules.seconds
    next_look = time.monotonic() + _POLL_SECONDS

    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([fd], [], [], min(left, _POLL_SECONDS))

        if ready:
            data = os.read(fd, _OUTPUT_BYTES)

            if not data:
                return ProgramOutcome(status=process.wait())

            hear(data)
        elif process.poll() is not None:
            return ProgramOutcome(status=process.returncode)

        # Also while it writes without a pause.
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _POLL_SECONDS

            if rules.is_too_large():
                return ProgramOutcome(status=-1, is_large=True)

    return ProgramOutcome(status=-1, is_late=True)


def _proxy_envs(network: Network) -> dict[str, str]:
    if network.level == "none":
        return {}

    names = ("http_proxy", "https_proxy", "all_proxy")
    envs = {name: _PROXY for lower in names for name in (lower, lower.upper())}
    return {**envs, "no_proxy": "localhost,127.0.0.1,::1", "NO_PROXY": "localhost,127.0.0.1,::1"}


@contextmanager
def _proxy(network: Network) -> Iterator[socket.socket]:
    """Serves the connections of one jail from a thread; yields the jail's end of the channel."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(
        target=_serve, args=(loop, near, network), name="fumehood-build-proxy", daemon=True
    )
    thread.start()
    try:
        yield far
    finally:
        far.close()
        near.shutdown(socket.SHUT_RDWR)
        thread.join()
        near.close()


def _serve(loop: asyncio.AbstractEventLoop, near: socket.socket, network: Network) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve_all(near, network))
    finally:
        loop.close()


async def _serve_all(near: socket.socket, network: Network) -> None:
    gateway = Gateway("build")
    gateway.use(Route(network=network))
    near.setblocking(False)
    loop = asyncio.get_running_loop()
    serving: set[asyncio.Task[None]] = set()

    while await loop.sock_recv(near, 1):
        if len(serving) >= _MAX_CONNECTIONS:
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)

        stream, given = socket.socketpair()

        with given:
            socket.send_fds(near, [b"!"], [given.fileno()])

        stream.setblocking(False)
        task = loop.create_task(serve(gateway, stream))
        serving.add(task)
        task.add_done_callback(serving.discard)

    for task in serving:
        task.cancel()

    await asyncio.gather(*serving, return_exceptions=True)
