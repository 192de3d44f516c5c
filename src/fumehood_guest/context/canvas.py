"""The matplotlib backend of a context: draws with Agg, and shows figures as results of the cell.

Loaded by matplotlib in a context, and the only module here that imports it at module level. It opens no window.
"""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg


class FigureManager(FigureManagerBase):
    """Holds a figure that `pyplot` has opened."""

    def show(self) -> None:
        """Shows all open figures."""
        show()


class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]
    """The canvas of a figure."""

    manager_class = FigureManager


def show(*_args: Any, **_options: Any) -> None:
    """Implements `plt.show()`."""
    shell = get_ipython()

    if shell is not None:
        shell.figures.show_open()


def new_figure_manager(number: int, *args: Any, FigureClass: Any = None, **options: Any) -> FigureManager:  # noqa: N803
    """Opens a figure, for versions of matplotlib before 3.6."""
    from matplotlib.figure import Figure

    return new_figure_manager_given_figure(number, (FigureClass or Figure)(*args, **options))


def new_figure_manager_given_figure(number: int, figure: Any) -> FigureManager:
    """Wraps a figure, for versions of matplotlib before 3.6."""
    return FigureManager(FigureCanvas(figure), number)
