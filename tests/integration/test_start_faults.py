"""X09: the machine has nothing left while a template is started: it is told and undone, and later it works."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from fumehood import Limits, OverloadedError, Sandbox, SandboxClosedError, SandboxStartError, Template
from fumehood.assemble import local_backend
from fumehood.portal import call, shared_portal
from fumehood.runtimes.base import ContextLaunch
from fumehood.runtimes.namespaces.guest import LinuxGuest
from fumehood_jail.cgroup_v1 import CgroupDriverV1
from fumehood_jail.cgroup_v2 import CgroupDriverV2
from fumehood_jail.errors import JailError
from fumehood_wire.frames import encode

from . import census

_numbers = itertools.count()
# What is asked of the system, and what it answers when it has no more.
NOTHING_LEFT = {
    "fork": (subprocess, "Popen", errno.EAGAIN),
    "a pidfd": (os, "pidfd_open", errno.EMFILE),
    "a memory file": (os, "memfd_create", errno.ENFILE),
    "memory": (os, "memfd_create", errno.ENOMEM),
}


def _refusing(module: Any, function: str, number: int, applies: Callable[[Any, Any], bool]) -> Any:
    original = getattr(module, function)

    def refuse(*arguments: Any, **named: Any) -> Any:
        if not applies(arguments, named):
            return original(*arguments, **named)

        raise OSError(number, os.strerror(number))

    return refuse


def _use(name: str) -> str | None:
    """Uses a sandbox of a template, and waits until as many are ready again as there are at rest."""
    with Sandbox(template=Template(name=name, preload=())) as sandbox:
        text = sandbox.run_code("6 * 7").text

    call(local_backend().wait_warm, name)
    return text


def _open_resources_at_rest() -> dict[str, int]:
    # Other tests of this process have used the default template just before.
    call(local_backend().wait_warm)
    return census.open_resources(shared_portal().loop)


@pytest.mark.parametrize("what", NOTHING_LEFT)
def test_x09_a_template_that_cannot_be_started_leaves_nothing(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it and says that nothing was done; no descriptor, block of ids or process stays behind."""
    module, function, number = NOTHING_LEFT[what]
    name = f"starved {next(_numbers)}"

    # The interpreter is asked what it is before; that is another process.
    refuse = _refusing(
        module, function, number, lambda _, named: function != "Popen" or bool(named.get("pass_fds"))
    )
    assert _use("fed") == "42"
    loop = shared_portal().loop
    before = _open_resources_at_rest()

    with monkeypatch.context() as patch:
        patch.setattr(module, function, refuse)

        for _ in range(3):
            with pytest.raises(OverloadedError) as caught:
                _use(name)

            assert caught.value.retry_safe

    assert census.excess(lambda: census.open_resources(loop), before) == {}
    assert _use(name) == "42"


def test_a_machine_that_is_full_for_a_moment_is_not_taken_for_a_weaker_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever allows a weaker level gets it where a layer is missing, not because of a bad moment."""

    async def fail(self: LinuxGuest) -> tuple[bytes, int]:
        greeting = {"type": "failed", "step": "mount", "errno": errno.ENOMEM, "detail": "a tmpfs", "hint": ""}
        return encode(greeting), os.getpid()

    assert _use("fed") == "42"
    template = Template(name=f"starved {next(_numbers)}", preload=())

    with monkeypatch.context() as patch:
        patch.setattr(LinuxGuest, "_receive", fail)

        with pytest.raises(SandboxStartError) as caught:
            Sandbox(template=template, isolation="landlock-only")

        assert type(caught.value) is SandboxStartError
        assert "Cannot allocate memory" in str(caught.value)

    with Sandbox(template=template, isolation="landlock-only") as sandbox:
        assert sandbox.get_info().isolation.level == "namespaces"

    assert _use(template.name) == "42"


def test_an_end_that_is_reported_before_the_birth_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes may be killed while the first word of init lies in the socket."""
    assert _use("fed") == "42"
    loop = shared_portal().loop
    before = _open_resources_at_rest()
    receive = LinuxGuest._receive
    killed: list[int] = []

    async def receive_after_the_end(self: LinuxGuest) -> tuple[bytes, int]:
        word, pid = await receive(self)

        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
            await self.ended

        return word, pid

    with monkeypatch.context() as patch:
        patch.setattr(LinuxGuest, "_receive", receive_after_the_end)
        # As if the number still led somewhere: of a killed template nobody has reaped the processes yet.
        patch.setattr(os, "pidfd_open", lambda _pid, *_: os.dup(0))

        with pytest.raises(SandboxStartError, match="init ended before it was ready"):
            Sandbox(template=Template(name="fed", preload=()), limits=Limits(disk_bytes=8 << 20))

    assert census.excess(lambda: census.open_resources(loop), before) == {}


def test_a_control_group_that_cannot_be_made_is_reported_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's bound on them is reached, say."""
    assert _use("fed") == "42"

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise JailError("cgroup", errno.EAGAIN, "cannot make a control group")

    loop = shared_portal().loop
    before = _open_resources_at_rest()

    with monkeypatch.context() as patch:
        for driver in (CgroupDriverV1, CgroupDriverV2):
            patch.setattr(driver, "create", refuse)

        # Another bound than that of those that are ready.
        with pytest.raises(SandboxStartError, match="make its control group"):
            Sandbox(template=Template(name="fed", preload=()), limits=Limits(disk_bytes=8 << 20))

    assert census.excess(lambda: census.open_resources(loop), before) == {}


@pytest.mark.parametrize(
    ("what", "function"), [("a memory file", (os, "memfd_create")), ("a listener", (socket, "socketpair"))]
)
def test_x09_a_context_that_cannot_be_started_leaves_nothing(
    what: str, function: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was made for it is given back, and the next one starts."""
    module, name = function
    # The engine's own pairs are streams.
    refuse = _refusing(
        module, name, errno.EMFILE, lambda given, _: what == "a memory file" or socket.SOCK_SEQPACKET in given
    )

    template = f"fed {next(_numbers)}"

    with Sandbox(template=Template(name=template, preload=())) as sandbox:
        sandbox.create_code_context()
        call(local_backend().wait_warm, template)
        loop = shared_portal().loop
        before = _open_resources_at_rest()

        with monkeypatch.context() as patch:
            patch.setattr(module, name, refuse)

            for _ in range(3):
                with pytest.raises(OverloadedError):
                    sandbox.create_code_context()

        assert census.excess(lambda: census.open_resources(loop), before) == {}
        context = sandbox.create_code_context()
        assert sandbox.run_code("6 * 7", context=context).text == "42"


def test_a_context_that_is_started_as_its_sandbox_ends_says_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing leads to its init any more: that is no fault of the host's."""
    start = LinuxGuest.start_context

    def start_too_late(guest: LinuxGuest, launching: ContextLaunch) -> Any:
        pidfd, guest._pidfd = guest._pidfd, -1
        try:
            return start(guest, launching)
        finally:
            guest._pidfd = pidfd
            guest.kill()

    with Sandbox(template=Template(name="fed", preload=())) as sandbox:
        monkeypatch.setattr(LinuxGuest, "start_context", start_too_late)

        with pytest.raises((SandboxClosedError, SandboxStartError)):
            sandbox.create_code_context()
