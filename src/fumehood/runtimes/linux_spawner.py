"""Makes guests of one template by asking its zygote, and keeps what the host holds of each: pidfd, cgroup, id.

Runs in the host process, on the engine's loop. What the zygote says is bounded and checked: its packages are not ours.
What an init says in its greeting is believed, because no guest code has run by then.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
from collections import deque
from typing import Any

from fumehood.errors import CapacityError, IsolationUnavailableError, SandboxStartError
from fumehood.limits import Limits
from fumehood.models import Isolation
from fumehood.runtimes.base import CpuTime, FirstContext, Guest, Spawner
from fumehood.runtimes.linux_isolation import describe_isolation
from fumehood_jail import cgroups, users
from fumehood_wire import messages
from fumehood_wire.frames import Decoder, ProtocolError, parse_json

_GREETING_SECONDS = 30.0
_LAST_WORDS_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_MAX_PACKET_BYTES = 1 << 18
_CREDENTIALS = struct.Struct("3i")
HOSTNAME = "fumehood"
CGROUP_PREFIX = "fumehood"


class LinuxSpawner(Spawner):
    """Makes guests from one zygote."""

    def __init__(
        self,
        *,
        control: socket.socket,
        keeper: subprocess.Popen[bytes],
        ids: users.IdPlan,
        cgroup_driver: cgroups.CgroupDriver | None,
        cgroup_reason: str,
        guest_envs: dict[str, str],
    ) -> None:
        self.guest_envs = guest_envs
        self.missing_modules: tuple[str, ...] = ()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control = control
        self._keeper = keeper
        self._ids = ids
        self._free_slots = deque(range(ids.first_id, ids.first_id + ids.count))
        self._driver = cgroup_driver
        self._cgroup_reason = cgroup_reason
        # By numbers that mean nothing to anybody else: each clone of the zygote remembers those of its elders.
        self._guests: dict[int, LinuxGuest] = {}
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._farewell: asyncio.Task[None] | None = None

    async def begin(self, program: bytes, preload: tuple[str, ...]) -> None:
        """Sends the zygote its orders and waits until everything is imported."""
        self._tell({"type": "configure", "seccomp": program.hex(), "preload": list(preload)})
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        ready = await self._ready
        self.missing_modules = tuple(str(name) for name in ready["missing"])

    async def spawn(self, sandbox_id: str, limits: Limits, first: FirstContext) -> LinuxGuest:
        """Makes one guest; see the port."""
        if self.ended.done():
            raise SandboxStartError(step="ask the zygote", reason="the template's zygote has ended")

        slot = self._take_slot()
        number = next(self._numbers)
        guest = LinuxGuest(self, number, slot, self._make_cgroup(sandbox_id, limits))
        self._guests[number] = guest
        try:
            self._ask_for(guest, limits, first)
        except BaseException:
            # The zygote does not know it, and will never report its end.
            guest.abandon()
            self._guest_ended(number)
            raise

        try:
            await asyncio.wait_for(guest.greeted(limits), _GREETING_SECONDS)
        except TimeoutError:
            guest.abandon()
            raise SandboxStartError(step="greeting", reason=f"init said nothing for {_GREETING_SECONDS:g} s") from None
        except BaseException:
            guest.abandon()
            raise

        return guest

    async def aclose(self) -> None:
        """Ends the zygote; the kernel ends everything below it."""
        # The zygote leaves when its socket closes. As the first process of its namespace it ends only after all others in
        # it have, so that the keeper's end means that nothing is left.
        self._close_control()
        try:
            await asyncio.wait_for(wait_for_exit(self._keeper), _CLOSE_SECONDS)
        except TimeoutError:
            # Stopped, or hanging. Its keeper is ours to kill, and takes it along.
            self._keeper.kill()
            await wait_for_exit(self._keeper)

        self._all_ended()

        self._ids.release()

    def describe(self, greeting: dict[str, Any]) -> Isolation:
        """Computes the isolation of a guest from what it and the kernel say was applied."""
        return describe_isolation(greeting, self._ids, self._driver, self._cgroup_reason)

    def ask_to_kill(self, number: int) -> None:
        """Lets the zygote kill a guest whose processes belong to another user than we do."""
        if self.ended.done():
            return

        try:
            self._tell({"type": "kill", "sandbox": number})
        except SandboxStartError:
            # Who cannot be told has ended, and all that it made with it.
            return

    def _ask_for(self, guest: LinuxGuest, limits: Limits, first: FirstContext) -> None:
        init_end, *doors = guest.open_guest_fds()
        try:
            options = _readable(self._options(limits, first))
            try:
                message = {"type": "spawn", "sandbox": guest.number, "slot": guest.slot}
                self._tell(message, [init_end, options, *first.fds, *doors])
            finally:
                os.close(options)
        finally:
            for fd in (init_end, *doors):
                os.close(fd)

    def _take_slot(self) -> int:
        """An id that no living sandbox has; ids come round again as late as possible."""
        if self._ids.count == 1:
            return self._ids.first_id

        if not self._free_slots:
            raise CapacityError(resource="user ids", used=self._ids.count, maximum=self._ids.count)

        return self._free_slots.popleft()

    def _make_cgroup(self, sandbox_id: str, limits: Limits) -> cgroups.Cgroup | None:
        if self._driver is None:
            return None

        return self._driver.create(
            cgroups.cgroup_name(CGROUP_PREFIX, sandbox_id),
            memory_bytes=limits.memory_bytes,
            processes=limits.processes + 1,
            cpu_cores=limits.cpu_cores or float(os.cpu_count() or 1),
        )

    def _options(self, limits: Limits, first: FirstContext) -> dict[str, Any]:
        table = {
            "core": 0,
            "nofile": limits.open_files,
            "memlock": 64 * 1024,
            "msgqueue": 64 * 1024,
            "sigpending": 1024,
            "nice": 0,
            "rtprio": 0,
            "nproc": limits.processes + 1,
        }
        context = {"context_id": first.info.id, "language": first.info.language, "cwd": first.info.cwd}
        return {
            "context": {**context, "envs": dict(first.envs)},
            "hostname": HOSTNAME,
            "disk_bytes": limits.disk_bytes,
            "inodes": limits.inodes,
            "rlimits": table,
            "watch_memory_bytes": None if self._driver is not None else limits.memory_bytes,
        }

    def _tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self._control, [data], fds or [])
        except OSError as error:
            raise SandboxStartError(step="ask the zygote", reason=os.strerror(error.errno or errno.EPIPE)) from None

    def _receive(self) -> None:
        while True:
            try:
                data = self._control.recv(_MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""

            if not data:
                self._zygote_ended()
                return

            try:
                message: Any = parse_json(data)
                self._obey(message)
            except (ProtocolError, KeyError, TypeError, ValueError):
                # The zygote runs packages that are not ours. One that talks nonsense is not to be trusted further.
                self._zygote_ended()
                return

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message["type"]

        if kind == "ready" and not self._ready.done():
            if message["threads"] != 1:
                names = "the preloaded modules left threads running, which a clone would lose"
                self._ready.set_exception(SandboxStartError(step="preload", reason=names))
                return

            self._ready.set_result(message)
        elif kind == "failed":
            guest = self._guests.get(message["sandbox"])

            if guest is not None:
                guest.failed("clone", str(message["detail"]))
                self._guest_ended(message["sandbox"])
        elif kind == "exited":
            self._guest_ended(message["sandbox"])

    def _guest_ended(self, number: int) -> None:
        guest = self._guests.pop(number, None)

        if guest is None:
            return

        if self._ids.count > 1:
            self._free_slots.append(guest.slot)

        guest.note_end()

    def _zygote_ended(self) -> None:
        self._close_control()
        self._all_ended()
        # Its keeper ends too: to be reaped, and its ids given back.
        self._farewell = asyncio.get_running_loop().create_task(self.aclose())

        if not self._ready.done():
            self._ready.set_exception(SandboxStartError(step="preload", reason="the zygote ended"))

    def _close_control(self) -> None:
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()

    def _all_ended(self) -> None:
        for number in list(self._guests):
            self._guest_ended(number)

        if not self.ended.done():
            self.ended.set_result(None)


def _readable(options: dict[str, Any]) -> int:
    """Puts a sandbox's options where only its own init reads them: they hold secrets of its user.

    What the zygote once read would stay in its memory, and every later sandbox is a copy of that.
    """
    fd = os.memfd_create("fumehood-options")
    os.write(fd, json.dumps(options).encode())
    return fd


async def wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Waits until a child process has ended, without a thread: at the end of the interpreter none can be had."""
    if process.poll() is not None:
        return

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)
    loop.add_reader(pidfd, lambda: ended.done() or ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)

    process.wait()


class LinuxGuest(Guest):
    """One sandbox made by a zygote."""

    def __init__(self, spawner: LinuxSpawner, number: int, slot: int, cgroup: cgroups.Cgroup | None) -> None:
        self.slot = slot
        self.ended = asyncio.get_running_loop().create_future()
        self.isolation = Isolation(level="none")
        self._spawner = spawner
        self.number = number
        self._cgroup = cgroup
        self._pidfd = -1
        self._limits: Limits | None = None
        self._uploaded_bytes = 0
        self._last_oom_kills = 0
        self._failure: SandboxStartError | None = None
        self._is_open = False

    def open_guest_fds(self) -> list[int]:
        """Makes what init is given: its end of the socket, and the doors of its control groups."""
        self.socket, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._is_open = True
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        return [guest_end.detach(), *(self._cgroup.open_doors() if self._cgroup is not None else ())]

    async def greeted(self, limits: Limits) -> None:
        """Waits for init's greeting, and takes hold of the process that sent it."""
        self._limits = limits
        data, pid = await self._receive_greeting()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        frames = Decoder().feed(data)

        if len(frames) != 1:
            # The zygote knows more; what it says comes on its own socket.
            await asyncio.wait([self.ended], timeout=_LAST_WORDS_SECONDS)
            raise self._failure or SandboxStartError(step="greeting", reason="init ended before it was ready")

        greeting, payload = frames[0]
        messages.check(messages.INIT_GREETING, greeting, payload)

        if greeting["type"] == "failed":
            number = int(greeting["errno"])
            reason = f"{greeting['detail']}" + (f" (errno {number})" if number else "")
            raise IsolationUnavailableError(
                layer=str(greeting["step"]),
                reason=reason,
                how_to_get_it=str(greeting["hint"]) or "run `fumehood doctor` to see what this machine allows",
            )

        # The process cannot have been replaced: its socket is open, and it waits for us.
        self._pidfd = os.pidfd_open(pid)

        self.context_pid = greeting["context_pid"]
        self.isolation = self._spawner.describe(greeting)

    def kill(self) -> None:
        """Ends every process of the sandbox; see the port."""
        if self.ended.done():
            return

        # The end of a PID namespace's first process ends all others in it; no list of pids to race against.
        if self._pidfd < 0:
            self._spawner.ask_to_kill(self.number)
            return

        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._spawner.ask_to_kill(self.number)

    def abandon(self) -> None:
        """Nobody will use it: ends it, and closes the socket that nobody has taken over."""
        self.kill()

        if self._is_open:
            self.socket.close()

    def apply(self, limits: Limits) -> None:
        """Changes the limits that cgroups keep; see the port."""
        self._limits = limits

        if self._cgroup is not None:
            self._cgroup.set_memory_bytes(limits.memory_bytes + self._uploaded_bytes)

    def allow_uploaded(self, byte_count: int) -> None:
        """Raises the memory bound by what the host has uploaded, at most by the size of the disk; see the port."""
        if self._limits is None or self._cgroup is None:
            return

        self._uploaded_bytes = min(self._uploaded_bytes + byte_count, self._limits.disk_bytes)
        self._cgroup.set_memory_bytes(self._limits.memory_bytes + self._uploaded_bytes)

    def cpu_time(self) -> CpuTime | None:
        """CPU time by the cgroup's count; see the port."""
        if self._cgroup is None:
            return None

        user_seconds, system_seconds = self._cgroup.cpu_seconds()
        return CpuTime(user_seconds=user_seconds, system_seconds=system_seconds)

    def memory_bytes(self) -> int | None:
        """Memory by the cgroup's count; see the port."""
        return None if self._cgroup is None else self._cgroup.memory_bytes()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Peak by the cgroup's count; see the port."""
        if self._cgroup is None:
            return None

        if restart:
            self._cgroup.reset_peak()

        return self._cgroup.peak_memory_bytes()

    def oom_kills(self) -> int:
        """Kills by the cgroup's count; see the port."""
        return self._last_oom_kills if self._cgroup is None else self._cgroup.oom_kills()

    def failed(self, step: str, reason: str) -> None:
        """Takes note of why the zygote could not make this guest."""
        self._failure = SandboxStartError(step=step, reason=reason)

    def note_end(self) -> None:
        """Nothing of the sandbox lives any more: gives back what the host held for it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

        if self._cgroup is not None:
            self._last_oom_kills = self._cgroup.oom_kills()
            self._cgroup.remove()
            self._cgroup = None

        if not self.ended.done():
            self.ended.set_result(None)

    async def _receive_greeting(self) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.socket, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(self.socket)

        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        data, ancillary, _, _ = self.socket.recvmsg(_MAX_PACKET_BYTES, space)

        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                return data, _CREDENTIALS.unpack(content)[0]

        return data, 0
