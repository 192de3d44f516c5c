"""The Linux runtime: namespaces, Landlock, seccomp and cgroups.

It starts the launcher, which does all privileged steps, sends it the plan, and reports truthfully which layers were
applied.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

import fumehood_jail
from fumehood.bounds import TEMPLATE_MEMORY_BYTES
from fumehood.cancellation import abandon, cancel_and_wait, finish
from fumehood.errors import IsolationUnavailableError, SandboxStartError, TemplateError
from fumehood.runtimes.base import Room, Runtime
from fumehood.runtimes.launch import LauncherStart
from fumehood.runtimes.launcher_client import wait_for_exit
from fumehood.runtimes.linux.control_groups import CGROUP_PREFIX
from fumehood.runtimes.linux.machine import LinuxRoom
from fumehood.runtimes.namespaces.image_plan import (
    image_environment,
    image_python,
    image_root_plan,
    runs_programs,
    template_environment,
)
from fumehood.runtimes.namespaces.plan import GUEST_PACKAGES, GUEST_PYTHON, guest_environment, root_plan
from fumehood.runtimes.namespaces.spawner import Filters, LinuxSpawner
from fumehood.runtimes.namespaces.template_group import TemplateGroup
from fumehood.runtimes.preload_reports import LeftOutModules, start_fault
from fumehood.templates.environment import read_environment
from fumehood.templates.given_files import check_files
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.languages import PREPARED_PATH
from fumehood.values.template import Template
from fumehood_jail import cgroups, landlock_fence, probe, seccomp, users
from fumehood_jail.advice import joined_reasons
from fumehood_jail.errors import JailError
from fumehood_jail.launch import BASE_UID

# Importing pandas and matplotlib on a slow, busy machine takes seconds; building a font cache takes much longer.
_READY_SECONDS = 120.0

_LEVEL = "isolation level"
_GET_LEVEL = (
    "Get what is required above; until then Sandbox(isolation='landlock-only') where that is listed here."
)

_GET_IDS = (
    "End other templates, or sandboxes with an interpreter of their own, each of which has a block as well; "
    "or list a larger range in /etc/subuid and /etc/subgid."
)

_CHECK_IMPORTS = "check that IPython and the preloaded modules can be imported by the template's interpreter"

_JAIL_INIT = (
    # Nothing is imported from the working directory, which is the root of an image.
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from fumehood_guest.shared.heap_layout import put_off_collections; put_off_collections(); "
    "from fumehood_guest.shared.fork_hooks import leave_out; leave_out(); "
    "from fumehood_guest.template.jail_init import main; main()"
)
_LAUNCHER = "fumehood_jail.launcher"


class LinuxRuntime(Runtime):
    """Makes sandboxes out of Linux namespaces, as root or as an ordinary user.

    Args:
        template_memory_bytes: Memory limit for a template's own processes, if code of an image runs in them.
    """

    level = "namespaces"

    def __init__(self, template_memory_bytes: int = TEMPLATE_MEMORY_BYTES) -> None:
        self._template_memory_bytes = template_memory_bytes
        self._programs: dict[str, bytes] = {}
        self._filters: Filters | None = None
        self._cgroups: tuple[cgroups.CgroupDriver | None, str] | None = None
        self._room: LinuxRoom | None = None
        self._left_out = LeftOutModules()
        self._begun: tuple[Template, asyncio.Task[LinuxSpawner]] | None = None

    def room(self) -> Room:
        if self._room is None:
            self._room = LinuxRoom()

        return self._room.read()

    async def start(self, template: Template) -> LinuxSpawner:
        """Starts a launcher, a jail init and a zygote for the template; returns when everything is imported."""
        return await self._left_out.start(template, self._start)

    async def begin(self, template: Template) -> None:
        """Begins a start that a later call of `start` completes; returns when its processes run, not yet ready.

        `start` reports a failure after that.
        """
        launched = await self._launch(template)
        self._begun = template, asyncio.create_task(self._until_ready(template, launched))

    async def end_begun(self) -> None:
        """Ends the processes of a start for which `start` was not called."""
        begun, self._begun = self._begun, None

        if begun is None:
            return

        task = begun[1]
        await cancel_and_wait(task)

        if not task.cancelled() and task.exception() is None:
            await task.result().aclose()

    async def _start(self, template: Template) -> LinuxSpawner:
        begun, self._begun = self._begun, None

        if begun is not None and begun[0] == template:
            return await begun[1]

        if begun is not None:
            abandon(begun[1], lambda spawner: spawner.end_with_guests())

        return await self._until_ready(template, await self._launch(template))

    async def _launch(self, template: Template) -> _Launched:
        """Starts the launcher of a template's processes."""
        await asyncio.to_thread(check_files, template)
        root = await asyncio.to_thread(_root_of, template)
        freezer = self._freezer()
        program = self._program("zygote")
        group = self._template_group(template)

        with ExitStack() as unused:
            if group is not None:
                unused.callback(group.discard)

            ids = _plan_ids(has_image=template.image is not None)
            unused.callback(ids.release)
            jail_init, jail_init_end = _packet_pair(unused)
            zygote, zygote_end = _packet_pair(unused)
            plan = _plan(root, ids, program, freezer)
            ends = {"jail_init_fd": jail_init_end, "zygote_fd": zygote_end}
            launcher = LauncherStart(_LAUNCHER, plan, ends, group.open_fds() if group is not None else ())
            return _Launched(
                launcher,
                (jail_init, zygote),
                ids,
                {**root.guest_envs, **template.envs},
                group,
                unused.pop_all(),
            )

    async def _until_ready(self, template: Template, launched: _Launched) -> LinuxSpawner:
        """Waits until a template's processes have imported everything; undoes their start if that fails."""
        launcher, group = launched.launcher, launched.group
        spawner: LinuxSpawner | None = None
        try:
            # While the launcher's interpreter starts: compiling takes as long.
            filters = self._sandbox_filters()
            await _until_launched(launcher)
            jail_init, zygote = launched.sockets
            spawner = LinuxSpawner(
                jail_init=jail_init,
                zygote=zygote,
                launcher=launcher.process,
                ids=launched.ids,
                cgroup_place=self._cgroup_place(),
                guest_envs=launched.guest_envs,
            )
            spawner.group = group
            spawner.workdir = template.image.workdir if template.image is not None else HOME_PATH

            # `wait_for` of Python 3.11 loses a cancellation that arrives together with the result.
            async with asyncio.timeout(_READY_SECONDS):
                image = template.image
                await spawner.begin(
                    filters,
                    template.preload,
                    runs_programs=image is None or runs_programs(image),
                    has_one_sandbox=template.own_interpreter,
                )
        except BaseException as error:
            await finish(_undo(launcher.process, spawner, launched.made, group))
            importing = spawner.importing if spawner is not None else ""
            fault = start_fault(template, error, importing, launcher.last_words(), _CHECK_IMPORTS)

            if group is not None and isinstance(fault, TemplateError):
                fault = group.fault(template.name) or fault

            if fault is error:
                raise

            raise fault from None
        finally:
            launcher.close()

        return spawner

    def _program(self, policy: str) -> bytes:
        if policy not in self._programs:
            with _policy_file(policy) as file:
                self._programs[policy] = seccomp.compile_policy(file, platform.machine())

        return self._programs[policy]

    def _sandbox_filters(self) -> Filters:
        if self._filters is None:
            with _policy_file("sandbox") as file:
                policy, machine = seccomp.read_policy(file), platform.machine()

            self._filters = Filters(
                program=seccomp.compile_policy(policy, machine),
                notifying_program=seccomp.compile_policy(policy, machine, is_notifying=True),
                notified_calls=seccomp.notified_calls(policy, machine),
            )

        return self._filters

    def _cgroup_place(self) -> tuple[cgroups.CgroupDriver | None, str]:
        """Finds the writable cgroups once, and removes those of hosts that have died."""
        if self._cgroups is None:
            driver, reasons = cgroups.detect()

            if driver is not None:
                cgroups.sweep(driver, CGROUP_PREFIX)

            self._cgroups = (driver, "; ".join(joined_reasons(reasons)))

        return self._cgroups

    def _template_group(self, template: Template) -> TemplateGroup | None:
        """Makes the control group of a template's processes, if an image's own Python is to run in them."""
        driver, _ = self._cgroup_place()

        if driver is None or template.image is None or not runs_programs(template.image):
            return None

        return TemplateGroup(driver, CGROUP_PREFIX, self._template_memory_bytes)

    def _freezer(self) -> dict[str, str] | None:
        """Returns where the launcher finds the cgroups to thaw when this process has died; None without a freezer."""
        driver, _ = self._cgroup_place()

        if driver is None or driver.freezer_parent is None:
            return None

        return {"parent": driver.freezer_parent, "family": cgroups.cgroup_family(CGROUP_PREFIX)}


def _plan_ids(*, has_image: bool) -> users.IdPlan:
    try:
        ids = users.plan_ids()
        return users.with_image_files(ids) if has_image else ids
    except JailError as error:
        hint = _GET_IDS if error.errno == errno.EBUSY else error.hint
        raise SandboxStartError(step=error.step, reason=error.detail, hint=hint) from None


def _packet_pair(unused: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Makes a pair of packet sockets, closed by `unused` unless it is emptied first."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unused.callback(near.close)
    unused.callback(far.close)
    return near, far


async def _undo(
    launcher: subprocess.Popen[bytes],
    spawner: LinuxSpawner | None,
    made: ExitStack,
    group: TemplateGroup | None,
) -> None:
    """Undoes a start: ends its processes first, then releases their group, the sockets and the ids."""
    launcher.kill()
    await wait_for_exit(launcher)

    if spawner is not None:
        await spawner.aclose()
    elif group is not None:
        await group.remove()

    made.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    """The root and the environments of a template's processes.

    Attributes:
        plan: The plan for `fumehood_jail.mounts.build_root`.
        python: The interpreter's path in it.
        template_envs: Environment of jail init and zygote.
        guest_envs: Environment of programs in sandboxes, without the template's own.
    """

    plan: dict[str, Any]
    python: str
    template_envs: dict[str, str]
    guest_envs: dict[str, str]


def _root_of(template: Template) -> _Root:
    root = _bare_root_of(template)

    if template.languages is not None:
        root.plan["binds"].append((template.languages, PREPARED_PATH))

    return root


def _bare_root_of(template: Template) -> _Root:
    if (image := template.image) is not None:
        return _Root(
            plan=image_root_plan(image, BASE_UID, template.files),
            python=image_python(image),
            template_envs=template_environment(image),
            guest_envs=image_environment(image),
        )

    environment = read_environment(template)
    guest_envs = guest_environment(environment)
    return _Root(
        plan=root_plan(environment, BASE_UID, template.files),
        python=GUEST_PYTHON,
        template_envs={**guest_envs, **template.envs, "PYTHONPATH": GUEST_PACKAGES},
        guest_envs=guest_envs,
    )


def _plan(root: _Root, ids: users.IdPlan, program: bytes, freezer: dict[str, str] | None) -> dict[str, Any]:
    """The plan of the launcher, with the system call filter of the zygote."""
    return {
        "argv": [root.python, "-B", "-c", _JAIL_INIT],
        "envs": {
            **root.template_envs,
            # Symbols are bound once, and not again in each fork.
            "LD_BIND_NOW": "1",
            "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108 - in the base jail
        },
        "freezer": freezer,
        "root": root.plan,
        "ids": ids.to_dict(),
        "seccomp": program.hex(),
    }


async def _until_launched(launcher: LauncherStart) -> None:
    """Waits until the jail init's interpreter has been started; an error names the layer that the machine lacks.

    Raises:
        IsolationUnavailableError: A step of the launch failed; the error names it and the remedy.
        SandboxStartError: The machine lacks resources for now, or the report cannot be read.
    """
    try:
        await launcher.launched()
    except IsolationUnavailableError as fault:
        missing = await asyncio.to_thread(_missing_layer)

        if missing is None:
            raise

        raise IsolationUnavailableError(
            layer=missing.name, reason=f"{missing.why}; {fault.reason}", how_to_get_it=missing.how_to_get_it
        ) from None


@dataclass(frozen=True, slots=True)
class _Launched:
    """A running launcher, with the host's resources for its template's processes.

    Attributes:
        launcher: The launcher.
        sockets: The sockets to the jail init and to the zygote.
        ids: The user ids of its sandboxes.
        guest_envs: Environment of programs in sandboxes.
        group: The control group of the processes, if they have one.
        made: Holds sockets, ids and group, and releases them when it is closed.
    """

    launcher: LauncherStart
    sockets: tuple[socket.socket, socket.socket]
    ids: users.IdPlan
    guest_envs: dict[str, str]
    group: TemplateGroup | None
    made: ExitStack


@contextmanager
def _policy_file(policy: str) -> Iterator[str]:
    with resources.as_file(resources.files(fumehood_jail) / "policies" / f"{policy}.toml") as file:
        yield str(file)


def _missing_layer() -> probe.ProbedLayer | None:
    """Returns the required layer that is missing, by trying each alone: more precise than the step that failed."""
    try:
        layers = probe.probe()
    except JailError:
        return None

    return next((layer for layer in layers if layer.need == "required" and layer.state == "missing"), None)


def doctor() -> list[dict[str, str]]:
    """Describes every layer on this machine: whether it is available, why not, and how to get it."""
    layers = probe.probe()
    return [layer.to_dict() for layer in (*layers, _level(layers))]


def _level(layers: list[probe.ProbedLayer]) -> probe.ProbedLayer:
    """Returns the strongest level that sandboxes can reach here, according to the layers."""
    required = [layer for layer in layers if layer.need == "required" and layer.state == "missing"]
    missing = [layer.name for layer in required if not layer.cause]

    if not missing:
        return probe.ProbedLayer(
            _LEVEL, "there", "advice", "namespaces: what a sandbox gets unless it names another"
        )

    lacks = f"namespaces cannot be reached without: {', '.join(missing)}"
    why = landlock_fence.why_impossible() or _why_root_stays()

    if why is not None:
        return probe.ProbedLayer(
            _LEVEL, "missing", "advice", f"none; {lacks}; landlock-only: {why}", _GET_LEVEL
        )

    return probe.ProbedLayer(
        _LEVEL, "degraded", "advice", f"landlock-only, for those who name it; {lacks}", _GET_LEVEL
    )


def _why_root_stays() -> str | None:
    """Returns why landlock-only cannot run root's guests as another user; None if it can."""
    if os.geteuid() != 0:
        return None

    try:
        ids = users.plan_ids()
    except JailError as error:
        return str(error)

    ids.release()
    return (
        None
        if ids.kind == "range"
        else f"root has no other user id to give to guests: {'; '.join(ids.notes)}"
    )
