"""Fork hooks: at-fork handlers of modules, skipped where fumehood itself forks.

Runs in jail init and zygote, from their first instruction on, and in contexts when they fork checkpoints. Python's own
modules reset all their locks in each child, and reseed: every access copies a page, which takes about a millisecond
before a sandbox does anything. In a fork of a single-threaded process no other thread holds a lock, and `randomness`
reseeds. Handlers of the template's libraries run in every fork as usual, and once in the zygote before, so that they
find little left to do. Forks that user code makes run all handlers.
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
    """Whether handlers are skipped in this process at present."""

    are_left_out = False


_of_libraries: List[_Hook] = []
_left_out: Set[str] = set()
# Handlers of Python's own modules, in the order of registration. The interpreter itself has one handler of each kind,
# which checks once whether all of them are skipped: calling each would copy pages too.
_before: List[_Hook] = []
_in_child: List[_Hook] = []
_in_parent: List[_Hook] = []


def leave_out() -> None:
    """Makes forks of this process skip the at-fork handlers of Python's own modules from now on.

    Before: no module that registers one has been imported.
    """
    _Known.are_left_out = True
    os.register_at_fork = _note
    _register(before=_do_before, after_in_child=_do_in_child, after_in_parent=_do_in_parent)


def do_once() -> None:
    """Runs the libraries' handlers once now, and restores the normal registration of later ones."""
    os.register_at_fork = _register

    for hook in _of_libraries:
        hook()

    _of_libraries.clear()


def do_all() -> None:
    """Stops skipping handlers: in a fork in which user code will run."""
    _Known.are_left_out = False


def leave_out_once() -> bool:
    """Skips the handlers in forks until `do_all`, if reseeding is among them; returns whether it does.

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
            # As in Python's own list: the error is printed, and the other handlers run.
            sys.excepthook(*sys.exc_info())
