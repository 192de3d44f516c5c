"""Telemetry: Python's audit events of a running cell.

Runs in a context, beside the code that it reports on, which can silence, feed and bypass it in one line: it is advice,
and nothing relies on it. The hook stays for the life of the process, costs almost nothing between cells, must never
raise, and records a bounded number of different events per cell.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from fumehood_guest.shared.folders import DATA, HOME
from fumehood_wire.messages import MAX_TELEMETRY, MAX_TELEMETRY_CHARS

_WORKSPACE = (HOME, DATA, "/tmp", "/dev/shm")  # noqa: S108 - the names inside
_HARMLESS = frozenset(("/dev/null", "/dev/tty"))
_WRITES = frozenset("wax+")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAX_COUNT = 1_000_000


class Telemetry:
    """The events of the current cell."""

    def __init__(self) -> None:
        self._is_hooked = False
        self._is_listening = False
        self._is_noting = False
        self._noted: Dict[Tuple[str, str], int] = {}

    def begin(self) -> None:
        """Starts recording."""
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._hear)

        self._noted = {}
        self._is_listening = True

    def end(self) -> bytes:
        """Stops recording; returns the events for `payloads.parse_telemetry`."""
        self._is_listening = False
        noted, self._noted = self._noted, {}
        lines = [
            {"event": event, "detail": detail, "count": count} for (event, detail), count in noted.items()
        ]
        return json.dumps(lines).encode("ascii")

    def _hear(self, event: str, arguments: Tuple[Any, ...]) -> None:
        # Recording may cause events of its own.
        if not self._is_listening or self._is_noting:
            return

        describe = _DESCRIBE.get(event)

        if describe is None:
            return

        noted = self._noted
        self._is_noting = True
        try:
            detail = describe(*arguments)

            # The cell may have ended meanwhile: the event must not count for the next one.
            if detail is not None and self._is_listening and noted is self._noted:
                self._note(event, detail)
        except Exception:
            return
        finally:
            self._is_noting = False

    def _note(self, event: str, detail: str) -> None:
        key = (
            event,
            detail[:MAX_TELEMETRY_CHARS].encode("ascii", "backslashreplace").decode()[:MAX_TELEMETRY_CHARS],
        )

        if key in self._noted or len(self._noted) < MAX_TELEMETRY:
            self._noted[key] = min(self._noted.get(key, 0) + 1, _MAX_COUNT)


def _opened(path: Any, mode: Any, flags: Any) -> Optional[str]:
    """Returns the path of a file opened for writing outside the writable folders, else None."""
    is_written = bool(_WRITES & set(mode)) if isinstance(mode, str) else bool(flags & _WRITE_FLAGS)

    if not is_written or not isinstance(path, (str, bytes)):
        return None

    place = os.path.abspath(os.fsdecode(path))
    is_usual = any(place == folder or place.startswith(folder + "/") for folder in _WORKSPACE)
    return None if is_usual or place in _HARMLESS else place


def _program(program: Any, *_: Any) -> str:
    return os.fsdecode(program) if isinstance(program, (str, bytes)) else str(program)


def _started(program: Any, arguments: Any, *_: Any) -> str:
    words: List[str] = [str(item) for item in arguments[:8]] if isinstance(arguments, (list, tuple)) else []
    return " ".join(words) if words else _program(program)


def _address(_socket: Any, address: Any) -> str:
    return str(address)


_DESCRIBE: Dict[str, Callable[..., Optional[str]]] = {
    "open": _opened,
    "subprocess.Popen": _started,
    "os.system": _program,
    "os.exec": _started,
    "os.posix_spawn": _started,
    "os.fork": lambda: "",
    "socket.connect": _address,
    "socket.bind": _address,
    "ctypes.dlopen": _program,
    "ctypes.call_function": lambda *_: "",
    "sys.addaudithook": lambda: "",
    "sys.settrace": lambda: "",
}
