"""Every example runs, and every snippet of the README, the tutorials and the guides, and prints what the page shows.

Each is a program that would start an engine. What shows nothing of the engine finds a server here, by the variables
that a user would set: the same calls, without three seconds for each start. What starts an engine preloads nothing:
code imports what it needs, which is the same but for the time. EVERY_ENGINE=1 has each start its own, as a user's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_homes import make_home, shared_interpreter
from tests.image_layouts import Layout, busybox_layer
from tests.image_registry import Registry, running_registry
from tests.integration.snippets import snippets

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# The page of the agent frameworks runs where they are installed: test_frameworks.py. That of agents talks to a model:
# tests/llm/test_agent_guide.py, and that of HTTP to a server: tests/server/test_curl_examples.py.
ELSEWHERE = {"agents", "frameworks", "http-api"}
GUIDES = sorted(page for page in (ROOT / "docs" / "guides").glob("*.md") if page.stem not in ELSEWHERE)
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *TUTORIALS, *GUIDES]

PROGRAM = str(Path(__file__).with_name("snippets.py"))

# What an example prints when it did what it shows.
EXPECTED = {
    "async_many": ["sum      45", "broken   NameError", "numpy    45"],
    "commands": ["Linux", "exit code 1", "sorted: ['4', '30', '200']"],
    "contexts": ["default: ('first', 'second')", "second:  ('second', '/home/user/work')"],
    "demo": ["41.66666", "801.954", "scatter chart", "KeyError", "isolation level"],
    "files": ["/mnt/data/mass.csv", "Gentoo,5076.0"],
    "limits": ["time_limit after 1.", "state: 'still here'", "4001 bytes left out"],
    "repair_tasks": ["words    not resolved", "3 of 4 resolved, on 1 machine(s)"],
    "over_http": [
        "printed:   42",
        "not there: PathNotFoundError",
        "page:      <!DOCTYPE",
        "ended:     SandboxClosedError",
    ],
    "stateless": ["printed:  42", "failed:   ZeroDivisionError"],
    "streaming": ["callback: 'step 0", "StdoutEvent at ", "result: 20", "finished"],
}


def _run(arguments: list[str], folder: Path, envs: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONWARNINGS": "error"} | SMALL | (envs or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


# What speaks to a server is told where one is, as its reader has to tell it.
AT_A_SERVER = {"README", "from-e2b", "from-jupyter", "from-replit", "llm", "over_http"}
# What does the same wherever its sandboxes are.
ANYWHERE = {
    "1-five-minutes",
    "3-charts",
    "5-going-back",
    "async_many",
    "audit",
    "charts-and-results",
    "commands",
    "contexts",
    "files",
    "files-and-commands",
    "from-llm-sandbox",
    "from-modal",
    "host-tools",
    "limits",
    "limits-and-usage",
    "pause",
    "saving",
    "stateless",
    "streaming",
    "time-travel",
    "notebooks",
}
NEEDING = {"over_http", "7-a-server-for-my-team"}
FOUND = NEEDING if os.environ.get("EVERY_ENGINE") else NEEDING | ANYWHERE
SMALL = {} if os.environ.get("EVERY_ENGINE") else {"FUMEHOOD_PRELOAD": ""}


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry of images with a small system, under the name that it has at Docker's."""
    folder = tmp_path_factory.mktemp("registry")
    layout = Layout(folder / "layout")
    layout.add([busybox_layer()], config={"Env": ["PATH=/bin"]})

    with running_registry(folder) as running:
        running.push(layout, "busybox")
        yield running


def _addresses(name: str, request: pytest.FixtureRequest) -> dict[str, str]:
    if name == "images":
        return {"REGISTRY": request.getfixturevalue("registry").host}

    if name not in AT_A_SERVER | FOUND:
        return {}

    server = request.getfixturevalue("server")
    return {
        "SERVER_URL": server.url,
        "SERVER_TOKEN": server.token,
        **({"FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token} if name in FOUND else {}),
        "E2B_API_URL": server.url,
        "E2B_SANDBOX_URL": server.url,
        "E2B_VOLUME_API_URL": server.url,
        "E2B_API_KEY": server.token,
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """An example ends well and prints what it is there to show."""
    shown = _run([str(example)], tmp_path, _addresses(example.stem, request))

    for text in EXPECTED[example.stem]:
        assert text in shown


def test_the_example_over_http_says_what_it_needs(tmp_path: Path) -> None:
    """Without a server's address: a sentence, and no traceback."""
    envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    example = ROOT / "examples" / "over_http.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, env=envs, capture_output=True, text=True)
    assert (done.returncode, "set FUMEHOOD_URL" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def test_programs_of_a_model_are_judged(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The figures of pass@k are those of the samples; each way to fail has its word."""
    folder = ROOT / "examples" / "pass_at_k"
    problems = [json.loads(line) for line in (folder / "problems.jsonl").read_text().splitlines()]
    assert len({problem["task_id"] for problem in problems}) == 164
    right = {problem["task_id"]: problem["canonical_solution"] for problem in problems}
    first, second = [problem["task_id"] for problem in problems[:2]]
    samples = [
        (first, right[first]),
        (first, "    return 0\n"),
        (second, "    return missing\n"),
        (second, ""),
    ]
    lines = [json.dumps({"task_id": name, "completion": completion}) for name, completion in samples]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines))
    words = [str(folder / "pass_at_k.py"), "--samples", "samples.jsonl", "--limit", "2"]
    shown = _run(words, tmp_path, _addresses("stateless", request))
    counted = dict(reversed(line.split()) for line in shown.splitlines()[1:4])
    assert shown.startswith("2 problems, 4 programs\n")
    assert counted == {"passed": "1", "AssertionError": "2", "NameError": "1"}
    assert shown.splitlines()[-2:] == ["pass@1   25.0%", "pass@2   50.0%"]


def test_each_problem_has_an_answer_that_passes() -> None:
    """And a test that an answer of nothing fails."""
    check = """
import json, sys
for problem in map(json.loads, open(sys.argv[1])):
    for body, is_right in ((problem["canonical_solution"], True), ("    return NotImplemented\\n", False)):
        names = {}
        exec(problem["prompt"] + body + problem["test"], names)
        try:
            names["check"](names[problem["entry_point"]])
            assert is_right, problem["task_id"]
        except AssertionError:
            assert not is_right, problem["task_id"]
"""
    path = ROOT / "examples" / "pass_at_k" / "problems.jsonl"
    subprocess.run([sys.executable, "-c", check, path], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_snippets_of_a_page(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They run in order, in a folder that has the data they name, and print what the page shows."""
    if not any(not snippet.reason for snippet in snippets(page.read_text(encoding="utf-8"))):
        return

    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    shutil.copy(ROOT / "examples" / "data" / "penguins.csv", tmp_path)

    if page.stem == "images":
        make_home(tmp_path / "home", shared_interpreter(tmp_path_factory))

    # Its own places, and no process that stays ready for the next run of a reader.
    own = {
        "FUMEHOOD_HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "FUMEHOOD_DAEMON": "0",
    }
    _run([PROGRAM, str(page)], tmp_path, own | _addresses(page.stem, request))


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("```python\nprint(40 + 2)  # 42\n```\n", ""),
        ("```python\nprint(40 + 2)  # 42: the answer\n```\n", ""),
        ("```python\nprint('a', 1)\n```\n```text\na ...\n```\n", ""),
        ("```sh\necho $((40 + 2))\n```\n\n```text\n42\n```\n", ""),
        ("<!-- not run: needs a reason -->\n```python\n1 / 0\n```\n", ""),
        ("```python\nprint(40 + 2)  # 43\n```\n", "prints '42', and the page shows '43'"),
        ("```python\nprint(40 + 2)\n```\n```text\n43\n```\n", "and the page shows"),
        ("```sh\necho $((40 + 2))\n```\n```text\n43\n```\n", "and the page shows"),
        ("```sh\nfalse\necho\n```\n", "ends with 1"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
    ],
)
def test_a_difference_from_the_page_is_found(page: str, found: str, tmp_path: Path) -> None:
    """The runner of snippets itself: a wrong output, or a block that fails, and no other."""
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, PROGRAM, "page.md"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == bool(found)
    assert found in done.stdout + done.stderr
