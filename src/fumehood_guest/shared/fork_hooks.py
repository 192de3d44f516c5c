"""Fork hooks: what modules have asked to be done at each fork, left out where it is fumehood that forks.

Runs in jail init and zygote, from their first instruction on, and in contexts when they fork checkpoints. Python's own
modules look at all their locks in each child, and seed anew: every look copies a page, so that a millisecond goes by
before a sandbox does anything. In a fork of a process with one thread no lock is held by anybody else, and `randomness`
seeds. What libraries of the template ask for is done in every fork, as ever, but once in the zygote before, so that the
forks find little left to do. Forks that user code makes do all of it.
"""

from __future__ import annotations

import os
import sys
from typing import Callable, Iterable, List, Optional, Set

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
# What Python's own modules have asked for, in the order of asking. The interpreter knows of one hook of
# each kind, which asks once whether all of them are left out: what each of them touched was copied too.
_before: List[_Hook] = []
_in_child: List[_Hook] = []
_in_parent: List[_Hook] = []


def leave_out() -> None:
    """From now on, forks of this process run no hooks of Python's own modules.

    Before: nothing has been imported that registers one.
    """
    _Known.are_left_out = True
    os.register_at_fork = _note
    _register(before=_do_before, after_in_child=_do_in_child, after_in_parent=_do_in_parent)


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
    registrar = str(sys._getframe(1).f_globals.get("__name__"))

    if registrar in _OF_PYTHON:
        _left_out.add(registrar)

        for hooks, hook in ((_before, before), (_in_child, after_in_child), (_in_parent, after_in_parent)):
            if hook is not None:
                hooks.append(hook)

        return

    given = {"before": before, "after_in_child": after_in_child, "after_in_parent": after_in_parent}
    _register(**{name: hook for name, hook in given.items() if hook is not None})

    if after_in_child is not None:
        _of_libraries.append(after_in_child)


def _do_before() -> None:
    if not _Known.are_left_out:
        _do(reversed(_before))


def _do_in_child() -> None:
    if not _Known.are_left_out:
        _do(_in_child)


def _do_in_parent() -> None:
    if not _Known.are_left_out:
        _do(_in_parent)


def _do(hooks: Iterable[_Hook]) -> None:
    for hook in hooks:
        try:
            hook()
        except BaseException:
            # As with Python's own list of them: it is shown, and the others are done.
            sys.excepthook(*sys.exc_info())
