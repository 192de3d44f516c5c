"""The language "r": R in the process of the context, whose workspace persists from cell to cell.

R is a library here (`fumehood_guest.languages.libr`), so that a fork of the context is a fork of R: checkpoints and
forks need nothing more. What R prints goes through our streams, in order with everything else; a process that R forks
by itself, such as a worker of `parallel`, writes to fds 1 and 2 instead. While a cell runs, SIGINT is R's.
"""

from __future__ import annotations

import builtins
import os
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from fumehood_guest.context.introspection import Answerer, Matches
from fumehood_guest.context.outlet import STREAM_FDS, GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.context.streams import Streams
from fumehood_guest.languages.libr import LibR, NoLibraryError, find_home
from fumehood_wire.messages import LANGUAGE_UNAVAILABLE_STATUS

_PROGRAM = os.path.join(os.path.dirname(os.path.dirname(__file__)), "languages", "cells.R")
_INTERRUPTED = "interrupted"
# R, where it was loaded before this process was forked.
_preloaded: List[LibR] = []
_TEMPORARY = "/tmp"  # noqa: S108 - of the sandbox


def load_r() -> LibR:
    """Loads R into this process.

    Raises:
        NoLibraryError: R cannot be loaded here; the message says why.
    """
    with open(_PROGRAM, encoding="utf-8") as file:
        return LibR(find_home(), file.read())


def preload() -> None:
    """Loads R, and what every cell needs, into a process whose forks are contexts; does nothing where R is missing."""
    try:
        r = load_r()
    except NoLibraryError:
        # Each context reports by itself why it cannot start.
        return

    r.call("warm", "", "")
    _preloaded.append(r)


class RShell:
    """R in this process.

    Args:
        outlet: Takes results and errors.
        streams: Take what R prints.
        gate: Blocks signals while something is sent.
    """

    def __init__(self, outlet: Outlet, streams: Streams, gate: SignalGate) -> None:
        self._outlet = outlet
        self._streams = streams
        self._gate = gate
        self._count = 0
        self._own_pid = os.getpid()
        self._error: Optional[Tuple[str, str, List[str]]] = None

        if _preloaded:
            r = _preloaded[0]
            r.use_temporary_folder(_new_folder())
        else:
            r = _load_or_leave()

        self._r = r
        r.write, r.show, r.read = self._write, self._show, self._read
        self.answerer: Answerer = RAnswerer(r)

    @property
    def reply_count(self) -> int:
        """The number of the last cell with a history number."""
        return self._count

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one cell to its end.

        Raises:
            KeyboardInterrupt: The cell was interrupted.
        """
        self._count += execution.store_history
        self._error = None
        # This process may be a fork of the one that ran the last cell.
        self._own_pid = os.getpid()
        outcome = self._r.call_interruptible("run", source, "silent" if execution.flags["silent"] else "")

        if outcome == _INTERRUPTED:
            raise KeyboardInterrupt

    def run_comm(self, _header: Dict[str, Any], _payload: bytes) -> None:
        """Does nothing: R has no widgets."""
        self._error = None

    def report(self, error: Optional[BaseException] = None) -> None:
        """Sends the error of the cell: an interrupt, or what the cell has raised."""
        raised, self._error = self._error, None

        if error is not None:
            name = type(error).__name__
            self._outlet.error(name, str(error), [f"{name}: {error}" if str(error) else name])
        elif raised is not None:
            self._outlet.error(*raised)

    # -- called by R, within a cell

    def _write(self, stream: str, text: str) -> None:
        if os.getpid() != self._own_pid:
            os.write(STREAM_FDS[stream], text.encode("utf-8", "replace"))
            return

        with self._gate.closed():
            (self._streams.stdout if stream == "stdout" else self._streams.stderr).write(text)

    def _show(self, kind: str, formats: Dict[str, bytes]) -> None:
        if os.getpid() != self._own_pid:
            return

        with self._gate.closed():
            if kind == "error":
                texts = {name: content.decode("utf-8", "replace") for name, content in formats.items()}
                name, value = texts.get("name", ""), texts.get("value", "")
                trace = texts.get("trace", "").splitlines() or [f"{name}: {value}"]
                self._error = (name, value, trace)
                return

            self._streams.send_pending()
            count = self._count if kind == "execute_result" else None
            self._outlet.bundle(kind, dict(formats), execution_count=count)

    def _read(self, prompt: str) -> str:
        return str(builtins.input(prompt))


class RAnswerer:
    """Answers with R.

    Args:
        r: The R of this process.
    """

    def __init__(self, r: LibR) -> None:
        self._r = r

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns the names that R's own completion finds for the line."""
        token, *matches = self._r.call("complete", code[:cursor].rsplit("\n", 1)[-1], "").split("\n")
        return [match for match in matches if match], cursor - len(token), cursor

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns nothing."""
        return {}

    def check(self, code: str) -> Tuple[str, str]:
        """Parses the code without running it; returns its state (whether it is complete), and no indentation."""
        return self._r.call("check", code, ""), ""


def _load_or_leave() -> LibR:
    try:
        return load_r()
    except NoLibraryError as error:
        _leave(str(error))


def _leave(reason: str) -> NoReturn:
    os.write(2, reason.encode("utf-8", "replace"))
    os._exit(LANGUAGE_UNAVAILABLE_STATUS)


def _new_folder() -> str:
    """Makes the folder of a session, as R does when it starts."""
    folder = os.path.join(_TEMPORARY, f"Rtmp{os.urandom(6).hex()}")
    os.mkdir(folder, 0o700)
    return folder
