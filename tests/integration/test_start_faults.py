"""X09: the machine has nothing left while a template is started: it is told and undone, and later it works."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from typing import Any

import pytest

from fumehood import OverloadedError, Sandbox, Template
from fumehood.assemble import local_backend
from fumehood.portal import call, shared_portal

from . import census

_numbers = itertools.count()
# What is asked of the system, and what it answers when it has no more.
NOTHING_LEFT = {
    "fork": (subprocess, "Popen", errno.EAGAIN),
    "a pidfd": (os, "pidfd_open", errno.EMFILE),
    "a memory file": (os, "memfd_create", errno.ENFILE),
    "memory": (os, "memfd_create", errno.ENOMEM),
}


def _use(name: str) -> str | None:
    with Sandbox(template=Template(name=name, preload=())) as sandbox:
        return sandbox.run_code("6 * 7").text


@pytest.mark.parametrize("what", NOTHING_LEFT)
def test_x09_a_template_that_cannot_be_started_leaves_nothing(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it and says that nothing was done; no descriptor, block of ids or process stays behind."""
    module, function, number = NOTHING_LEFT[what]
    name = f"starved {next(_numbers)}"

    original = getattr(module, function)

    def refuse(*arguments: Any, **named: Any) -> Any:
        # The interpreter is asked what it is before; that is another process.
        if function == "Popen" and not named.get("pass_fds"):
            return original(*arguments, **named)

        raise OSError(number, os.strerror(number))

    assert _use("fed") == "42"
    call(local_backend().wait_warm, "fed")
    loop = shared_portal().loop
    before = census.holdings(loop)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, refuse)

        for _ in range(3):
            with pytest.raises(OverloadedError) as caught:
                _use(name)

            assert caught.value.retry_safe

    assert census.excess(lambda: census.holdings(loop), before) == {}
    assert _use(name) == "42"
