"""The runtime without namespaces: Landlock, seccomp and resource limits, for containers that forbid namespaces.

It is weaker than namespaces in ways that the guide on isolation lists, so it must never be used unless a caller names
its level. If the host runs as root, its guests run as a separate user; if it runs as an ordinary user, they run under
that user's id.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from importlib import resources
from typing import Any

import fumehood_jail
from fumehood.cancellation import finish
from fumehood.errors import IsolationUnavailableError, SandboxStartError, TemplateError
from fumehood.runtimes.base import Room, Runtime
from fumehood.runtimes.landlock.plan import (
    copy_guest_code,
    plain_environment,
    readable_paths,
    template_python,
)
from fumehood.runtimes.landlock.spawner import LandlockSpawner, SandboxFolders
from fumehood.runtimes.launch import LauncherStart
from fumehood.runtimes.launcher_client import until_ended
from fumehood.runtimes.linux.control_groups import CGROUP_PREFIX
from fumehood.runtimes.linux.machine import LinuxRoom
from fumehood.runtimes.preload_reports import LeftOutModules, start_fault
from fumehood.templates.environment import read_environment
from fumehood.templates.given_files import check_files
from fumehood.values.template import Template
from fumehood_jail import cgroups, seccomp, users
from fumehood_jail.advice import joined_reasons
from fumehood_jail.errors import JailError
from fumehood_jail.landlock_fence import why_impossible

_READY_SECONDS = 120.0
_ZYGOTE = (
    "from fumehood_guest.shared.heap_layout import put_off_collections; put_off_collections(); "
    "from fumehood_guest.shared.fork_hooks import leave_out; leave_out(); "
    "from fumehood_guest.template.landlock_zygote import main; main()"
)
_LAUNCHER = "fumehood_jail.landlock_launcher"
_LAYER = "landlock"
_CHECK_ACCESS = "check that its interpreter and its packages can be read by the user of the guests"


class LandlockRuntime(Runtime):
    """Makes sandboxes of Landlock, seccomp and resource limits, as root or as an ordinary user."""

    level = "landlock-only"

    def __init__(self) -> None:
        self._programs: dict[str, bytes] = {}
        self._cgroups: tuple[cgroups.CgroupDriver | None, str] | None = None
        self._room: LinuxRoom | None = None
        self._left_out = LeftOutModules()

    def is_possible(self) -> bool:
        """Whether the kernel can restrict files and signals, and root has another user for its guests."""
        if why_impossible() is not None:
            return False

        try:
            ids = _own_ids()
        except IsolationUnavailableError:
            return False

        if ids is not None:
            ids.release()

        return True

    def room(self) -> Room:
        if self._room is None:
            self._room = LinuxRoom()

        return self._room.read()

    async def start(self, template: Template) -> LandlockSpawner:
        """Starts a launcher and a zygote for the template; returns when everything is imported."""
        return await self._left_out.start(template, self._start)

    async def _start(self, template: Template) -> LandlockSpawner:
        why = why_impossible()

        if why is not None:
            raise IsolationUnavailableError(
                layer=_LAYER,
                reason=why,
                how_to_get_it="Linux 6.12 and later have it; boot with 'landlock' in the kernel's lsm= list",
            )

        if template.image is not None:
            raise TemplateError(
                template=template.name,
                reason="a container image as the root takes namespaces, which are not used at this isolation level",
                hint="Sandbox(isolation='namespaces'), or a template of requirements",
            )

        await asyncio.to_thread(check_files, template)
        folder = _own_folder()
        ids: users.IdPlan | None = None
        given_up = threading.Event()

        def make_place() -> SandboxFolders:
            try:
                return self._place(template, folder, ids)
            finally:
                # The thread continues after a cancellation, and may have written into the folder after it was
                # removed.
                if given_up.is_set():
                    shutil.rmtree(folder, ignore_errors=True)

        try:
            ids = _own_ids()
            place = await asyncio.to_thread(make_place)
            return await self._started(template, folder, place)
        except BaseException:
            given_up.set()
            shutil.rmtree(folder, ignore_errors=True)

            if ids is not None:
                ids.release()

            raise

    def _place(self, template: Template, folder: str, ids: users.IdPlan | None) -> SandboxFolders:
        # Guests of another user must be able to search it; only our user can list it.
        os.chmod(folder, 0o711)  # noqa: S103
        code, rooms = os.path.join(folder, "code"), os.path.join(folder, "rooms")
        os.mkdir(code, 0o755)
        copy_guest_code(code)
        os.mkdir(rooms, 0o700)

        if ids is not None:
            os.chown(rooms, _user_of(ids), _user_of(ids))

        return SandboxFolders(
            rooms=rooms,
            readable=readable_paths(template, read_environment(template), code),
            files=template.files,
            ids=ids,
            cgroup=self._cgroup_place(),
            envs=plain_environment(template),
        )

    async def _started(self, template: Template, folder: str, place: SandboxFolders) -> LandlockSpawner:
        # A user that owns files of the host must not change what Landlock does not restrict: modes, times and
        # attributes.
        guests, ours = (
            ("landlock_only", "landlock_init")
            if place.ids is None
            else ("landlock_own_user", "landlock_own_user_init")
        )
        program = self._program(ours)

        with ExitStack() as unused:
            zygote, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unused.callback(zygote.close)
            unused.callback(zygote_end.close)
            plan = _plan(template, folder, place, program)
            launcher = LauncherStart(_LAUNCHER, plan, {"zygote_fd": zygote_end})
            unused.pop_all()

        spawner: LandlockSpawner | None = None
        try:
            await launcher.launched()
            spawner = LandlockSpawner(zygote, launcher.process, place)

            # `wait_for` of Python 3.11 loses a cancellation that arrives together with the result.
            async with asyncio.timeout(_READY_SECONDS):
                await spawner.begin(self._program(guests), template.preload)
        except BaseException as error:
            await finish(_undo(launcher.process, spawner, zygote))
            importing = spawner.importing if spawner is not None else ""
            fault = start_fault(template, error, importing, launcher.last_words(), _CHECK_ACCESS)

            if fault is error:
                raise

            raise fault from None
        finally:
            launcher.close()

        return spawner

    def _program(self, policy: str) -> bytes:
        if policy not in self._programs:
            path = resources.files(fumehood_jail) / "policies" / f"{policy}.toml"

            with resources.as_file(path) as file:
                self._programs[policy] = seccomp.compile_policy(str(file), platform.machine())

        return self._programs[policy]

    def _cgroup_place(self) -> tuple[cgroups.CgroupDriver | None, str]:
        if self._cgroups is None:
            driver, reasons = cgroups.detect()

            if driver is not None:
                cgroups.sweep(driver, CGROUP_PREFIX)

            self._cgroups = (driver, "; ".join(joined_reasons(reasons)))

        return self._cgroups


async def _undo(
    launcher: subprocess.Popen[bytes], spawner: LandlockSpawner | None, zygote: socket.socket
) -> None:
    """Undoes a start: ends the zygote, if there is one, and then the launcher."""
    if spawner is not None:
        await spawner.aclose()
        return

    zygote.close()
    await until_ended(launcher)


def _plan(template: Template, folder: str, place: SandboxFolders, program: bytes) -> dict[str, Any]:
    """The plan of the launcher, with the system call filter of its own."""
    user = None if place.ids is None else _user_of(place.ids)
    return {
        "argv": [template_python(template), "-B", "-c", _ZYGOTE],
        "envs": {
            **place.envs,
            "PYTHONPATH": os.path.join(folder, "code"),
            "LD_BIND_NOW": "1",
            "MPLCONFIGDIR": os.path.join(place.rooms, "matplotlib"),
        },
        "uid": user,
        "gid": user,
        "folder": folder,
        "rooms": place.rooms,
        "readable": place.readable,
        "seccomp": program.hex(),
    }


def _own_ids() -> users.IdPlan | None:
    """Returns an unassigned id if this process is root; None for an ordinary user, with no right to others.

    Raises:
        IsolationUnavailableError: No other id can be used: guests would be root, and only Landlock would protect
            the files of the host.
    """
    if os.geteuid() != 0:
        return None

    try:
        ids = users.plan_ids()
    except JailError as error:
        why = str(error)
    else:
        if ids.kind == "range":
            return ids

        ids.release()
        why = "; ".join(ids.notes)

    raise IsolationUnavailableError(
        layer="identity",
        reason=f"root has no other user id to give to guests here: {why}",
        how_to_get_it="run it as an ordinary user, or leave the container CAP_SETUID, CAP_SETGID and CAP_SETPCAP",
    )


def _own_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="fumehood-")
    except OSError as error:
        raise SandboxStartError(
            step="make a folder for the sandboxes",
            reason=str(error),
            hint="let TMPDIR name a folder that can be written",
        ) from None


def _user_of(ids: users.IdPlan) -> int:
    """The first id of the block on the host; the user and the group have the same id."""
    return ids.uid_map[0][1] + ids.first_id
