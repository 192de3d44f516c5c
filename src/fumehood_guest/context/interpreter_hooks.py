"""Interpreter hooks: user code that the interpreter itself may call between any two of our own instructions.

Runs in a context, around the fork of a checkpoint, and in the checkpoint, which must not run user code. Garbage
collections run finalizers; functions of `sys.setprofile` and `sys.settrace` are called at each call. Audit hooks and
the tools of `sys.monitoring` cannot be turned off.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Optional, Tuple


class InterpreterHooks:
    """Turns garbage collection and this thread's profile and trace functions off, and on again."""

    def __init__(self) -> None:
        # References, since user code may replace what the modules hold.
        self._collects, self._disable, self._enable = gc.isenabled, gc.disable, gc.enable
        self._profile_of, self._set_profile = sys.getprofile, sys.setprofile
        self._trace_of, self._set_trace = sys.gettrace, sys.settrace
        self._kept: Optional[Tuple[bool, Any, Any]] = None

    def turn_off(self) -> None:
        """Turns all of them off; a second call also turns off those that at-fork handlers have turned on."""
        if self._kept is None:
            self._kept = (self._collects(), self._profile_of(), self._trace_of())

        # To set them, even to None, is an event for audit hooks.
        if self._profile_of() is not None:
            self._set_profile(None)

        if self._trace_of() is not None:
            self._set_trace(None)

        self._disable()

    def turn_on(self) -> None:
        """Turns on again what `turn_off` has turned off."""
        if self._kept is None:
            return

        (collects, profile, trace), self._kept = self._kept, None

        if collects:
            self._enable()

        if trace is not None:
            self._set_trace(trace)

        if profile is not None:
            self._set_profile(profile)
