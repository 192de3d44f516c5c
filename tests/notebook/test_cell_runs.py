"""Notebooks run in real sandboxes: from the command line, as a library, with parameters, and up to an error."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from fumehood import AsyncSandbox, InvalidArgumentError, Sandbox
from fumehood.api.notebooks import Determinism, NotebookOptions, run_notebook
from fumehood.notebook.cell_runs import NotebookStep
from fumehood.notebook.ipynb import read_notebook, read_value, set_parameters


def code(source: str, *tags: str, **more: Any) -> dict[str, Any]:
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": [*tags]} if tags else {})
    return json.loads(json.dumps(cell)) | more


def notebook_with(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"title": "kept"}, "cells": [*cells]}


def write(path: Path, notebook: object) -> str:
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
    return str(path)


def fumehood(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fumehood", "notebook", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "FUMEHOOD_POOL_SIZE": "0"},
    )


OLD_OUTPUT = {"output_type": "stream", "name": "stdout", "text": "of another day"}


def test_the_command_runs_all_cells_and_writes_them(tmp_path):
    given = notebook_with(
        nbformat.v4.new_markdown_cell("# A title"),
        code("n = 1\nname = 'x'", "parameters"),
        code("print(n * 2, name)\nn"),
        code("1 / 0"),
        code("raise ValueError", "raises-exception"),
        code("print('not run')", "skip-execution", outputs=[OLD_OUTPUT]),
        code("  \n"),
        code("open('/mnt/data/x', 'w').write('x')\nn + 1"),
    )
    path = write(tmp_path / "in.ipynb", given)
    before = (tmp_path / "in.ipynb").read_text()
    done = fumehood(path, "-o", str(tmp_path / "out.ipynb"), "-p", "n", "21", "-r", "name", "7")
    assert done.returncode == 1, done.stderr
    assert "[4/6] failed: ZeroDivisionError: division by zero" in done.stderr
    assert "6 of 6 cells ran, 1 failed" in done.stderr
    assert (tmp_path / "in.ipynb").read_text() == before
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.title == "kept"
    assert notebook.cells[2].source == "# Parameters\nn = 21\nname = '7'"
    assert notebook.cells[3].outputs[0].text == "42 7\n"
    assert notebook.cells[3].outputs[1].data["text/plain"] == "21"
    assert notebook.cells[4].outputs[0].ename == "ZeroDivisionError"
    assert notebook.cells[6].outputs == []
    assert notebook.cells[-1].outputs[0].data["text/plain"] == "22"
    assert notebook.cells[-1].execution_count == 6
    assert "iopub.execute_input" in notebook.cells[-1].metadata.execution


def test_the_command_stops_on_an_error_and_says_what_is_wrong(tmp_path):
    path = write(tmp_path / "in.ipynb", notebook_with(code("1 / 0"), code("print('not run')")))
    out = str(tmp_path / "out.ipynb")
    done = fumehood(path, "-o", out, "--stop-on-error")
    assert done.returncode == 1
    assert "1 of 2 cells ran, 1 failed" in done.stderr
    assert nbformat.read(out, as_version=4).cells[1].outputs == []
    (tmp_path / "out.ipynb").unlink()

    for bad in ("no json", '{"nbformat": 3}', "[]"):
        done = fumehood(write(tmp_path / "bad.ipynb", bad), "-o", out)
        assert done.returncode == 64, done.stderr
        assert "bad.ipynb" in done.stderr

    assert fumehood(path, "-o", out, "-p", "class", "1").returncode == 64
    assert fumehood(str(tmp_path / "none.ipynb"), "-o", out).returncode == 74
    assert not os.path.exists(out)


def test_a_deterministic_run_gives_the_same_twice(tmp_path):
    cell = code(
        "import random, time, datetime, uuid, secrets\n"
        "print(random.random(), secrets.token_hex(8), uuid.uuid4(), time.time(), datetime.datetime.now())"
    )
    path = write(tmp_path / "in.ipynb", notebook_with(cell))
    said = []

    for _ in range(2):
        assert fumehood(path, "-o", str(tmp_path / "out.ipynb"), "--deterministic").returncode == 0
        said.append(nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[0].outputs)

    assert said[0] == said[1]
    assert "2000-01-01 00:00:00.0" in said[0][0].text


def test_a_run_stays_deterministic_when_the_state_is_lost():
    """What was fixed is fixed again in the context that takes the place of the one that died."""

    async def run():
        options = NotebookOptions(determinism=Determinism())

        async with AsyncSandbox() as sandbox:
            dying = "import os; os._exit(1)"
            look = "import random, time; (random.random(), time.time())"
            return await run_notebook(sandbox, notebook_with(code(look), code(dying), code(look)), options)

    cells = asyncio.run(run()).notebook["cells"]
    before, _, after = ([output.get("data") for output in cell["outputs"]] for cell in cells)
    assert before == after != []


def test_a_sandbox_from_a_notebook_goes_on_where_it_ends(tmp_path):
    given = notebook_with(code("x = 1", "parameters"), code("y = x + 1"), code("1 / 0"), code("z = 1"))

    with Sandbox.from_notebook(given, parameters={"x": 20}) as sandbox:
        assert sandbox.run_code("y").text == "21"
        cells = sandbox.get_record().cells
        assert [cell.code for cell in cells] == ["x = 1", "# Parameters\nx = 20", "y = x + 1", "1 / 0", "y"]
        assert cells[3].execution.error.name == "ZeroDivisionError"
        again = sandbox.to_notebook(tmp_path / "again.ipynb")

    assert json.loads(again)["cells"][2]["source"] == "y = x + 1"
    assert [cell["outputs"] for cell in given["cells"]] == [[], [], [], []], "what was given stays as it was"

    with Sandbox.from_notebook(tmp_path / "again.ipynb") as sandbox:
        assert sandbox.run_code("y").text == "21"


def test_steps_are_reported_and_a_failing_listener_ends_it():
    async def scene() -> None:
        steps: list[NotebookStep] = []

        async def listen(step: NotebookStep) -> None:
            steps.append(step)

        async def break_off(step: NotebookStep) -> None:
            raise KeyError(step.number)

        async with AsyncSandbox() as sandbox:
            done = await run_notebook(sandbox, notebook_with(code("1"), code("2")), on_step=listen)
            assert (done.executed, done.total, done.failed) == (2, 2, ())
            assert [(step.number, step.execution is None) for step in steps] == [
                (1, True),
                (1, False),
                (2, True),
                (2, False),
            ]

            with pytest.raises(KeyError):
                await run_notebook(sandbox, notebook_with(code("1")), on_step=break_off)

            how = NotebookOptions(parameters={"a": [1, None]})
            done = await run_notebook(sandbox, notebook_with(code("a")), how)
            assert done.notebook["cells"][1]["outputs"][0]["data"]["text/plain"] == "[1, None]"

    asyncio.run(scene())


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"nbformat": 3, "worksheets": []},
        {"nbformat": 4},
        {"nbformat": 4, "cells": [1]},
        {"nbformat": 4, "cells": [{"cell_type": "code"}]},
        {"nbformat": 4, "cells": [{"cell_type": "code", "source": [1]}]},
        {"nbformat": 4, "cells": [], "metadata": {"kernelspec": {"language": "julia"}}},
    ],
)
def test_what_is_no_notebook_of_python_is_refused(broken):
    with pytest.raises(InvalidArgumentError, match="notebook"):
        read_notebook(broken)


def test_deeply_nested_json_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError):
        read_notebook(write(tmp_path / "deep.ipynb", "[" * 100_000))


@pytest.mark.parametrize(
    "parameters",
    [
        {"a b": 1},
        {"import": 1},
        {"x; import os": 1},
        {"": 1},
        {"x": object()},
        {"x": {1: 2}},
        {"x": [set()]},
        {"x": b"y"},
    ],
)
def test_parameters_that_cannot_be_set_are_refused(parameters):
    with pytest.raises(InvalidArgumentError):
        set_parameters(notebook_with(), parameters)


def test_parameters_are_literals_and_replace_those_of_before():
    notebook = notebook_with(code("first"), code("x = 0", "parameters"), code("x"))
    values = {"a": "'\n\u2028", "b": float("nan"), "c": {"k": (1, True)}, "d": -0.5, "e": float("-inf")}
    set_parameters(notebook, values)
    assert [cell["metadata"].get("tags") for cell in notebook["cells"]][1:3] == [
        ["parameters"],
        ["injected-parameters"],
    ]
    source = notebook["cells"][2]["source"]
    assert source.splitlines() == [
        "# Parameters",
        'a = "\'\\n\\u2028"',
        "b = float('nan')",
        "c = {'k': [1, True]}",
        "d = -0.5",
        "e = float('-inf')",
    ]
    set_parameters(notebook, {"a": 2})
    assert len(notebook["cells"]) == 4
    assert notebook["cells"][2]["source"] == "# Parameters\na = 2"
    nbformat.validate(nbformat.from_dict(notebook))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("True", True),
        ("None", None),
        ("x", "x"),
        ("1e3", 1000.0),
        ("true", "true"),
        ("", ""),
    ],
)
def test_values_of_the_command_line(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


def test_a_cell_that_fails_is_undone(tmp_path):
    given = notebook_with(code("x = 1"), code("x = 2\nopen('/mnt/data/x', 'w').write('x')\n1 / 0"), code("x"))
    path = write(tmp_path / "in.ipynb", given)
    done = fumehood(path, "-o", str(tmp_path / "out.ipynb"), "--transactional")
    assert done.returncode == 1, done.stderr
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert cells[1].outputs[0].ename == "ZeroDivisionError"
    assert cells[2].outputs[0].data["text/plain"] == "1"
