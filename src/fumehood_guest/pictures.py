"""Pictures of PIL that a cell saves: shown as results too, as in other code interpreters.

Runs in a context. It never imports PIL: it waits until that is imported. Only what code of a cell saves itself, under
a path, is shown, so that libraries which save pictures show nothing; and of one cell only the first few, so that a
loop leaves room for other results.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from IPython.display import display

from fumehood_guest.figures import call_after_import
from fumehood_guest.outlet import Execution

if TYPE_CHECKING:
    from fumehood_guest.shell import PythonShell

_MODULE = "PIL.Image"
_MAX_SHOWN = 10


class SavedPictures:
    """What the cells of a shell save.

    Args:
        shell: The shell, which need not be attached yet.
    """

    def __init__(self, shell: PythonShell) -> None:
        self._shell = shell
        self._execution: Optional[Execution] = None
        self._shown = 0
        call_after_import(_MODULE, self._configure)

    def _configure(self, module: ModuleType) -> None:
        original = module.Image.save

        @functools.wraps(original)
        def save(image: Any, fp: Any, format: Any = None, **params: Any) -> None:
            original(image, fp, format, **params)

            if isinstance(fp, (str, bytes, os.PathLike)) and self._is_of_cell(sys._getframe(1)):
                self._show(image)

        module.Image.save = save

    def _is_of_cell(self, frame: Any) -> bool:
        return frame.f_globals is self._shell.user_ns and not self._shell.outlet.is_detached

    def _show(self, image: Any) -> None:
        execution = self._shell.outlet.execution

        if execution is not self._execution:
            self._execution, self._shown = execution, 0

        self._shown += 1

        if self._shown <= _MAX_SHOWN:
            display(image)
