"""What a model pays to read: the characters of the text for each common outcome of a call."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fumehood.llm import CodeInterpreter


def read(interpreter: CodeInterpreter, code: str, *, at_most: int) -> str:
    """Runs code and gives the text for the model, which is bounded."""
    text = interpreter.run(code).text
    assert len(text) <= at_most, f"{len(text)} characters:\n{text}"
    return text


@pytest.fixture(scope="module")
def interpreter() -> Iterator[CodeInterpreter]:
    """One without a network and with a file of the user's, for all of these."""
    with CodeInterpreter(network="none") as made:
        made.upload("penguins.csv", "a,b\n1,2\n")
        yield made


def test_an_error_is_its_line_and_its_message(interpreter: CodeInterpreter) -> None:
    """Neither a ruler nor a heading, and the failing line once."""
    text = read(interpreter, "x = 1\n1/0", at_most=90)
    assert text == "line 2: 1/0\nZeroDivisionError: division by zero"


def test_a_missing_column_comes_with_those_that_there_are(interpreter: CodeInterpreter) -> None:
    """No frame of pandas, compiled or not."""
    text = read(
        interpreter,
        "import pandas as pd\ndf = pd.DataFrame({'name': ['x'], 'mass': [2]})\ndf['c']",
        at_most=250,
    )
    assert text == "line 3: df['c']\nKeyError: 'c'\nThere are: 'name', 'mass'"


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        ("df.groupby('c').sum()", "'name', 'mass'"),
        ("df.sort_values('c')", "'name', 'mass'"),
        ("df[['name', 'c']]", "'name', 'mass'"),
        ("df.set_index('name').loc['c']", "'x'"),
        ("df.drop(columns='c')", "'name', 'mass'"),
    ],
)
def test_other_searches_of_tables_tell_the_keys_too(
    interpreter: CodeInterpreter, code: str, keys: str
) -> None:
    """By the labels that pandas searched."""
    made = "import pandas as pd\ndf = pd.DataFrame({'name': ['x'], 'mass': [2]})\n"
    assert f"\nThere are: {keys}" in read(interpreter, made + code, at_most=250)


def test_a_key_of_a_dict_is_no_column(interpreter: CodeInterpreter) -> None:
    """Keys are listed of tables alone, and within bounds."""
    assert "There are" not in read(interpreter, "import pandas\n{'a': 1}['c']", at_most=250)
    wide = (
        "import pandas as pd\npd.DataFrame([[0] * 500], columns=['c' * 99 + str(i) for i in range(500)])['c']"
    )
    assert ", and 480 more" in read(interpreter, wide, at_most=1_600)


@pytest.mark.parametrize(
    "code",
    [
        "import requests\nrequests.get('https://example.com')",
        "import urllib.request\nurllib.request.urlopen('https://example.com')",
        "import urllib.request\nurllib.request.urlopen('http://example.com')",
        "import requests\nanswer = requests.get('http://example.com')\nanswer.raise_for_status()",
    ],
)
def test_no_network_is_reported_at_once(interpreter: CodeInterpreter, code: str) -> None:
    """Once, and not in each of four nested errors."""
    begun = time.monotonic()
    text = read(interpreter, code, at_most=150)
    assert "This sandbox has no network" in text
    assert time.monotonic() - begun < 5


def test_an_answer_of_the_proxy_is_named_as_such(interpreter: CodeInterpreter) -> None:
    """Over plain HTTP nothing is raised, and a page seems to have been forbidden."""
    text = read(interpreter, "import requests\nrequests.get('http://example.com')", at_most=150)
    assert "<Response [403]>\n[this sandbox has no network: " in text


def test_endless_recursion_is_folded(interpreter: CodeInterpreter) -> None:
    """Equal frames are one line, also where functions call each other in turn."""
    text = read(interpreter, "def f(n):\n    return f(n + 1)\nf(0)", at_most=350)
    assert "line 3: f(0)\nline 2, in f: return f(n + 1) (29+ times)\nRecursionError" in text
    read(
        interpreter,
        "def f(n):\n    return g(n + 1)\ndef g(n):\n    return f(n)\nf(0)",
        at_most=350,
    )


def test_a_missing_module_is_short(interpreter: CodeInterpreter) -> None:
    """With what can be done."""
    text = read(interpreter, "import nosuch", at_most=150)
    assert "No module named 'nosuch'\nHint: Nothing can be installed here" in text


def test_a_missing_file_comes_with_the_one_that_is_meant(interpreter: CodeInterpreter) -> None:
    """By its name, wherever it was looked for."""
    for path in ("penguins.csv", "/data/penguins.csv", "/mnt/data/penguin.csv"):
        text = read(interpreter, f"open('{path}')", at_most=200)
        assert "Hint: Did you mean /mnt/data/penguins.csv?" in text
        assert text.count("Did you mean") == 1
        # The same for a caller of Python.
        error = interpreter.sandbox.run_code(f"open('{path}')").error
        assert error is not None
        assert error.hint == "did you mean /mnt/data/penguins.csv?"

    error = interpreter.sandbox.run_code("import subprocess; subprocess.run(['penguins.cs'])").error
    assert error is not None
    assert error.hint == ""


@pytest.mark.parametrize("code", ["%pip install nosuch", "!pip install nosuch"])
def test_pip_without_a_network_ends_at_once(interpreter: CodeInterpreter, code: str) -> None:
    """One line, and no retries, between which pip waits for eight seconds."""
    begun = time.monotonic()
    interpreter.run("!pip --version")
    # How long pip takes to start beside other tests.
    start_seconds = time.monotonic() - begun
    begun = time.monotonic()
    text = read(interpreter, code, at_most=150)
    assert "this sandbox has no network" in text
    assert time.monotonic() - begun < 5 + 3 * start_seconds


def test_a_flood_of_output_keeps_its_ends(interpreter: CodeInterpreter) -> None:
    """The first and the last lines, and how much is between them."""
    text = read(interpreter, "for i in range(100_000):\n    print(i)", at_most=6_000)
    assert (text[:4], text[-12:]) == ("0\n1\n", "\n99998\n99999")
    assert "characters left out" in text


def test_equal_warnings_are_counted(interpreter: CodeInterpreter) -> None:
    """Once, with the number of the others."""
    code = (
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('always')\n"
        "    for i in range(100):\n        warnings.warn('this is old')"
    )
    assert "[the same 99 more times]" in read(interpreter, code, at_most=300)


@pytest.mark.parametrize("end", ["exit()", "import sys\nsys.exit()", "import sys\nsys.exit(0)"])
def test_the_end_of_a_script_is_no_error(interpreter: CodeInterpreter, end: str) -> None:
    """Its output is all of the answer."""
    result = interpreter.run(f"print(1)\n{end}")
    assert (result.text, result.is_error) == ("1", False)
    assert interpreter.run("import sys\nsys.exit(2)").is_error


def test_beside_a_picture_no_object_of_it_is_named(interpreter: CodeInterpreter) -> None:
    """Neither lines nor axes, nor what a histogram, a pie or a box plot returns; values of another kind stay."""
    result = interpreter.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])")
    assert len(result.images) == 1
    assert result.text.startswith("[image 1: image/png, ")
    for call in ("hist([1, 2, 2])", "hist([[1, 2], [2, 3]])", "pie([1, 2])", "boxplot([1, 2, 3])"):
        assert interpreter.run(f"plt.{call}").text.startswith("[image 1: image/png, "), call

    # What most cells of a chart end with.
    for call in (
        "title('it\\'s (x)')",
        "xlabel('x')",
        "annotate('a', (0, 1e-9))",
        "stem([1, 2])",
        "violinplot([1, 2, 3])",
    ):
        assert interpreter.run(f"plt.plot([1]); plt.{call}").text.startswith("[image 1: image/png, "), call

    for call in ("plt.subplots(2, 2)[1]", "import seaborn\nseaborn.relplot(x=[1, 2], y=[1, 2])"):
        assert interpreter.run(call).text.startswith("[image 1: image/png, "), call

    assert (
        "Text(1)"
        in interpreter.run("plt.plot([1])\ntype('Text', (), {'__repr__': lambda _: 'Text(1)'})()").text
    )
    assert (
        "array([1, 2])" in interpreter.run("import numpy\nplt.plot([1])\n(numpy.array([1, 2]), 'mean')").text
    )
    assert interpreter.run("'<Axes: >'\n").text == "'<Axes: >'"


def test_fences_are_taken_off(interpreter: CodeInterpreter) -> None:
    """Around code that is run directly too."""
    assert interpreter.run("```python\nprint(6 * 7)\n```").text == "42"


@pytest.mark.parametrize("arguments", ["print(6 * 7)", '"print(6 * 7)"', "```python\nprint(6 * 7)\n```"])
def test_code_in_place_of_arguments_is_run(interpreter: CodeInterpreter, arguments: str) -> None:
    """As text, and as a JSON text."""
    call = {"id": "1", "type": "function", "function": {"name": "run_code", "arguments": arguments}}
    answer = interpreter.handle({"role": "assistant", "tool_calls": [call]})[0]
    assert answer["content"] == "42"


def test_the_system_prompt_names_what_is_asked_for(interpreter: CodeInterpreter) -> None:
    """Well-known packages, and none of the libraries below them."""
    prompt = interpreter.system_prompt()
    assert len(prompt) <= 1_100, f"{len(prompt)} characters:\n{prompt}"
    assert "pandas 3." in prompt
    assert "asttokens" not in prompt


def test_a_time_limit_names_its_line() -> None:
    """Where the time ran out."""
    with CodeInterpreter(timeout=0.5) as made:
        text = read(made, "import time\nx = 1\ntime.sleep(60)", at_most=300)
        assert "\ninterrupted in line 3: time.sleep(60)\n" in text


def test_causes_of_ones_own_stay(interpreter: CodeInterpreter) -> None:
    """A chain keeps what happened in the model's code."""
    code = "try:\n    int('x')\nexcept ValueError as e:\n    raise RuntimeError('no number') from e"
    text = read(interpreter, code, at_most=250)
    assert text == (
        "line 2: int('x')\nValueError: invalid literal for int() with base 10: 'x'\nand then:\n"
        "line 4: raise RuntimeError('no number') from e\nRuntimeError: no number"
    )


def test_a_file_of_ones_own_is_no_library(interpreter: CodeInterpreter) -> None:
    """Its frames stay, with their lines."""
    code = "open('own_module.py', 'w').write('def f():\\n    return 1 / 0\\n')\nimport own_module\nown_module.f()"
    text = read(interpreter, code, at_most=300)
    assert "line 3: own_module.f()\n/home/user/own_module.py:2, in f: return 1 / 0\n" in text
