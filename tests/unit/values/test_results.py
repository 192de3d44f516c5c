"""Results: a guest's bytes, decoded on request and within bounds."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.values.json_values import JSON_STRING
from fumehood.values.results import (
    CHART_MIME,
    DATA_MIME,
    Result,
    _without_texts,
    cut_text,
    fit_result,
    read_json,
)


def test_text_that_is_no_utf8_is_shown_with_marks():
    """Broken text is no error of the reader."""
    assert Result(parts={"text/plain": b"a\xff"}).text == "a\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b"[" + b"0," * 2_000_000 + b"0]",
        b"[" + b"[]," * 1_500_000 + b"0]",
    ],
    ids=["empty", "open", "bytes", "deep list", "deep object", "digits", "many", "many lists"],
)
def test_hostile_json_reads_as_none(data):
    """What cannot be read within bounds is not read, and its bytes stay."""
    result = Result(parts={"application/json": data, DATA_MIME: data, CHART_MIME: data})

    assert result.json is None
    assert result.data is None
    assert result.chart is None
    assert result.parts["application/json"] == data


def test_separators_in_strings_are_no_values():
    """A long text with commas is one value."""
    text = "," * 1_500_000
    assert read_json(json.dumps([text, 'quo"te\\']).encode()) == [text, 'quo"te\\']


@given(st.lists(st.text(st.sampled_from('a\\",[')), max_size=6), st.integers(0, 5))
def test_no_separator_in_a_string_counts(texts, cut):
    """Escapes within strings neither end them nor hide their end, and a string may have none."""
    text = json.dumps(texts).encode()
    text = text[: len(text) - cut]
    assert _without_texts(text) == JSON_STRING.sub(b"", text)


def test_reading_hostile_json_costs_bounded_memory():
    """Ten megabytes of empty lists do not become hundreds of megabytes of objects."""
    data = b"[" + b"[]," * 3_400_000 + b"0]"
    tracemalloc.start()
    read_json(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@given(st.binary(max_size=300))
def test_no_bytes_make_a_result_fail(data):
    """Whatever a guest sends, every attribute answers."""
    mimes = ["text/plain", "text/html", "application/json", DATA_MIME, CHART_MIME, "image/png", "x/y"]
    result = Result(parts=dict.fromkeys(mimes, data))

    for name in ("text", "html", "json", "data", "chart", "png", "extra", "svg"):
        getattr(result, name)

    assert str(result) == result.text or not result.text


_KEYS = st.sampled_from(
    ["type", "title", "elements", "points", "label", "x_ticks", "x_scale", "value", "angle", "radius", "min"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)
_KINDS = st.sampled_from(["line", "scatter", "bar", "pie", "box_and_whisker", "superchart", "unknown", "?"])


@given(_KINDS, st.dictionaries(_KEYS, _JSON, max_size=6))
def test_no_description_of_a_chart_makes_reading_fail(kind, fields):
    """Shapes of a guest are never trusted: what does not fit is left out."""
    description = {**fields, "type": kind}
    chart = Result(parts={CHART_MIME: json.dumps(description).encode()}).chart

    assert chart is not None
    assert chart.type == (kind if kind != "?" else "unknown")


def test_charts_are_bounded():
    """A chart of millions of points is cut to what can be looked at."""
    description = {
        "type": "line",
        "title": "t" * 5000,
        "elements": [{"label": "l", "points": [[1, 2]] * 60_000}] * 3,
    }
    chart = Result(parts={CHART_MIME: json.dumps(description).encode()}).chart

    assert len(chart.title) == 1000
    assert sum(len(series.points) for series in chart.elements) == 100_000


def test_subplots_are_not_nested():
    """A chart of charts of charts is no chart."""
    inner = {"type": "superchart", "elements": []}
    chart = Result(parts={CHART_MIME: json.dumps({"type": "superchart", "elements": [inner]}).encode()}).chart
    assert [part.type for part in chart.elements] == ["unknown"]


def test_a_result_is_made_to_fit():
    """Small formats stay, plain text is cut, large ones are left out and named with their size."""
    result = fit_result(
        Result(parts={"text/plain": b"x" * 500, "image/png": b"p" * 200, "text/html": b"h" * 2000}), 400
    )

    assert result.parts == {"text/plain": b"x" * 200, "image/png": b"p" * 200}
    assert result.truncated == {"text/plain": 500, "text/html": 2000}


def test_a_result_that_fits_is_left_alone():
    """Nothing is copied when nothing is cut."""
    result = Result(parts={"text/plain": b"x"})
    assert fit_result(result, 1) is result


@given(st.text(), st.integers(0, 50))
def test_a_cut_is_valid_text_and_as_long_as_possible(text, size):
    """A character is kept whole or not at all."""
    raw = text.encode()
    head = cut_text(raw, size)

    assert raw.startswith(head)
    assert head.decode() == text[: len(head.decode())]
    assert len(raw) == len(head) or size - 4 < len(head) <= size


def test_active_formats_are_not_shown_in_a_notebook():
    """HTML, SVG and JavaScript of a guest stay bytes."""
    parts = {
        "text/html": b"<script>",
        "image/svg+xml": b"<svg onload=x>",
        "application/javascript": b"x()",
        "image/png": b"\x89PNG",
        "text/plain": b"\x1b[2J",
    }
    assert Result(parts=parts)._repr_mimebundle_() == {"image/png": b"\x89PNG", "text/plain": "\\x1b[2J"}
