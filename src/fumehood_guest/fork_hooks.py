"""Fork hooks: what modules have asked to be done at each fork, left out where it is fumehood that forks.

Runs in founder and zygote, from their first instruction on, and in contexts when they fork checkpoints. Python's own
modules look at all their locks in each child, and seed anew: every look copies a page, so that a millisecond goes by
before a sandbox does anything. In a fork of a process with one thread no lock is held by anybody else, and `randomness`
seeds. What libraries of the template ask for is done in every fork, as ever, but once in the zygote before, so that the
forks find little left to do. Forks that user code makes do all of it.
"""

from __future__ import annotations

import os
import sys
from typing import Callable, List, Optional, Set

_Hook = Callable[[], object]

_RANDOMNESS = "random"
_OF_PYTHON = frozenset(
    {"threading", _RANDOMNESS, "logging", "concurrent.futures.thread", "IPython.core.history"}
)
_register = os.register_at_fork


class _Known:
    """What is known of the hooks of this process."""

    are_left_out = False


_of_libraries: List[_Hook] = []
_left_out: Set[str] = set()


def leave_out() -> None:
    """From now on, forks of this process run no hooks of Python's own modules.

    Before: nothing has been imported that registers one.
    """
    _Known.are_left_out = True
    os.register_at_fork = _note


def do_once() -> None:
    """Does now what libraries want done in each fork, and lets others register their hooks with Python itself again."""
    os.register_at_fork = _register

    for hook in _of_libraries:
        hook()

    _of_libraries.clear()


def do_all() -> None:
    """In a fork where user code will run: nothing is left out any more."""
    _Known.are_left_out = False


def leave_out_once() -> bool:
    """Leaves them out of forks until `do_all`, if randomness is among what is left out; returns that.

    Before: this process has one thread.
    """
    _Known.are_left_out = _RANDOMNESS in _left_out
    return _Known.are_left_out


def _note(
    *,
    before: Optional[_Hook] = None,
    after_in_child: Optional[_Hook] = None,
    after_in_parent: Optional[_Hook] = None,
) -> None:
    given = {"before": before, "after_in_child": after_in_child, "after_in_parent": after_in_parent}
    hooks = {name: hook for name, hook in given.items() if hook is not None}

    registrar = str(sys._getframe(1).f_globals.get("__name__"))

    if registrar in _OF_PYTHON:
        _left_out.add(registrar)
        _register(**{name: _gated(hook) for name, hook in hooks.items()})
        return

    _register(**hooks)

    if after_in_child is not None:
        _of_libraries.append(after_in_child)


def _gated(hook: _Hook) -> _Hook:
    def run() -> None:
        if not _Known.are_left_out:
            hook()

    return run
