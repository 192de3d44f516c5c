"""Runs a program of a build: reports its steps, keeps its last lines, and leaves nothing behind after a failure.

Its output comes from package indexes and is untrusted: it is bounded here, and escaped where it is shown.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence

from fumehood.errors import TemplateStoreError
from fumehood.templates.source import Workshop

_KEPT_LINES = 12
_LINE_CHARACTERS = 400


def run_program(
    step: str, argv: Sequence[str], workshop: Workshop, *, cwd: str, told: Sequence[str] = (), hint: str = ""
) -> None:
    """Runs `argv` until it ends.

    Args:
        step: Its name, reported before it starts.
        argv: The program and its arguments.
        workshop: Its workshop.
        cwd: Its working directory.
        told: First words of the lines to report.
        hint: The way out when it fails.

    Raises:
        TemplateStoreError: It could not be started, or did not end with 0.
    """
    workshop.say(step)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        program = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            # The guest is another user, and must be able to read the written files.
            umask=0o022,
            # Ctrl-C reaches only this process, which then ends the program with its children.
            start_new_session=True,
            pass_fds=(workshop.lock_fd,),
        )
    except OSError as error:
        raise TemplateStoreError(
            template=workshop.template,
            operation="build",
            reason=f"{step}: {argv[0]!r} could not be started: {error}",
            hint=hint,
        ) from None

    with program:
        try:
            _listen(program, workshop, lines, told)
        except BaseException:
            os.killpg(program.pid, signal.SIGKILL)
            raise

    if program.returncode:
        words = "".join(f"\n    {line}" for line in lines)
        raise TemplateStoreError(
            template=workshop.template,
            operation="build",
            reason=f"{step} failed with exit code {program.returncode}:{words}",
            hint=hint,
        )


def _listen(
    program: subprocess.Popen[str], workshop: Workshop, lines: deque[str], told: Sequence[str]
) -> None:
    if program.stdout is None:
        return

    for text in program.stdout:
        line = text.rstrip()[:_LINE_CHARACTERS]

        if not line:
            continue

        lines.append(line)

        if line.lstrip().startswith(tuple(told)):
            workshop.say(line.strip())
