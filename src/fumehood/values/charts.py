"""Charts as data: the numbers and labels of a plot, read from a guest's description of its figure.

The description is hostile: its form is never trusted, depth and counts are bounded, and a value that does not fit the
declared kind becomes `UnknownChart` or is left out. The fields are those that E2B's clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
Coordinate: TypeAlias = float | int | str

# Bounds of one chart: far above what a reader can see, far below what costs much.
_MAX_ELEMENTS = 1_000
_MAX_POINTS = 100_000
_MAX_SUBPLOTS = 100
_MAX_LABEL_CHARACTERS = 1_000

# The scales of matplotlib plus those that follow from the kind of data; any other is reported as unknown.
SCALES = frozenset(
    (
        "linear",
        "datetime",
        "categorical",
        "log",
        "symlog",
        "logit",
        "function",
        "functionlog",
        "asinh",
        "unknown",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSeries:
    """One line, or one cloud of points."""

    label: str
    points: tuple[tuple[Coordinate, Coordinate], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: its place on the axis, its group, its height."""

    label: str
    group: str
    value: Coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class PieSlice:
    """One slice of a pie: its label, its angle in degrees, and its radius."""

    label: str
    angle: float
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box with whiskers."""

    label: str
    min: float
    first_quartile: float
    median: float
    third_quartile: float
    max: float
    outliers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes2D:
    """The common fields of charts with two axes."""

    title: str | None = None
    x_label: str | None = None
    y_label: str | None = None
    x_unit: str | None = None
    y_unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointAxes(Axes2D):
    """The common fields of charts of points."""

    x_ticks: tuple[Coordinate, ...] = ()
    x_tick_labels: tuple[str, ...] = ()
    x_scale: str = "unknown"
    y_ticks: tuple[Coordinate, ...] = ()
    y_tick_labels: tuple[str, ...] = ()
    y_scale: str = "unknown"
    elements: tuple[PointSeries, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(PointAxes):
    """Lines over two axes."""

    type: Literal["line"] = field(default="line", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterChart(PointAxes):
    """Points over two axes."""

    type: Literal["scatter"] = field(default="scatter", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(Axes2D):
    """Bars over an axis."""

    elements: tuple[Bar, ...] = ()
    type: Literal["bar"] = field(default="bar", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxAndWhiskerChart(Axes2D):
    """Boxes with whiskers over an axis."""

    elements: tuple[Box, ...] = ()
    type: Literal["box_and_whisker"] = field(default="box_and_whisker", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieChart:
    """Slices of a whole."""

    title: str | None = None
    elements: tuple[PieSlice, ...] = ()
    type: Literal["pie"] = field(default="pie", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownChart:
    """A figure of a kind that has no description yet."""

    title: str | None = None
    type: Literal["unknown"] = field(default="unknown", init=False)


SimpleChart: TypeAlias = LineChart | ScatterChart | BarChart | BoxAndWhiskerChart | PieChart | UnknownChart


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperChart:
    """Several subplots in one figure."""

    title: str | None = None
    elements: tuple[SimpleChart, ...] = ()
    type: Literal["superchart"] = field(default="superchart", init=False)


Chart: TypeAlias = SimpleChart | SuperChart


def read_chart(value: JsonValue) -> Chart | None:
    """Return the chart that a guest describes, or None if it describes none."""
    if not isinstance(value, dict):
        return None

    if value.get("type") != "superchart":
        return _simple(value)

    subplots = [
        _simple(item) for item in _list(value.get("elements"))[:_MAX_SUBPLOTS] if isinstance(item, dict)
    ]
    return SuperChart(title=_text(value.get("title")), elements=tuple(subplots))


def _simple(value: Mapping[str, JsonValue]) -> SimpleChart:
    kind = value.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return reader(value) if reader is not None else UnknownChart(title=_text(value.get("title")))


def _line(value: Mapping[str, JsonValue]) -> LineChart:
    axes = _point_axes(value)
    return LineChart(**{name: getattr(axes, name) for name in PointAxes.__dataclass_fields__})


def _scatter(value: Mapping[str, JsonValue]) -> ScatterChart:
    axes = _point_axes(value)
    return ScatterChart(**{name: getattr(axes, name) for name in PointAxes.__dataclass_fields__})


def _point_axes(value: Mapping[str, JsonValue]) -> PointAxes:
    room = _MAX_POINTS
    series: list[PointSeries] = []

    for item in _elements(value):
        points = _points(item.get("points"), room)
        room -= len(points)
        series.append(PointSeries(label=_label(item.get("label")), points=points))

    return PointAxes(
        **_axes(value),
        x_ticks=_coordinates(value.get("x_ticks")),
        x_tick_labels=_labels(value.get("x_tick_labels")),
        x_scale=_scale(value.get("x_scale")),
        y_ticks=_coordinates(value.get("y_ticks")),
        y_tick_labels=_labels(value.get("y_tick_labels")),
        y_scale=_scale(value.get("y_scale")),
        elements=tuple(series),
    )


def _bar(value: Mapping[str, JsonValue]) -> BarChart:
    bars = [
        Bar(label=_label(item.get("label")), group=_label(item.get("group")), value=height)
        for item in _elements(value)
        if (height := _coordinate(item.get("value"))) is not None
    ]
    return BarChart(**_axes(value), elements=tuple(bars))


def _box(value: Mapping[str, JsonValue]) -> BoxAndWhiskerChart:
    boxes: list[Box] = []

    for item in _elements(value):
        names = ("min", "first_quartile", "median", "third_quartile", "max")
        numbers = [_number(item.get(name)) for name in names]
        known = [number for number in numbers if number is not None]

        if len(known) != len(names):
            continue

        outliers = [_number(entry) for entry in _list(item.get("outliers"))[:_MAX_POINTS]]
        low, first, median, third, high = known
        boxes.append(
            Box(
                label=_label(item.get("label")),
                min=low,
                first_quartile=first,
                median=median,
                third_quartile=third,
                max=high,
                outliers=tuple(number for number in outliers if number is not None),
            )
        )

    return BoxAndWhiskerChart(**_axes(value), elements=tuple(boxes))


def _pie(value: Mapping[str, JsonValue]) -> PieChart:
    slices = [
        PieSlice(label=_label(item.get("label")), angle=angle, radius=radius)
        for item in _elements(value)
        if (angle := _number(item.get("angle"))) is not None
        and (radius := _number(item.get("radius"))) is not None
    ]
    return PieChart(title=_text(value.get("title")), elements=tuple(slices))


_READERS: Mapping[str, Callable[[Mapping[str, JsonValue]], SimpleChart]] = {
    "line": _line,
    "scatter": _scatter,
    "bar": _bar,
    "box_and_whisker": _box,
    "pie": _pie,
}


def _axes(value: Mapping[str, JsonValue]) -> dict[str, str | None]:
    return {name: _text(value.get(name)) for name in Axes2D.__dataclass_fields__}


def _elements(value: Mapping[str, JsonValue]) -> list[dict[str, JsonValue]]:
    return [item for item in _list(value.get("elements"))[:_MAX_ELEMENTS] if isinstance(item, dict)]


def _points(value: JsonValue, room: int) -> tuple[tuple[Coordinate, Coordinate], ...]:
    points: list[tuple[Coordinate, Coordinate]] = []

    for item in _list(value)[:room]:
        pair = _list(item)

        if len(pair) != 2:
            continue

        x, y = _coordinate(pair[0]), _coordinate(pair[1])

        if x is not None and y is not None:
            points.append((x, y))

    return tuple(points)


def _coordinates(value: JsonValue) -> tuple[Coordinate, ...]:
    found = (_coordinate(item) for item in _list(value)[:_MAX_ELEMENTS])
    return tuple(item for item in found if item is not None)


def _coordinate(value: JsonValue) -> Coordinate | None:
    return _text(value) if isinstance(value, str) else _number(value)


def _number(value: JsonValue) -> float | int | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _labels(value: JsonValue) -> tuple[str, ...]:
    return tuple(_label(item) for item in _list(value)[:_MAX_ELEMENTS])


def _label(value: JsonValue) -> str:
    if isinstance(value, (int, float)):
        return str(value)[:_MAX_LABEL_CHARACTERS]

    return _text(value) or ""


def _text(value: JsonValue) -> str | None:
    return value[:_MAX_LABEL_CHARACTERS] if isinstance(value, str) else None


def _scale(value: JsonValue) -> str:
    return value if isinstance(value, str) and value in SCALES else "unknown"


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
