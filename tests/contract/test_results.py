"""Results: what a notebook would show, as data."""

from __future__ import annotations

import pytest

from fumehood import (
    BarChart,
    BoxAndWhiskerChart,
    LineChart,
    PieChart,
    ResultEvent,
    ScatterChart,
    SuperChart,
)

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_last_expression_is_the_main_result(sandbox):
    """What was displayed before it is a result too, but not the main one."""
    execution = sandbox.run_code("display('shown')\n6 * 7")

    assert [(result.text, result.is_main_result) for result in execution.results] == [
        ("'shown'", False),
        ("42", True),
    ]
    assert execution.text == "42"


def test_every_format_arrives(sandbox):
    """Text formats are text, pictures and documents are bytes, JSON is a value."""
    code = """
class Thing:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            "text/plain": "thing", "text/html": "<b>thing</b>", "text/markdown": "**thing**",
            "image/svg+xml": "<svg/>", "text/latex": "$thing$", "application/json": {"a": [1, None, "x"]},
            "application/javascript": "thing()", "image/png": b"\\x89PNG", "image/jpeg": b"\\xff\\xd8",
            "application/pdf": b"%PDF", "application/x-other": "other",
        }
Thing()
"""
    result = sandbox.run_code(code).results[0]

    assert result.text == "thing"
    assert result.html == "<b>thing</b>"
    assert result.markdown == "**thing**"
    assert result.svg == "<svg/>"
    assert result.latex == "$thing$"
    assert result.json == {"a": [1, None, "x"]}
    assert result.javascript == "thing()"
    assert (result.png, result.jpeg, result.pdf) == (b"\x89PNG", b"\xff\xd8", b"%PDF")
    assert result.extra == {"application/x-other": b"other"}
    assert set(result.formats()) >= {"text", "html", "png", "application/x-other"}


def test_a_figure_appears_without_being_saved(sandbox):
    """Open figures are shown at the end of the cell, as a PNG and as data, and closed."""
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3], [4, 5, 6], label="rising")
plt.title("A line"); plt.xlabel("time [s]"); plt.ylabel("height")
"""
    execution = sandbox.run_code(code)
    pictures = [result for result in execution.results if result.png]

    assert len(pictures) == 1
    assert pictures[0].png.startswith(PNG)
    chart = pictures[0].chart
    assert isinstance(chart, LineChart)
    assert (chart.title, chart.y_label, chart.x_scale) == ("A line", "height", "linear")
    assert chart.elements[0].label == "rising"
    assert [tuple(map(float, point)) for point in chart.elements[0].points] == [(1, 4), (2, 5), (3, 6)]
    assert [result for result in sandbox.run_code("1").results if result.png] == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("plt.scatter([1, 2], [3, 4])", ScatterChart),
        ("plt.bar(['a', 'b'], [1, 2])", BarChart),
        ("plt.pie([1, 3], labels=['a', 'b'])", PieChart),
        ("plt.boxplot([[1, 2, 3, 4, 50]])", BoxAndWhiskerChart),
    ],
    ids=["scatter", "bar", "pie", "box"],
)
def test_charts_of_each_kind_are_data(sandbox, code, kind):
    """What a figure shows can be read without looking at it."""
    execution = sandbox.run_code(f"import matplotlib.pyplot as plt\n{code};")
    chart = next(result.chart for result in execution.results if result.png)

    assert isinstance(chart, kind)
    assert chart.elements


def test_several_subplots_are_one_chart_of_charts(sandbox):
    """Each subplot keeps its kind."""
    execution = sandbox.run_code(
        "import matplotlib.pyplot as plt\nfig, (a, b) = plt.subplots(1, 2)\n"
        "a.plot([1, 2]); b.bar(['x'], [1]);"
    )
    chart = next(result.chart for result in execution.results if result.png)

    assert isinstance(chart, SuperChart)
    assert [type(part) for part in chart.elements] == [LineChart, BarChart]


def test_a_data_frame_is_data(sandbox):
    """A table comes as text, as HTML and as columns."""
    result = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})").results[0]

    assert result.data == {"a": [1, 2], "b": ["x", None]}
    assert "<table" in result.html
    assert "a" in result.text


def test_a_result_can_be_updated_in_place(sandbox):
    """`update_display` replaces what stands there; the stream tells both."""
    code = "handle = display(1, display_id=True)\nhandle.update(2)"
    events = [event for event in sandbox.stream_code(code) if isinstance(event, ResultEvent)]
    execution = sandbox.run_code(code)

    assert [(event.result.text, event.is_update) for event in events] == [("1", False), ("2", True)]
    assert [result.text for result in execution.results] == ["2"]


def test_cleared_output_takes_results_away_and_leaves_the_logs(sandbox):
    """What was shown can be taken back; what was printed is a record."""
    execution = sandbox.run_code(
        "from IPython.display import clear_output\nprint('kept')\ndisplay(1)\nclear_output()\ndisplay(2)"
    )
    assert [result.text for result in execution.results] == ["2"]
    assert "".join(execution.logs.stdout) == "kept\n"


def test_magics_and_shell_lines_work(sandbox):
    """Cells are IPython's."""
    assert "".join(sandbox.run_code("!echo hello").logs.stdout) == "hello\n"
    assert sandbox.run_code("%pwd").text == "'/home/user'"

    # What needs root says so, wherever in the line it stands, and leaves no variable of ours behind.
    needing = sandbox.run_code("!cd / && sudo ls; env").logs
    assert "sudo: no process in a sandbox is root" in "".join(needing.stderr)
    assert "BASH_ENV" not in "".join(needing.stdout)


def test_top_level_await_works(sandbox):
    """A cell may await, and tasks go on between cells."""
    sandbox.run_code(
        "import asyncio\nasync def later():\n    await asyncio.sleep(0.05)\n    return 'done'\n"
        "task = asyncio.ensure_future(later())"
    )
    assert sandbox.run_code("await task").text == "'done'"


def test_results_show_nothing_active_in_a_notebook_of_the_host(sandbox):
    """HTML and JavaScript of a guest never run in the page of whoever looks at a result."""
    result = sandbox.run_code(
        "display({'text/html': '<script>evil()</script>', 'text/plain': 'fine\\x1b[31m'}, raw=True)"
    ).results[0]

    assert result._repr_mimebundle_() == {"text/plain": "fine\\x1b[31m"}
