"""Repairs: what a cell may have broken that the context needs, put back.

Runs in a context, after each cell and before anything else does, so it relies on nothing that it repairs.
It keeps what user code may rightly change: a builtin that was replaced by another function stays replaced,
one that is gone or was overwritten by something that cannot be called comes back.
"""

from __future__ import annotations

import builtins
import operator
import sys

from fumehood_guest.context.connected_shell import ConnectedShell
from fumehood_guest.context.streams import Streams

# The parts of a shell that run_cell uses.
_PARTS = (
    "builtin_trap",
    "compile",
    "display_formatter",
    "display_pub",
    "display_trap",
    "displayhook",
    "events",
    "history_manager",
    "input_transformer_manager",
    "magics_manager",
    "prefilter_manager",
)
# Less than that, and the shell itself does not fit on the stack.
_MIN_RECURSION = 1_000


class Repairs:
    """A picture of what has to be there.

    Taken in the zygote, where looking at every builtin costs nothing: in a fork, each look copies a page.
    """

    def __init__(self, shell: ConnectedShell) -> None:
        names = [name for name, value in vars(builtins).items() if callable(value)]
        self._shell = shell
        self._builtins = vars(builtins)
        self._names = tuple(names)
        self._originals = tuple(vars(builtins)[name] for name in names)
        # What was found last: a builtin that was replaced is looked at more closely once, and not after each cell.
        self._found = self._originals
        self._parts = tuple((name, getattr(shell, name)) for name in _PARTS if hasattr(shell, name))
        self._lookup = vars(builtins).get
        self._all, self._map, self._is, self._zip, self._tuple = all, map, operator.is_, zip, tuple
        self._callable, self._getattr, self._setattr = callable, getattr, setattr
        self._sys = sys

    def attach(self, streams: Streams) -> None:
        """Says which streams the context has."""
        self._streams = streams

    def apply(self) -> None:
        """Puts back what is missing."""
        self._repair_builtins()
        shell = self._shell

        for name, part in self._parts:
            if self._getattr(shell, name, None) is not part:
                self._setattr(shell, name, part)

        module = self._sys
        self._setattr(module, "stdout", self._streams.stdout)
        self._setattr(module, "stderr", self._streams.stderr)
        module.modules["__main__"] = shell.user_module

        if module.getrecursionlimit() < _MIN_RECURSION:
            module.setrecursionlimit(_MIN_RECURSION)

        if "_oh" not in shell.user_ns:
            shell.user_ns.update(__name__="__main__", __builtins__=builtins)
            shell.init_user_ns()

    def _repair_builtins(self) -> None:
        if self._all(self._map(self._is, self._map(self._lookup, self._names), self._found)):
            return

        for name, original in self._zip(self._names, self._originals):
            if not self._callable(self._lookup(name)):
                self._builtins[name] = original

        self._found = self._tuple(self._map(self._lookup, self._names))
