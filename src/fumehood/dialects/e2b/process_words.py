"""The messages of `process.Process`, to and from the port's.

Pure functions.
"""

from __future__ import annotations

import base64
from typing import Any

from fumehood.dialects.e2b.fields import Fields
from fumehood.dialects.e2b.paths import inside
from fumehood.dialects.e2b.result_words import dropped_text
from fumehood.dialects.e2b.surroundings import given_envs, shown_envs
from fumehood.errors import InvalidArgumentError
from fumehood.values.requests import ProcessEvent, ProcessExited, ProcessSpec
from fumehood.values.sandbox import ProcessInfo, PtySize

KEEPALIVE: dict[str, Any] = {"event": {"keepalive": {}}}
_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}


def read_spec(request: Fields, sandbox_id: str, timeout_seconds: float | None) -> ProcessSpec:
    """Returns the command that a StartRequest asks for."""
    config = request.inner("process") or Fields({}, "process.")
    command = config.text("cmd")

    if not command:
        raise InvalidArgumentError(field="process.cmd", value=command, allowed="a program")

    terminal = request.inner("pty")
    size = _size(terminal) if terminal is not None else None
    return ProcessSpec(
        argv=(command, *config.texts("args")),
        cwd=inside(config.text("cwd")),
        envs=shown_envs(sandbox_id, config.strings("envs")),
        # Older clients have no such field and expect that they can write.
        stdin=size is None and request.flag("stdin", True) is True,
        pty=size,
        timeout_seconds=timeout_seconds,
    )


def read_new_size(request: Fields) -> PtySize:
    """Returns the size in an UpdateRequest."""
    terminal = request.inner("pty")

    if terminal is None:
        raise InvalidArgumentError(field="pty", value=None, allowed="a size: nothing else can be updated")

    return _size(terminal)


def read_input(request: Fields) -> bytes:
    """Returns the data to write, to the standard input or to the terminal."""
    given = request.inner("input") or Fields({}, "input.")

    for name in ("stdin", "pty"):
        if (data := given.data(name)) is not None:
            return data

    # Protobuf leaves out empty fields.
    return b""


def read_signal(request: Fields) -> int:
    """Returns the number of a signal, which is written by its name or its number."""
    name = request.name_or_number("signal")
    number = _SIGNALS.get(name) if isinstance(name, str) else name

    if number not in _SIGNALS.values():
        raise InvalidArgumentError(field="signal", value=name, allowed="SIGNAL_SIGTERM or SIGNAL_SIGKILL")

    return number or 0


def process_data(info: ProcessInfo, tag: str | None) -> dict[str, Any]:
    """Returns a running command as `List` gives it."""
    config = {
        "cmd": info.argv[0],
        "args": list(info.argv[1:]),
        "envs": given_envs(info.envs),
        "cwd": info.cwd,
    }
    data: dict[str, Any] = {"config": config, "pid": info.pid}
    return data if tag is None else {**data, "tag": tag}


def started_data(pid: int) -> dict[str, Any]:
    """Returns the event that begins a stream."""
    return {"event": {"start": {"pid": pid}}}


def event_data(event: ProcessEvent) -> dict[str, Any]:
    """Returns an event of a command."""
    if isinstance(event, ProcessExited):
        return {"event": {"end": _end(event.exit_code, dropped_text(event.truncated))}}

    return {"event": {"data": {event.stream: base64.b64encode(event.data).decode()}}}


def _end(exit_code: int, dropped: str) -> dict[str, Any]:
    status = f"exit status {exit_code}"
    data: dict[str, Any] = {"exitCode": exit_code, "exited": True, "status": status}
    errors = [*([status] if exit_code else []), *([dropped] if dropped else [])]
    return {**data, "error": "; ".join(errors)} if errors else data


def _size(terminal: Fields) -> PtySize:
    size = terminal.inner("size") or Fields({}, "pty.size.")
    return PtySize(cols=size.integer("cols", 80), rows=size.integer("rows", 24))
