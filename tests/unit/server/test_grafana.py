"""The board for Grafana: each of its queries asks for metrics that a server has, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fumehood
from fumehood.server.metrics import ServerMetrics
from fumehood.values.machines import machine_of
from fumehood.values.sandbox import Capacity

_BOARD = Path(fumehood.__file__).parent / "deployment" / "grafana" / "fumehood.json"
_MACHINE = Capacity(
    sandboxes=3,
    max_sandboxes=5,
    memory_available_bytes=7,
    memory_total_bytes=9,
    cpu_cores=2.0,
    load=1.5,
    host_id="abc123",
    incarnation="def456",
    version="0",
)


@pytest.fixture
def board() -> dict[str, Any]:
    """The board as Grafana reads it."""
    content: dict[str, Any] = json.loads(_BOARD.read_text())
    return content


def metrics() -> ServerMetrics:
    """Metrics with one of each."""
    made = ServerMetrics()
    made.note_machines([machine_of(_MACHINE)])
    made.observe("GET", "/v1/info", 200, 0.1)
    made.executions.labels("ok").inc()
    made.note_rate_limited("requests")
    return made


def test_each_query_asks_for_what_a_server_has(board: dict[str, Any]) -> None:
    """A renamed metric would leave an empty panel, which looks like a quiet server."""
    text = metrics().text().decode()
    known = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | set(re.findall(r"^(fumehood_\w+)", text, re.M))
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"fumehood_\w+", target["expr"])
    }
    assert asked <= known
    assert len(asked) > 15


def test_its_panels_have_ids_places_and_a_source_to_choose(board: dict[str, Any]) -> None:
    """What Grafana refuses or draws over each other: the same id twice, the same place twice, a source by its id."""
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    (variable,) = board["templating"]["list"]
    assert variable["type"] == "datasource"
    assert all(
        part["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
        for panel in panels
        for part in (panel, *panel["targets"])
    )


def test_a_machine_that_is_gone_is_shown_no_longer() -> None:
    """Or its last figures would stay for ever."""
    made = metrics()
    assert 'fumehood_machine_sandboxes{machine="abc123"} 3.0' in made.text().decode()
    made.note_machines([])
    assert "abc123" not in made.text().decode()
