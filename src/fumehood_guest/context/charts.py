"""Charts as data: what a matplotlib figure shows, as numbers and text.

Runs in a context, after the figure was drawn, because ticks have no labels before. A chart that cannot be read is
"unknown" and must never be an error. The fields are those that clients of code interpreters know: type, title, labels,
units, ticks, scales, elements.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable, Dict, List, Optional, Tuple
from weakref import WeakKeyDictionary

from fumehood_guest.context.bundles import json_safe

SCALES = frozenset(("linear", "log", "symlog", "logit", "function", "functionlog", "asinh"))
_MAX_POINTS = 20_000
_MAX_ELEMENTS = 1_000
_MAX_SUBPLOTS = 50
_MAX_LABEL_CHARACTERS = 500
# "Time (s)" and "Time [s]".
_UNIT = re.compile(r"\(([^()]+)\)\s*$|\[([^\[\]]+)\]\s*$")

Chart = Dict[str, Any]

# The statistics of each boxplot, with an artist that shows whether the plot still exists.
_boxes: WeakKeyDictionary[Any, List[Tuple[Any, Dict[str, Any]]]] = WeakKeyDictionary()


def describe_figure(figure: Any) -> Chart:
    """Returns the chart of a figure: the chart of its axes if there is only one, else a superchart of all of them."""
    axes = [one for one in figure.axes if one.get_label() != "<colorbar>"]
    axes = [one for one in axes if one.has_data()] or axes
    budget = _Budget()
    charts = [_describe_axes(one, budget) for one in axes[:_MAX_SUBPLOTS]]

    if len(charts) == 1:
        chart = charts[0]
    else:
        title = figure._suptitle.get_text() if figure._suptitle is not None else None
        chart = {"type": "superchart", "title": _text(title), "elements": charts}

    if budget.is_spent:
        chart["truncated"] = True

    return chart


def record_boxes() -> None:
    """Makes matplotlib keep the statistics of its boxplots, which cannot be recovered from the drawn lines."""
    from matplotlib.axes import Axes

    if hasattr(Axes.bxp, "__wrapped__") and Axes.bxp.__module__ == __name__:
        return

    original = Axes.bxp

    @functools.wraps(original)
    def bxp(self: Any, bxpstats: Any, *args: Any, **options: Any) -> Any:
        bxpstats = list(bxpstats)
        artists = original(self, bxpstats, *args, **options)
        made = zip(artists.get("medians", ()), bxpstats)  # noqa: B905 -- `strict` is of Python 3.10
        _boxes.setdefault(self, []).extend(made)
        return artists

    setattr(Axes, "bxp", bxp)  # noqa: B010


class _Budget:
    """The number of points that one figure may still describe."""

    def __init__(self) -> None:
        self._left = _MAX_POINTS
        self.is_spent = False

    def take(self, wanted: int) -> int:
        """Returns how many of the wanted points fit, and subtracts them."""
        granted = min(wanted, self._left)
        self._left -= granted
        self.is_spent = self.is_spent or granted < wanted
        return granted


def _describe_axes(axes: Any, budget: _Budget) -> Chart:
    for describe in (_pie, _box, _bar, _points):
        try:
            chart = describe(axes, budget)
        except Exception:  # noqa: S112
            continue

        if chart is not None:
            return chart

    return {"type": "unknown", "title": _title(axes), "elements": []}


def _pie(axes: Any, _budget: _Budget) -> Optional[Chart]:
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)][:_MAX_ELEMENTS]

    if not wedges:
        return None

    elements = [
        {
            "label": _label(wedge),
            "angle": _rounded(abs(wedge.theta2 - wedge.theta1)),
            "radius": float(wedge.r),
        }
        for wedge in wedges
    ]
    return {"type": "pie", "title": _title(axes), "elements": elements}


def _rounded(value: Any) -> float:
    """Rounds a difference to the digits that are not artefacts of the subtraction."""
    number = float(value)
    magnitude = math.floor(math.log10(abs(number))) if number else 0
    return float(f"{number:.{max(1, 8 - magnitude)}g}")


def _box(axes: Any, budget: _Budget) -> Optional[Chart]:
    boxes = [stats for median, stats in _boxes.get(axes, ()) if median.axes is axes][:_MAX_ELEMENTS]

    if not boxes:
        return None

    is_vertical = _is_categorical_side(axes.xaxis, len(boxes)) or not _is_categorical_side(
        axes.yaxis, len(boxes)
    )
    ticks = _tick_texts(axes.xaxis if is_vertical else axes.yaxis)
    elements = []

    for index, stats in enumerate(boxes):
        outliers = [float(value) for value in stats.get("fliers", ())]
        label = str(stats.get("label") or "") or (ticks[index] if index < len(ticks) else "")
        elements.append(
            {
                "label": label[:_MAX_LABEL_CHARACTERS],
                "min": float(stats["whislo"]),
                "first_quartile": float(stats["q1"]),
                "median": float(stats["med"]),
                "third_quartile": float(stats["q3"]),
                "max": float(stats["whishi"]),
                "outliers": outliers[: budget.take(len(outliers))],
            }
        )

    return {"type": "box_and_whisker", **_axes_fields(axes), "elements": elements}


def _is_categorical_side(axis: Any, count: int) -> bool:
    return (
        type(axis.get_major_locator()).__name__ in ("FixedLocator", "StrCategoryLocator")
        and len(axis.get_ticklocs()) >= count
    )


def _bar(axes: Any, budget: _Budget) -> Optional[Chart]:
    from matplotlib.container import BarContainer

    containers = [one for one in axes.containers if isinstance(one, BarContainer)]

    if not containers:
        return None

    elements: List[Dict[str, Any]] = []

    for container in containers:
        is_vertical = getattr(container, "orientation", None) != "horizontal"
        label_of = _bar_labels(axes.xaxis if is_vertical else axes.yaxis)
        bars = container.patches[: budget.take(len(container.patches))]

        for bar in bars:
            center = bar.get_x() + bar.get_width() / 2 if is_vertical else bar.get_y() + bar.get_height() / 2
            value = bar.get_height() if is_vertical else bar.get_width()
            elements.append(
                {"label": label_of(center), "group": _label(container), "value": json_safe(float(value))}
            )

    return {"type": "bar", **_axes_fields(axes), "elements": elements[:_MAX_ELEMENTS]}


def _bar_labels(axis: Any) -> Callable[[float], str]:
    """Returns a function for the label of a bar: the nearest tick if labels were set, else the coordinate."""
    is_written = type(axis.get_major_formatter()).__name__ in (
        "FixedFormatter",
        "StrCategoryFormatter",
        "FuncFormatter",
    )
    ticks = list(zip(axis.get_ticklocs(), _tick_texts(axis)))  # noqa: B905
    to_value = _value_reader(axis)

    def label(center: float) -> str:
        if is_written and ticks:
            return min(ticks, key=lambda tick: abs(tick[0] - center))[1]

        value = to_value(center)
        return value if isinstance(value, str) else f"{value:g}"

    return label


def _points(axes: Any, budget: _Budget) -> Optional[Chart]:
    from matplotlib.collections import PathCollection

    lines = [line for line in axes.lines if line.get_visible() and _is_in_data_space(line, axes)]
    clouds = [one for one in axes.collections if isinstance(one, PathCollection) and len(one.get_offsets())]

    if not lines and not clouds:
        return None

    is_line = any(line.get_linestyle() not in ("None", "none", "", " ") for line in lines) and not clouds
    read_x, read_y = _value_reader(axes.xaxis), _value_reader(axes.yaxis)
    elements = []

    for line in lines[:_MAX_ELEMENTS]:
        xs, ys = line.get_xdata(orig=False), line.get_ydata(orig=False)
        elements.append({"label": _label(line), "points": _read_points(xs, ys, read_x, read_y, budget)})

    for cloud in clouds[:_MAX_ELEMENTS]:
        xs, ys = cloud.get_offsets().T
        elements.append({"label": _label(cloud), "points": _read_points(xs, ys, read_x, read_y, budget)})

    return {
        "type": "line" if is_line else "scatter",
        **_axes_fields(axes),
        **_ticks("x", axes.xaxis, read_x),
        **_ticks("y", axes.yaxis, read_y),
        "elements": elements,
    }


def _is_in_data_space(line: Any, axes: Any) -> bool:
    """Returns False for the lines of axhline() and axvline(), which span the axes."""
    return all(line.get_transform().contains_branch_seperately(axes.transData))


def _read_points(
    xs: Any, ys: Any, read_x: Callable[[Any], Any], read_y: Callable[[Any], Any], budget: _Budget
) -> List[List[Any]]:
    count = budget.take(len(xs))
    pairs = zip(_unmasked(xs[:count]), _unmasked(ys[:count]))  # noqa: B905
    return [[read_x(x), read_y(y)] for x, y in pairs if x == x and y == y]


def _unmasked(values: Any) -> Any:
    """Returns the values of an array, with NaN for masked ones."""
    return values.astype(float).filled(float("nan")) if hasattr(values, "filled") else values


def _ticks(side: str, axis: Any, read: Callable[[Any], Any]) -> Chart:
    locations = [read(value) for value in axis.get_ticklocs()[:_MAX_ELEMENTS]]
    return {
        f"{side}_ticks": locations,
        f"{side}_tick_labels": _tick_texts(axis),
        f"{side}_scale": _scale(axis),
    }


def _scale(axis: Any) -> str:
    name = axis.get_scale()

    if name != "linear":
        return name if name in SCALES else "unknown"

    return {"date": "datetime", "category": "categorical"}.get(_kind(axis), "linear")


def _kind(axis: Any) -> str:
    """Returns whether the numbers of an axis represent dates or categories."""
    get_converter = getattr(axis, "get_converter", None)
    converter = get_converter() if get_converter is not None else axis.converter
    name = type(converter).__name__

    if name == "StrCategoryConverter":
        return "category"

    locator = type(axis.get_major_locator()).__name__
    is_date = name in _DATE_CONVERTERS or "Date" in locator or locator == "TimeSeries_DateLocator"
    return "date" if is_date else "number"


# Converters of matplotlib and of pandas.
_DATE_CONVERTERS = frozenset(
    (
        "DateConverter",
        "ConciseDateConverter",
        "_SwitchableDateConverter",
        "DatetimeConverter",
        "PeriodConverter",
    )
)


def _value_reader(axis: Any) -> Callable[[Any], Any]:
    """Returns a function that converts an axis's numbers to the values that they represent."""
    kind = _kind(axis)

    if kind == "category":
        names = {number: str(name) for name, number in axis.units._mapping.items()}
        return lambda value: names.get(value, _number(value))

    if kind == "date" and hasattr(axis, "freq"):
        return functools.partial(_read_period, axis.freq)

    if kind == "date":
        return _read_date

    return _number


def _read_date(value: Any) -> Any:
    from matplotlib.dates import num2date

    return num2date(value).replace(tzinfo=None).isoformat()


def _read_period(frequency: Any, value: Any) -> Any:
    """Converts a number of an axis that pandas has made for a time series, which is a period."""
    from pandas import Period

    return Period(ordinal=int(value), freq=frequency).to_timestamp().isoformat()


def _number(value: Any) -> Any:
    return json_safe(value.item() if hasattr(value, "item") else value)


def _axes_fields(axes: Any) -> Chart:
    x_label, y_label = _text(axes.get_xlabel()), _text(axes.get_ylabel())
    return {
        "title": _title(axes),
        "x_label": x_label,
        "y_label": y_label,
        "x_unit": _unit(x_label),
        "y_unit": _unit(y_label),
    }


def _title(axes: Any) -> Optional[str]:
    return _text(axes.get_title()) or _text(axes.get_title("left")) or _text(axes.get_title("right"))


def _unit(label: Optional[str]) -> Optional[str]:
    match = _UNIT.search(label or "")
    return (match.group(1) or match.group(2)).strip() if match else None


def _text(value: Any) -> Optional[str]:
    return str(value)[:_MAX_LABEL_CHARACTERS] if value else None


def _label(artist: Any) -> str:
    label = str(artist.get_label() or "")
    # Labels with an underscore are matplotlib's own.
    return "" if label.startswith("_") else label[:_MAX_LABEL_CHARACTERS]


def _tick_texts(axis: Any) -> List[str]:
    return [tick.get_text()[:_MAX_LABEL_CHARACTERS] for tick in axis.get_ticklabels()[:_MAX_ELEMENTS]]
