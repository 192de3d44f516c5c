"""Figures and tables: shown without being asked for, and told as data."""

from __future__ import annotations

import json

import pytest

from fumehood_guest.context.figures import _describe

CHART = "application/vnd.fumehood.chart+json"
DATA = "application/vnd.fumehood.data+json"
PLT = "import matplotlib.pyplot as plt\n"


def charts(outcome):
    return [json.loads(parts[CHART]) for parts in outcome.results if CHART in parts]


def chart(context, code):
    outcome = context.run(PLT + code)
    assert outcome.error is None, outcome.traceback
    (one,) = charts(outcome)
    return one


def test_a_figure_is_shown_at_the_end_of_the_cell(data_context):
    """An open figure is shown once as PNG and as data, and closed."""
    outcome = data_context.run(PLT + "plt.plot([1, 2]);")
    (parts,) = outcome.results
    assert parts["image/png"].startswith(b"\x89PNG\r\n")
    assert outcome.kinds == ["display_data"]
    assert data_context.run("plt.get_fignums()").text == "[]"


def test_show_shows_at_that_moment(data_context):
    """plt.show() shows what is open before the cell goes on; the rest comes at the end."""
    outcome = data_context.run(PLT + "plt.plot([1]); plt.show()\nprint('between')\nplt.plot([2]);")
    assert outcome.kinds == ["display_data", "stream", "display_data"]


def test_a_figure_is_shown_even_if_the_cell_fails(data_context):
    """What was drawn before the error is shown."""
    outcome = data_context.run(PLT + "plt.plot([1])\n1/0")
    assert outcome.kinds == ["display_data", "error"]


@pytest.mark.parametrize("ending", ["fig", "display(fig)"])
def test_a_figure_that_was_shown_is_not_shown_again(data_context, ending):
    """A figure that is the cell's value, or was displayed, comes once; changed afterwards, it comes again."""
    assert len(charts(data_context.run(PLT + f"fig, ax = plt.subplots(); ax.plot([1, 2])\n{ending}"))) == 1
    code = "fig, ax = plt.subplots(); ax.plot([1, 2]); display(fig); ax.set_title('later');"
    assert [one["title"] for one in charts(data_context.run(code))] == [None, "later"]


def test_other_backends_are_shown_too(data_context):
    """A program that chooses Agg by itself, as scripts do, gets its figures shown, without a warning."""
    outcome = data_context.run(
        "import matplotlib\nmatplotlib.use('Agg')\n" + PLT + "plt.plot([1]); plt.show()"
    )
    assert len(charts(outcome)) == 1
    assert outcome.stderr == ""


def test_an_empty_figure_is_not_shown(data_context):
    """A figure without content shows nothing."""
    assert data_context.run(PLT + "plt.figure();").results == []


def test_matplotlib_stays_lazy(bare_zygote):
    """Without preload, matplotlib is loaded by the cell that imports it, and works all the same."""
    context = bare_zygote.start()
    assert context.run("import sys\n'matplotlib' in sys.modules").text == "False"
    outcome = context.run(PLT + "plt.plot([1, 2]); plt.show()\nplt.__loader__.__class__.__name__")
    assert len(charts(outcome)) == 1
    assert outcome.text == "'SourceFileLoader'"
    assert context.close() == 0


def test_line(data_context):
    """Lines with labels, units, ticks and scales."""
    code = (
        "plt.plot([1, 2], [3, 4], label='a'); plt.plot([1, 2], [5, 6], label='b')\n"
        "plt.xlabel('Time (s)'); plt.ylabel('U [V]'); plt.title('T'); plt.xscale('log'); "
        "plt.axhline(4);"
    )
    one = chart(data_context, code)
    expected = {
        "type": "line",
        "title": "T",
        "x_label": "Time (s)",
        "y_label": "U [V]",
        "x_unit": "s",
        "y_unit": "V",
        "x_scale": "log",
        "y_scale": "linear",
    }
    assert {name: one[name] for name in expected} == expected
    assert one["elements"] == [
        {"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]},
        {"label": "b", "points": [[1.0, 5.0], [2.0, 6.0]]},
    ]
    assert len(one["y_ticks"]) == len(one["y_tick_labels"]) > 2
    assert all(isinstance(tick, float) for tick in one["y_ticks"])


def test_dates_and_names_on_an_axis(data_context):
    """Dates become ISO strings, categories their names."""
    one = chart(
        data_context,
        "import datetime\nplt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2]);",
    )
    assert one["x_scale"] == "datetime"
    assert one["elements"][0]["points"] == [["2024-01-01T00:00:00", 1.0], ["2024-01-02T00:00:00", 2.0]]
    one = chart(data_context, "plt.scatter(['x', 'y'], [1, 2]);")
    assert (one["type"], one["x_scale"], one["x_ticks"]) == ("scatter", "categorical", ["x", "y"])
    assert one["elements"][0]["points"] == [["x", 1.0], ["y", 2.0]]
    one = chart(
        data_context,
        "import pandas as pd\npd.Series([1, 2], index=pd.date_range('2024-03-01', periods=2)).plot();",
    )
    assert (one["x_scale"], one["elements"][0]["points"][0]) == ("datetime", ["2024-03-01T00:00:00", 1.0])


def test_scatter(data_context):
    """Clouds of points; markers without a line count as such."""
    one = chart(data_context, "plt.scatter([1, float('nan'), 2], [3, 4, 5], label='s');")
    assert (one["type"], one["elements"]) == ("scatter", [{"label": "s", "points": [[1.0, 3.0], [2.0, 5.0]]}])
    assert chart(data_context, "plt.plot([1, 2], 'o');")["type"] == "scatter"


def test_bars(data_context):
    """Bars have label, group and value, standing and lying, grouped and stacked."""
    bars = [{"label": "a", "group": "g", "value": 1.0}, {"label": "b", "group": "g", "value": -2.0}]
    assert chart(data_context, "plt.bar(['a', 'b'], [1, -2], label='g');")["elements"] == bars
    assert chart(data_context, "plt.barh(['a', 'b'], [1, -2], label='g');")["elements"] == bars
    one = chart(
        data_context,
        "import pandas as pd\npd.DataFrame({'p': [1, 2], 'q': [3, 4]}, index=['r', 's']).plot.bar();",
    )
    assert [tuple(bar.values()) for bar in one["elements"]] == [
        ("r", "p", 1.0),
        ("s", "p", 2.0),
        ("r", "q", 3.0),
        ("s", "q", 4.0),
    ]
    one = chart(data_context, "plt.hist([1, 1, 2], bins=[0.5, 1.5, 2.5]);")
    assert [(bar["label"], bar["value"]) for bar in one["elements"]] == [("1", 2.0), ("2", 1.0)]


def test_pie(data_context):
    """Slices have label, angle and radius."""
    one = chart(data_context, "plt.pie([1, 3], labels=['a', 'b']); plt.title('P');")
    assert one == {
        "type": "pie",
        "title": "P",
        "elements": [
            {"label": "a", "angle": 90.0, "radius": 1.0},
            {"label": "b", "angle": 270.0, "radius": 1.0},
        ],
    }


def test_angles_of_slices_are_round(data_context):
    """An angle is a difference, and has no digits that only the subtraction has made."""
    one = chart(data_context, "plt.pie([0.1, 0.9]);")
    assert [slice_["angle"] for slice_ in one["elements"]] == [36.0, 324.0]
    one = chart(data_context, "plt.pie([1, 2]); plt.pie([1, 6]);")
    assert [slice_["angle"] for slice_ in one["elements"]] == [120.0, 240.0, 51.42857, 308.571]


def test_saved_pictures_are_shown(data_context):
    """What a cell saves with PIL under a path is shown, ten times at most; what a library or a buffer takes is not."""
    image = (
        "import io, os, tempfile, pathlib\nfrom PIL import Image\n"
        "folder = tempfile.mkdtemp()\nimage = Image.new('RGBA', (4, 4))\n"
    )
    outcome = data_context.run(f"{image}image.save(f'{{folder}}/a.png')\nprint('saved', os.listdir(folder))")
    assert outcome.stdout == "saved ['a.png']\n"
    (parts,) = outcome.results
    assert parts["image/png"].startswith(b"\x89PNG\r\n")

    outcome = data_context.run(
        "image.save(io.BytesIO(), 'PNG')\n"
        "import matplotlib.image\nmatplotlib.image.imsave(f'{folder}/b.png', [[0.0, 1.0]])\n"
        "for n in range(15): image.convert('RGB').save(pathlib.Path(folder, f'{n}.jpg'), quality=50)"
    )
    assert outcome.error is None
    assert len(outcome.results) == 10


def test_box_and_whisker(data_context):
    """Boxes have their five numbers and outliers."""
    one = chart(
        data_context,
        "fig, ax = plt.subplots(); ax.boxplot([[1, 2, 3, 4, 100]]); ax.set_xticklabels(['first']);",
    )
    (box,) = one["elements"]
    assert one["type"] == "box_and_whisker"
    assert {**box, "label": ""} == {
        "label": "",
        "min": 1.0,
        "first_quartile": 2.0,
        "median": 3.0,
        "third_quartile": 4.0,
        "max": 4.0,
        "outliers": [100.0],
    }


def test_superchart(data_context):
    """Several subplots are a superchart of charts; a colour bar is none."""
    one = chart(
        data_context,
        (
            "fig, (a, b) = plt.subplots(1, 2); a.plot([1]); m = b.scatter([1], [2], c=[3]); "
            "fig.colorbar(m); fig.suptitle('S');"
        ),
    )
    assert (one["type"], one["title"], [part["type"] for part in one["elements"]]) == (
        "superchart",
        "S",
        ["line", "scatter"],
    )


def test_unknown(data_context):
    """What has no description is unknown, with its title."""
    one = chart(data_context, "plt.imshow([[1, 2], [3, 4]]); plt.title('heat');")
    assert (one["type"], one["title"]) == ("unknown", "heat")


def test_many_points_are_bounded(data_context):
    """A line of a million points travels in part, and says so."""
    one = chart(data_context, "plt.plot(range(1_000_000));")
    assert one["truncated"] is True
    assert len(one["elements"][0]["points"]) == 20_000


def test_a_figure_that_cannot_be_drawn_is_an_error(data_context):
    """A failing drawing is the cell's error; the next cell works."""
    outcome = data_context.run(PLT + "plt.title('$\\\\frac{$');")
    assert outcome.error is not None
    assert data_context.run("plt.get_fignums()").text == "[]"


def test_a_dataframe_is_reported_as_columns(data_context):
    """Columns of plain values: ISO dates, null for what is missing."""
    outcome = data_context.run(
        "import pandas as pd, numpy as np, datetime\n"
        "pd.DataFrame({'n': [1.5, np.nan], 'inf': [np.inf, 1], 'd': pd.to_datetime(['2024-01-02', None]),"
        " 's': ['x', None], 'b': [True, False], 'i': pd.array([1, None], dtype='Int64'),"
        " 'c': pd.Categorical(['u', 'v']), 'o': [[1], {2}], 5: [datetime.date(2024, 1, 1)] * 2})"
    )
    ((header, _),) = outcome.of("execute_result")
    (parts,) = outcome.results
    assert b"<table" in parts["text/html"]
    assert json.loads(parts[DATA]) == {
        "n": [1.5, None], "inf": [None, 1.0], "d": ["2024-01-02T00:00:00", None], "s": ["x", None],
        "b": [True, False], "i": [1, None], "c": ["u", "v"], "o": ["[1]", "{2}"],
        "5": ["2024-01-01", "2024-01-01"],
    }  # fmt: skip
    assert header["metadata"] == {DATA: {"rows": 2, "columns": 9, "truncated": False}}


def test_a_large_table_is_cut_and_marked(data_context):
    """At most a thousand rows and a hundred columns travel as data."""
    outcome = data_context.run("import pandas as pd, numpy as np\npd.DataFrame(np.zeros((5000, 200)))")
    ((header, _),) = outcome.of("execute_result")
    data = json.loads(outcome.results[0][DATA])
    assert (len(data), len(data["0"])) == (100, 500)
    assert header["metadata"][DATA] == {"rows": 5000, "columns": 200, "truncated": True}


def test_a_series_and_odd_columns(data_context):
    """A Series brings its index when that means something; equal and tuple names are told apart."""
    first = data_context.run("import pandas as pd\npd.Series([1, 2], index=['a', 'b'], name='v')")
    assert json.loads(first.results[0][DATA]) == {"index": ["a", "b"], "v": [1, 2]}
    assert json.loads(data_context.run("pd.Series([1, 2])").results[0][DATA]) == {"value": [1, 2]}
    odd = data_context.run("df = pd.DataFrame([[1, 2, 3]]); df.columns = ['a', 'a', ('x', 1)]; df")
    assert json.loads(odd.results[0][DATA]) == {"a": [1], "a.1": [2], "x 1": [3]}


@pytest.mark.parametrize(
    ("figure", "told"),
    [
        ({}, "plotly figure: empty"),
        ({"data": [{"type": "bar", "name": ""}]}, "plotly figure: bar"),
        (
            {
                "data": [{"type": "bar", "name": "north"}, {"name": "south"}],
                "layout": {"title": {"text": "Sales"}, "xaxis": {"title": {"text": "month"}}, "yaxis": {}},
            },
            "plotly figure 'Sales': bar 'north', scatter 'south' (x 'month')",
        ),
        ({"data": [{"name": n} for n in range(1, 8)]}, "5', 2 more"),
    ],
)
def test_a_plotly_figure_is_told_by_its_titles_and_traces(figure, told):
    """What a model, which does not see it, can check it by."""
    assert _describe(figure).endswith(told)
