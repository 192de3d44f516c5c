"""The shell of a context whose user code is not Python: the streams of the process, without IPython.

Lives in the branches of the zygote, before any context, and in the contexts that are their forks. It must never import
IPython or asyncio: each context would pay for a share of its memory, and for copies of the pages that the interpreter
writes to.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Dict, NoReturn, Optional

from fumehood_guest.context.streams import Streams


class BareRepairs:
    """Keeps the streams of the process."""

    def attach(self, streams: Streams) -> None:
        """Sets the streams of the context."""
        self._streams = streams

    def apply(self) -> None:
        """Restores them after a cell."""
        sys.stdout = self._streams.stdout
        sys.stderr = self._streams.stderr


class BareShell:
    """The parts of a shell that every context needs, whatever its language.

    Attributes:
        user_ns: Empty: there are no Python variables.
        user_ns_hidden: Empty, as before.
        repairs: Restores what a cell may have broken.
    """

    def __init__(self) -> None:
        self.user_ns: Dict[str, Any] = {}
        self.user_ns_hidden: Dict[str, Any] = {}
        self.repairs = BareRepairs()

    def take_streams(self, streams: Streams) -> None:
        """Connects the shell with the streams of its context."""
        self._streams = streams
        sys.stdout = streams.stdout
        sys.stderr = streams.stderr

    def show_stray(self, error: BaseException) -> None:
        """Writes an error that belongs to no cell to stderr."""
        sys.stderr.write("".join(traceback.format_exception_only(type(error), error)))

    def leave_fork(self, error: Optional[BaseException] = None) -> NoReturn:
        """Exits a process that has been forked during a cell, at the end of it."""
        try:
            if error is not None:
                self.show_stray(error)

            self._streams.flush()
        finally:
            os._exit(0 if error is None else 1)
