"""Figures of matplotlib: shown without being asked for, as a picture and as data, then closed.

Runs in a context. It never imports matplotlib: it waits until somebody does, then makes `canvas` the
backend. A figure is shown when `plt.show()` is called, or at the end of the cell, and closed, so that the
next cell begins a new one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence
from weakref import WeakSet

from IPython.core.formatters import BaseFormatter
from IPython.display import display
from traitlets import ObjectName, Unicode

if TYPE_CHECKING:
    from fumehood_guest.shell import PythonShell

CHART_MIME = "application/vnd.fumehood.chart+json"
_PYPLOT = "matplotlib.pyplot"
_BACKEND = "module://fumehood_guest.canvas"


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """Describes a figure as data."""

    format_type = Unicode(CHART_MIME)
    print_method = ObjectName("_repr_fumehood_chart_")
    _return_type = dict


class Figures:
    """The open figures of a shell."""

    def __init__(self, shell: PythonShell) -> None:
        self._shown: WeakSet[Any] = WeakSet()
        formatter = shell.display_formatter
        formatter.formatters[CHART_MIME] = ChartFormatter(parent=formatter)
        formatter.formatters[CHART_MIME].for_type_by_name("matplotlib.figure", "Figure", self._describe)
        formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", self._draw)
        call_after_import(_PYPLOT, _configure)

    def show_open(self) -> None:
        """Shows each open figure that was not shown as it is now, and closes all."""
        pyplot = sys.modules.get(_PYPLOT)

        if pyplot is None or not pyplot.get_fignums():
            return

        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)

                if not _is_empty(figure) and (figure not in self._shown or figure.stale):
                    display(figure)
        finally:
            self._shown.clear()
            pyplot.close("all")

    def _draw(self, figure: Any) -> Optional[bytes]:
        """The figure as PNG."""
        if _is_empty(figure):
            return None

        if figure.canvas is None:
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            FigureCanvasAgg(figure)

        file = io.BytesIO()
        figure.canvas.print_figure(
            file,
            format="png",
            dpi=figure.dpi,
            bbox_inches="tight",
            facecolor=figure.get_facecolor(),
            edgecolor=figure.get_edgecolor(),
        )
        # From here on, stale means: changed after it was shown.
        figure.stale = False
        self._shown.add(figure)
        return file.getvalue()

    def _describe(self, figure: Any) -> Optional[Dict[str, Any]]:
        """The figure as data; ticks have no labels before it was drawn."""
        if _is_empty(figure):
            return None

        from fumehood_guest.charts import describe_figure

        is_stale = figure.stale

        if figure not in self._shown or is_stale:
            figure.draw_without_rendering()

        try:
            return describe_figure(figure)
        finally:
            # To ask for ticks makes a figure stale.
            figure.stale = is_stale


def call_after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback(module)` once the module has been imported; now, if it is."""
    module = sys.modules.get(name)

    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _ImportWatch(name, callback))


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Finds one module, by way of the other finders, to be told when it is there."""

    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """The module's own spec, with a loader that calls back."""
        if fullname != self._name:
            return None

        if self in sys.meta_path:
            sys.meta_path.remove(self)

        spec = importlib.util.find_spec(fullname)

        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._callback)

        return spec


class _CallingLoader(importlib.abc.Loader):
    """Loads as another loader does, then calls back."""

    def __init__(self, loader: Any, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        """As the loader behind."""
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the loader behind; then the module gets its own loader back."""
        module.__loader__ = self._loader

        if module.__spec__ is not None:
            module.__spec__.loader = self._loader

        self._loader.exec_module(module)
        self._callback(module)


def _configure(pyplot: ModuleType) -> None:
    """Makes our canvas the backend, unless the user has named another one."""
    from fumehood_guest.charts import record_boxes

    record_boxes()
    # Said by other backends of plt.show(); here the figure is shown nevertheless.
    warnings.filterwarnings("ignore", message=".* is non-interactive, and thus cannot be shown")

    if "MPLBACKEND" not in os.environ:
        pyplot.switch_backend(_BACKEND)


def _is_empty(figure: Any) -> bool:
    return not (figure.axes or figure.lines or figure.patches or figure.images or figure.texts)
