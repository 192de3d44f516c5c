"""Renderers: figures of plotly and altair are shown as the data that they are, once, as any front end can draw them.

Runs in a context. Neither library is imported here: each is set up when somebody has imported it, unless a renderer was
chosen. Left to themselves, plotly shows nothing without nbformat and a page of megabytes with it, and altair a page
that loads its scripts from the internet.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Dict

from IPython.display import display

from fumehood_guest.figures import call_after_import

_OURS = "fumehood"
_MAX_KINDS = 5


def set_renderers() -> None:
    """Sets up what is imported later, and what is imported already."""
    call_after_import("plotly.io._renderers", _set_up_plotly)
    call_after_import("altair", _set_up_altair)


def _set_up_plotly(module: ModuleType) -> None:
    """Makes a renderer of ours the default, unless `PLOTLY_RENDERER` names another."""
    if os.environ.get("PLOTLY_RENDERER") or not hasattr(module, "ExternalRenderer"):
        return

    class Renderer(module.ExternalRenderer):  # type: ignore[misc, name-defined]
        """Shows a figure; of the kind that plotly does not ask for nbformat."""

        def render(self, fig_dict: Dict[str, Any]) -> None:
            """Shows it."""
            bundle = module.renderers["plotly_mimetype"].to_mimebundle(fig_dict)
            display({**bundle, "text/plain": _describe(fig_dict)}, raw=True)

    module.renderers[_OURS] = Renderer()
    module.renderers.default = _OURS


def _describe(figure: Dict[str, Any]) -> str:
    """Says in a line what a figure of plotly shows."""
    kinds = list(dict.fromkeys(str(trace.get("type", "scatter")) for trace in figure.get("data", ())))
    title = figure.get("layout", {}).get("title")
    words = title.get("text") if isinstance(title, dict) else title
    return f"plotly figure{f' {words!r}' if words else ''}: {', '.join(kinds[:_MAX_KINDS]) or 'empty'}"


def _set_up_altair(module: ModuleType) -> None:
    """Has charts shown as Vega-Lite, unless another renderer was chosen."""
    renderers = getattr(module, "renderers", None)

    if renderers is None or renderers.active != "default":
        return

    renderers.enable("mimetype")
    as_data = renderers.get()

    def render(spec: Dict[str, Any], **_options: Any) -> Any:
        """Returns the specification; the text that altair puts beside it says that nothing can be seen."""
        bundle = as_data(spec)
        formats, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**formats, "text/plain": _describe_chart(spec)}, metadata

    renderers.register(_OURS, render)
    renderers.enable(_OURS)


def _describe_chart(spec: Dict[str, Any]) -> str:
    """Says in a line what a chart of altair shows."""
    parts = [spec, *spec.get("layer", ()), *spec.get("hconcat", ()), *spec.get("vconcat", ())]
    marks = [part["mark"] for part in parts if isinstance(part, dict) and "mark" in part]
    kinds = list(dict.fromkeys(str(mark.get("type") if isinstance(mark, dict) else mark) for mark in marks))
    return f"altair chart: {', '.join(kinds[:_MAX_KINDS]) or 'several parts'}"
