"""Restores the objects that the context needs and that a cell may have replaced or deleted.

Runs in a context, after each cell and before anything else, so it uses nothing that it restores. It keeps legitimate
changes: a builtin replaced by another function stays replaced; one that is deleted or was overwritten by something not
callable is restored.
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
# With a lower limit the shell itself cannot run.
_MIN_RECURSION = 1_000


class Repairs:
    """Snapshot of builtins and shell attributes, used to restore what a cell has overwritten.

    Taken in the zygote, where reading every builtin costs nothing: in a fork, each read copies a page.
    """

    def __init__(self, shell: ConnectedShell) -> None:
        names = [name for name, value in vars(builtins).items() if callable(value)]
        self._shell = shell
        self._builtins = vars(builtins)
        self._names = tuple(names)
        self._originals = tuple(vars(builtins)[name] for name in names)
        # The state found last: a replaced builtin is examined once, and not after each cell.
        self._found = self._originals
        self._parts = tuple((name, getattr(shell, name)) for name in _PARTS if hasattr(shell, name))
        self._lookup = vars(builtins).get
        self._all, self._map, self._is, self._zip, self._tuple = all, map, operator.is_, zip, tuple
        self._callable, self._getattr, self._setattr = callable, getattr, setattr
        self._sys = sys

    def attach(self, streams: Streams) -> None:
        """Sets the streams of the context."""
        self._streams = streams

    def apply(self) -> None:
        """Restores what is missing."""
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
