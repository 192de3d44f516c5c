"""Figures of matplotlib, plotly and altair: shown automatically, as a picture and as data.

It never imports these libraries: it waits until user code does, then sets the backend or renderer. A matplotlib figure
is shown when `plt.show()` is called, or at the end of the cell, and closed, so that the next cell begins a new one.
Pictures of PIL that a cell saves are shown as results too, as in other code interpreters.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import warnings
from types import ModuleType
from typing import Any, Dict, Optional
from weakref import WeakSet

from IPython.core.formatters import BaseFormatter
from IPython.display import display
from traitlets import ObjectName, Unicode

from fumehood_guest.context.connected_shell import ConnectedShell
from fumehood_guest.context.fonts import add_fallback_fonts, missing_letters_named_once
from fumehood_guest.context.import_watch import call_after_import
from fumehood_guest.context.outlet import GuestExecution

CHART_MIME = "application/vnd.fumehood.chart+json"
_PYPLOT = "matplotlib.pyplot"
_BACKEND = "module://fumehood_guest.context.canvas"


class ChartFormatter(BaseFormatter):  # type: ignore[misc]
    """Describes a figure as data."""

    format_type = Unicode(CHART_MIME)
    print_method = ObjectName("_repr_fumehood_chart_")
    _return_type = dict


class Figures:
    """The open figures of a shell."""

    def __init__(self, shell: ConnectedShell) -> None:
        self._shown: WeakSet[Any] = WeakSet()
        formatter = shell.display_formatter
        formatter.formatters[CHART_MIME] = ChartFormatter(parent=formatter)
        formatter.formatters[CHART_MIME].for_type_by_name("matplotlib.figure", "Figure", self._describe)
        formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", self._draw)
        call_after_import("matplotlib.font_manager", add_fallback_fonts)
        call_after_import(_PYPLOT, _configure)

    def show_open(self) -> None:
        """Shows each open figure that was not shown in its present state, and closes all."""
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
        """Returns the figure as PNG."""
        if _is_empty(figure):
            return None

        if figure.canvas is None:
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            FigureCanvasAgg(figure)

        file = io.BytesIO()

        with missing_letters_named_once():
            figure.canvas.print_figure(
                file,
                format="png",
                dpi=figure.dpi,
                bbox_inches="tight",
                facecolor=figure.get_facecolor(),
                edgecolor=figure.get_edgecolor(),
            )

        # From here on, `stale` means: changed since it was shown.
        figure.stale = False
        self._shown.add(figure)
        return file.getvalue()

    def _describe(self, figure: Any) -> Optional[Dict[str, Any]]:
        """Returns the figure as data; it is drawn first, because ticks have no labels before."""
        if _is_empty(figure):
            return None

        from fumehood_guest.context.charts import describe_figure

        is_stale = figure.stale

        if figure not in self._shown or is_stale:
            with missing_letters_named_once():
                figure.draw_without_rendering()

        try:
            return describe_figure(figure)
        finally:
            # Reading ticks marks a figure as stale.
            figure.stale = is_stale


def _configure(pyplot: ModuleType) -> None:
    """Makes our canvas the backend, unless the user has chosen another one."""
    from fumehood_guest.context.charts import record_boxes

    record_boxes()
    # A warning of other backends at plt.show(); here the figure is shown nevertheless.
    warnings.filterwarnings("ignore", message=".* is non-interactive, and thus cannot be shown")

    if "MPLBACKEND" not in os.environ:
        pyplot.switch_backend(_BACKEND)


def _is_empty(figure: Any) -> bool:
    return not (figure.axes or figure.lines or figure.patches or figure.images or figure.texts)


_MODULE = "PIL.Image"
_MAX_SHOWN = 10


class SavedPictures:
    """Shows the pictures that the cells of a shell save.

    Args:
        shell: The shell, which need not be attached yet.
    """

    def __init__(self, shell: ConnectedShell) -> None:
        self._shell = shell
        self._execution: Optional[GuestExecution] = None
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


_OURS = "fumehood"
_MAX_KINDS = 5
_MAX_TITLE = 80


def set_renderers() -> None:
    """Sets up plotly and altair, now or when they are imported."""
    call_after_import("plotly.io._renderers", _set_up_plotly)
    call_after_import("altair", _set_up_altair)


def _set_up_plotly(module: ModuleType) -> None:
    """Makes our renderer the default, unless `PLOTLY_RENDERER` names another."""
    if os.environ.get("PLOTLY_RENDERER") or not hasattr(module, "ExternalRenderer"):
        return

    class Renderer(module.ExternalRenderer):  # type: ignore[misc, name-defined]
        """A plotly renderer that shows a figure; its kind is one for which plotly does not need nbformat."""

        def render(self, fig_dict: Dict[str, Any]) -> None:
            """Shows it."""
            bundle = module.renderers["plotly_mimetype"].to_mimebundle(fig_dict)
            display({**bundle, "text/plain": _describe(fig_dict)}, raw=True)

    module.renderers[_OURS] = Renderer()
    module.renderers.default = _OURS


def _describe(figure: Dict[str, Any]) -> str:
    """Returns a one-line description of a plotly figure."""
    layout = figure.get("layout", {})
    traces = list(dict.fromkeys(map(_describe_trace, figure.get("data", ()))))
    more = [f"{len(traces) - _MAX_KINDS} more"] if len(traces) > _MAX_KINDS else []
    title = _title_of(layout)
    axes = [
        f"{axis} {words!r}" for axis in ("x", "y") if (words := _title_of(layout.get(f"{axis}axis") or {}))
    ]
    told = (
        f"plotly figure{f' {title!r}' if title else ''}: {', '.join(traces[:_MAX_KINDS] + more) or 'empty'}"
    )
    return f"{told} ({', '.join(axes)})" if axes else told


def _describe_trace(trace: Dict[str, Any]) -> str:
    """Returns the kind of a trace, and its name where it has one."""
    name = trace.get("name")
    return f"{trace.get('type', 'scatter')}{f' {str(name)[:_MAX_TITLE]!r}' if name else ''}"


def _title_of(part: Dict[str, Any]) -> str:
    """Returns the title of a figure or of an axis, which is a text or has one."""
    title = part.get("title")
    return str((title.get("text") if isinstance(title, dict) else title) or "")[:_MAX_TITLE]


def _set_up_altair(module: ModuleType) -> None:
    """Shows charts as Vega-Lite, unless another renderer was chosen."""
    renderers = getattr(module, "renderers", None)

    if renderers is None or renderers.active != "default":
        return

    renderers.enable("mimetype")
    as_data = renderers.get()

    def render(spec: Dict[str, Any], **_options: Any) -> Any:
        """Returns the specification with a description, since altair's own text reports that there is no renderer."""
        bundle = as_data(spec)
        formats, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**formats, "text/plain": _describe_chart(spec)}, metadata

    renderers.register(_OURS, render)
    renderers.enable(_OURS)


def _describe_chart(spec: Dict[str, Any]) -> str:
    """Returns a one-line description of an altair chart."""
    parts = [spec, *spec.get("layer", ()), *spec.get("hconcat", ()), *spec.get("vconcat", ())]
    marks = [part["mark"] for part in parts if isinstance(part, dict) and "mark" in part]
    kinds = list(dict.fromkeys(str(mark.get("type") if isinstance(mark, dict) else mark) for mark in marks))
    return f"altair chart: {', '.join(kinds[:_MAX_KINDS]) or 'several parts'}"
