"""An image's own Python runs in the template's processes: here it is hostile from its first instruction.

It need not be Python at all. In these images it is a shell script, which gets the sockets to the engine and the rights
of the base jail. What code that Python imports does beside working processes is in `test_image_templates`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from tests.image_layouts import Entry, Layout, busybox_layer, tar_of

from fumehood import SandboxStartError, TemplateError
from fumehood.engine.contexts.contexts import default_context
from fumehood.runtimes import launcher_client
from fumehood.runtimes.base import ContextLaunch
from fumehood.runtimes.namespaces import runtime as runtime_module
from fumehood.runtimes.namespaces import spawner as spawner_module
from fumehood.runtimes.namespaces.runtime import LinuxRuntime
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.layers import LayerStore, layer_key
from fumehood.templates.images.pull import pull
from fumehood.templates.images.reference import read_reference
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.image import ImageRoot
from fumehood.values.limits import Limits
from fumehood.values.template import Template
from fumehood_jail import cgroups

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's images run their own Python"),
    pytest.mark.timeout(120),
]
_READY = '{"type": "ready", "missing": [], "unfit": {}, "threads": []}'
_MEMORY_BYTES = 96 << 20


class Images:
    """Templates of a small system whose Python is a script."""

    def __init__(self, folder: Path) -> None:
        self._layout = Layout(folder / "layout")
        self._store = LayerStore(str(folder / "layers"))
        self._count = 0

    def template(self, script: str) -> Template:
        """A template whose Python does this."""
        self._count += 1
        program = Entry("bin/python3", f"#!/bin/sh\n{script}\n".encode())
        self._layout.add([busybox_layer(), tar_of([program])])

        with self._store.in_use():
            pulled = pull(
                read_reference(f"oci:{self._layout.folder}"), self._store, RegistryLogins({}), say=print
            )

        layers = tuple(layer_key("sha256", layer.diff_id) for layer in pulled.layers)
        image = ImageRoot(store=self._store.folder, layers=layers, version=(3, 11, 0), python="/bin/python3")
        return Template(name=f"hostile{self._count}", preload=(), image=image)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Images:
    folder = tmp_path_factory.mktemp("hostile")
    return Images(folder)


@pytest.fixture
def impatient(monkeypatch):
    """The engine waits for seconds and not for minutes."""
    monkeypatch.setattr(runtime_module, "_READY_SECONDS", 2.0)
    monkeypatch.setattr(spawner_module, "_GREETING_SECONDS", 1.0)
    monkeypatch.setattr(launcher_client, "_CLOSE_SECONDS", 0.5)


def _fault(template: Template, memory_bytes: int = _MEMORY_BYTES) -> TemplateError:
    """Starts a template that fails, and returns the error; nothing of it is left."""

    async def start() -> TemplateError:
        with pytest.raises(TemplateError) as raised:
            await LinuxRuntime(memory_bytes).start(template)

        return raised.value

    fault = asyncio.run(start())
    assert _groups() == []
    return fault


def _groups() -> list[str]:
    """The control groups of templates of this process, and how many processes each has."""
    driver, _ = cgroups.detect()
    mine = f"{cgroups.cgroup_family(spawner_module.CGROUP_PREFIX)}template"
    return [] if driver is None else [name for name in os.listdir(driver.parent) if name.startswith(mine)]


needs_groups = pytest.mark.skipif(cgroups.detect()[0] is None, reason="this machine has no control groups")


@needs_groups
def test_memory_of_a_templates_processes_is_bounded(images):
    """One that takes more is ended, with an error that says so; the control takes as much under a larger bound."""
    greedy = images.template("dd if=/dev/zero of=/dev/null bs=128M count=1 && echo took it >&2")
    assert "took more than 0.09375 GiB of memory" in str(_fault(greedy))
    assert "took it" in str(_fault(greedy, memory_bytes=512 << 20))


@needs_groups
def test_standard_error_of_a_templates_processes_counts_as_memory(images):
    """It is a file in memory that the host holds as well, charged to who writes it."""
    greedy = images.template("dd if=/dev/zero bs=1M count=128 >&2 && echo took it >&2")
    assert "took more than" in str(_fault(greedy))
    assert "took it" in str(_fault(greedy, memory_bytes=512 << 20))


@needs_groups
def test_processes_of_a_template_are_bounded(images):
    """A fork bomb ends at its own bound, far below the machine's; the control forks fewer."""
    bomb = "i=0; while [ $i -lt {} ]; do sleep 1000 & i=$((i+1)); done; echo forked >&2"
    assert "can't fork" in str(_fault(images.template(bomb.format(2000))))
    assert "forked" in str(_fault(images.template(bomb.format(100))))


def test_one_that_hangs_at_its_start_is_given_up(images, impatient):
    """Its processes are killed, and the error says why; whether it answers the engine makes no difference."""
    assert "not ready in time" in str(_fault(images.template("trap '' TERM HUP INT; sleep 1000 & wait")))
    half_done = images.template(f"printf '%s' '{_READY}' >&4; trap '' TERM; sleep 1000 & wait")
    assert "init sent nothing for 1 s" in str(asyncio.run(_spawned(half_done)))
    assert _groups() == []


async def _spawned(template: Template) -> SandboxStartError:
    """The error of a sandbox of a template that says it is ready; its processes have ended then."""
    spawner = await LinuxRuntime(_MEMORY_BYTES).start(template)
    launch = ContextLaunch(fds=(0, 1, 2), info=default_context(HOME_PATH), envs={})
    try:
        with pytest.raises(SandboxStartError) as raised:
            await spawner.spawn("forged", Limits(), lambda: launch)
    finally:
        await spawner.aclose()

    return raised.value


def test_an_answer_that_nothing_has_asked_for_ends_a_template(images, impatient):
    """Each order allows its answers. The control says no more than it may, and stays."""

    async def is_over(template: Template) -> bool:
        try:
            spawner = await LinuxRuntime(_MEMORY_BYTES).start(template)
        except TemplateError:
            return True

        try:
            return bool((await asyncio.wait([spawner.ended], timeout=1.0))[0])
        finally:
            await spawner.aclose()

    ready = f"printf '%s' '{_READY}' >&4"
    forged = 'printf \'%s\' \'{"type": "exited", "sandbox": 1, "status": 0}\' >&3'
    assert asyncio.run(is_over(images.template(f"{ready}; {forged}; sleep 1000 & wait")))
    assert not asyncio.run(is_over(images.template(f"{ready}; sleep 1000 & wait")))


def test_signals_reach_nothing_outside(images):
    """Neither all that may be signalled nor a number of the host's; the control is the same signal from outside."""
    with subprocess.Popen(["sleep", "1000"]) as victim:
        line = f"kill -9 -1; kill -9 1; for p in {os.getpid()} {victim.pid}; do kill -9 $p && n=$n+1; done"
        assert "killed nothing" in str(_fault(images.template(f"{line}; echo killed ${{n:-nothing}} >&2")))
        assert victim.poll() is None
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL


def test_nothing_of_the_host_is_open_in_it(images):
    """Beside the null device and its standard error it has two sockets; what let it into its group is closed."""
    line = (
        'for n in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$n ] && s="$s $n:$(readlink /proc/$$/fd/$n)"; done'
    )
    said = str(_fault(images.template(f"exec 10>&-; {line}; echo $s >&2")))
    found = re.findall(r"(\d):(\S+)", said)
    assert [int(number) for number, _ in found] == [0, 1, 2, 3, 4]
    assert [name.partition(":")[0] for _, name in found] == [
        *("/dev/null", "/dev/null", "/memfd", "socket", "socket"),
    ]
