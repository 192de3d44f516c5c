"""Starts the jailed processes that handle an image's content, feeds them, and reads their bounded answers.

Runs in the host process. The process that is started acts for the host until it has cloned the jailed one
(`fumehood_guest.image.jail`); it gets a plan on a descriptor, and no data of the image.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import IO, Any

import fumehood_jail
from fumehood.errors import TemplateStoreError
from fumehood_jail import seccomp, users

# The folder of our code is its working directory, and not in its arguments, which programs of an image can read.
_STARTER = (
    "import sys; sys.path.insert(0, ''); from fumehood_guest.image.jail import main; main(int(sys.argv[1]))"
)
_MOST_ANSWER = 1 << 20
_END_SECONDS = 10.0
_PIECE_BYTES = 1 << 16
_FEW_IDS = "this container maps too few user ids for those of an image: run it with 65536 more, or as an ordinary user"


class Jailed:
    """A jailed process that was started.

    Attributes:
        process: The process outside of the jail that waits for the jailed one.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def feed(self, data: bytes) -> bool:
        """Writes to the process's standard input; returns False once the process has closed it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
        except BrokenPipeError:
            return False

        return True

    def answer(self) -> dict[str, Any]:
        """Closes the process's input and returns its answer; an answer with `failed` if it gives none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

        text = self.process.stdout.read(_MOST_ANSWER)
        status = self.process.wait()
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None

        if not isinstance(fields, dict):
            return {
                "failed": "unpack",
                "detail": f"the jailed process ended with {status}, without an answer",
            }

        return fields


def image_ids(template: str) -> users.IdPlan:
    """Returns the plan of the ids that own files of images on this machine.

    Raises:
        TemplateStoreError: There are too few.
    """
    plan = users.plan_image_ids()

    if plan is None:
        raise TemplateStoreError(template=template, operation="build", reason=_FEW_IDS)

    return plan


@contextmanager
def jailed(plan: Mapping[str, Any], *pass_fds: int, **streams: Any) -> Iterator[Jailed]:
    """Starts a jailed process for the block; at its end the process and all that it has started are gone.

    Args:
        plan: The plan for `fumehood_guest.image.jail`, without the descriptors.
        pass_fds: Descriptors that the process inherits, under the same numbers.
        streams: The targets of its standard streams, as `subprocess.Popen` takes them; pipes if not given.
    """
    plan_fd = os.memfd_create("fumehood-image-plan")
    host_pidfd = os.pidfd_open(os.getpid())
    try:
        os.write(plan_fd, json.dumps({**plan, "host_pidfd": host_pidfd}).encode())
        os.lseek(plan_fd, 0, os.SEEK_SET)
        folder = os.path.dirname(os.path.dirname(os.path.abspath(fumehood_jail.__file__ or "")))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _STARTER, str(plan_fd)],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **streams},
            cwd=folder,
            env={},
            pass_fds=(plan_fd, host_pidfd, *pass_fds),
            start_new_session=True,
        )
    finally:
        os.close(plan_fd)
        os.close(host_pidfd)

    try:
        yield Jailed(process)
    finally:
        if process.poll() is None:
            # The jailed process dies with this one, and the kernel ends all that it has started.
            process.send_signal(signal.SIGKILL)
            process.wait()
            _wait_for_end(process.stdout)

        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def _wait_for_end(stdout: IO[bytes] | None) -> None:
    """Waits until no process of the jail holds its output open; the folders that it wrote to may be deleted then."""
    deadline = time.monotonic() + _END_SECONDS

    while stdout is not None and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([stdout], [], [], left)

        if ready and not os.read(stdout.fileno(), _PIECE_BYTES):
            return


@cache
def compiled_policy(name: str) -> str:
    """Returns a compiled system call policy in hex."""
    with resources.as_file(resources.files(fumehood_jail) / "policies" / f"{name}.toml") as file:
        return seccomp.compile_policy(str(file), platform.machine()).hex()
