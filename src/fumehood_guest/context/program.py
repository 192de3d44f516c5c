"""Makes a cell look like a program: sets its arguments, its file, and the name that tracebacks show.

Runs in a context, called by a silent cell that `fumehood run` puts before the code. It changes only state that the
user's own code could change as well.
"""

from __future__ import annotations

import os
import sys
from typing import Sequence

from fumehood_guest.context.shell import PythonShell
from fumehood_guest.context.standard_input import ask_for_input


def run_module(name: str) -> None:
    """Runs a module as `python -m` does; `sys.argv` is set already.

    Args:
        name: The module.
    """
    # Imported late: most programs are no modules.
    import runpy

    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except ImportError as error:
        if _is_of_runpy(error):
            # Its message says what its cause says.
            raise error from None

        raise


def _is_of_runpy(error: ImportError) -> bool:
    tb = error.__traceback__

    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next

    return tb is not None and tb.tb_frame.f_globals.get("__name__") == "runpy"


def begin(name: str, argv: Sequence[str], path: str = "", has_input: bool = False) -> None:
    """Sets the arguments, the name and the file of the next cell.

    Args:
        name: The cell's name in tracebacks; if empty, the number of the cell.
        argv: `sys.argv`.
        path: The value of `__file__`; if empty, it is not set.
        has_input: Whether the caller sends its standard input when it is read; otherwise `input()` asks for lines.
    """
    shell = PythonShell.instance()
    sys.argv = list(argv)
    shell.compile.next_name = name

    if name:
        # As `python FILE`: a value that is not printed is not shown. A notebook has no name, and shows it.
        shell.ast_node_interactivity = "none"

    if path:
        shell.user_ns["__file__"] = os.path.abspath(path)

    if has_input:
        ask_for_input()
