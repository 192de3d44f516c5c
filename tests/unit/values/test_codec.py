"""Values as plain data: what a program reads with `--json`."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest

from fumehood import Execution, ExecutionError, Limits, LogEntry, Logs, Result, Truncation, Usage
from fumehood.values.charts import BarChart
from fumehood.values.codec import DataError, read_value
from fumehood.values.plain_data import as_data
from fumehood.values.results import CHART_MIME, DATA_MIME
from fumehood.values.sandbox import Isolation
from fumehood.values.stateless import StatelessReply


def test_an_execution_is_plain_data():
    """Everything that can be read from it is there, and JSON can hold it."""
    chart = {"type": "bar", "title": "t", "elements": [{"label": "a", "group": "g", "value": 2}]}
    execution = Execution(
        id="e",
        context_id="c",
        results=(
            Result(
                parts={
                    "text/plain": b"42",
                    "image/png": b"\x89PNG",
                    "x/y": b"\x00",
                    DATA_MIME: b'{"a": [1, NaN]}',
                    CHART_MIME: json.dumps(chart).encode(),
                },
                is_main_result=True,
            ),
        ),
        logs=Logs(entries=(LogEntry(stream="stdout", text="hi", at_seconds=0.5),)),
        error=ExecutionError(kind="exception", name="E", value="v", traceback="tb"),
        usage=Usage(wall_seconds=1.5),
        truncated=Truncation(stdout_bytes=3),
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    data = as_data(execution)

    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["text"] == "42"
    assert data["logs"]["stdout"] == ["hi"]
    assert data["results"][0]["png"] == "iVBORw=="
    assert data["results"][0]["extra"] == {"x/y": "AA=="}
    assert data["results"][0]["data"] == {"a": [1, None]}
    assert data["results"][0]["chart"]["elements"] == [{"label": "a", "group": "g", "value": 2}]
    assert data["error"] == {"kind": "exception", "name": "E", "value": "v", "traceback": "tb", "hint": ""}
    assert data["started_at"] == "2026-01-02T00:00:00+00:00"
    assert "html" not in data["results"][0]


def test_numbers_that_json_does_not_know_are_null():
    """NaN and infinity have no spelling there."""
    assert as_data([math.nan, math.inf, 1.5]) == [None, None, 1.5]


def test_values_of_ours_keep_their_names():
    """Fields are called what they are called."""
    assert as_data(Limits())["memory_bytes"] == 1 << 30
    assert as_data(BarChart(title="t"))["type"] == "bar"


def test_other_things_are_refused():
    """What has no plain form is not guessed at."""
    with pytest.raises(TypeError):
        as_data(object())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"execution": {"context_id": "c"}}, "StatelessReply.execution.id is missing"),
        (
            {"execution": {"id": 1, "context_id": "c"}},
            "StatelessReply.execution.id is int, which does not fit",
        ),
        ({"isolation": None}, "StatelessReply.isolation is NoneType, which does not fit"),
        ({"files": {"a": "b", "c": "?"}}, "StatelessReply.files.a is no base64"),
        ({"skipped": ["a", True]}, "StatelessReply.skipped is bool, which does not fit"),
    ],
    ids=["missing", "of another type", "nothing", "in a mapping", "in a list"],
)
def test_what_does_not_fit_is_named(change: dict[str, object], fault: str) -> None:
    """The path to it is in the error; what is not known is left out, and the whole is read back as it was."""
    reply = StatelessReply(
        execution=Execution(id="e", context_id="c"), isolation=Isolation(level="namespaces"), skipped=("s",)
    )
    data = as_data(reply)
    assert isinstance(data, dict)
    assert read_value(StatelessReply, {**data, "newer": 1}) == reply

    with pytest.raises(DataError) as caught:
        read_value(StatelessReply, {**data, **change})

    assert str(caught.value) == fault
