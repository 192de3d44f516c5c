"""Runs a program that builds: reports its steps, keeps its last words, and leaves nothing behind after a failure.

What a program prints comes from package indexes and is text of strangers: it is bounded here, and made harmless by
whoever shows it.
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
        step: What it does, told before it starts.
        argv: The program and its arguments.
        workshop: Which workshop it works for.
        cwd: Where it starts.
        told: First words of the lines that are worth telling.
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
            # The guest is another user than we, and must be able to read what is written here.
            umask=0o022,
            # Ctrl-C comes to us alone; we end the program with all that it has started.
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
