"""Figures of matplotlib: shown without being asked for, as a picture and as data, then closed.

Runs in a context. It never imports matplotlib: it waits until somebody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood_guest.shell import PythonShell


class Figures:
    def __init__(self, shell: PythonShell) -> None:
        self._shell = shell

    def show_open(self) -> None:
        pass
