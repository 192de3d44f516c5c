"""The command line against real sandboxes: what comes out, where it goes, and with which exit code."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading

import pytest
from tests import forked

# What the command line makes of an outcome is the same wherever the sandbox is. These find a server that runs, instead
# of starting an engine for each; EVERY_ENGINE=1 has each start its own.
ANYWHERE = (
    "test_a_program_has_its_arguments_and_its_file",
    "test_code_and_modules_run",
    "test_tracebacks_name_the_file",
    "test_a_shell_script",
    "test_a_notebook_runs_cell_by_cell",
    "test_the_exit_code_is_that_of_the_code",
    "test_files_and_figures_come_back",
    "test_a_second_run_replaces_what_the_first_has_written_and_nothing_else",
    "test_a_record_of_outputs_that_came_with_the_folder_counts_for_nothing",
    "test_figures_are_saved_without_an_output_directory",
    "test_escapes_are_made_visible_unless_raw",
    "test_json_is_one_object",
    "test_environment_and_input",
    "test_what_is_no_text",
    "test_exit_leaves_the_prompt",
    "test_the_prompt_saves_and_names_figures",
    "test_the_prompt_goes_back_and_forks",
)


COMMAND = (sys.executable, "-m", "fumehood")
EVERY_ENGINE = bool(os.environ.get("EVERY_ENGINE"))


@pytest.fixture(autouse=True)
def place(request, monkeypatch):
    if EVERY_ENGINE:
        return

    # To import them takes longer than the rest of a start, and sandboxes can do it themselves.
    monkeypatch.setenv("FUMEHOOD_PRELOAD", "")

    if request.node.name.startswith(ANYWHERE):
        server = request.getfixturevalue("server")
        monkeypatch.setenv("FUMEHOOD_URL", server.url)
        monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)


def fumehood(*arguments: str, cwd, stdin: str = "", env=None) -> subprocess.CompletedProcess[str]:
    # What --output remembers is the test's own.
    envs = {**os.environ, "XDG_STATE_HOME": f"{cwd}/.state"} if env is None else env

    if not EVERY_ENGINE:
        return forked.run(arguments, environ=envs, folder=str(cwd), stdin=stdin)

    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=envs,
    )


def test_a_file_runs_and_its_streams_stay_apart(tmp_path):
    """Standard output and standard error go where they belong, and the exit code is 0."""
    (tmp_path / "a.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    done = fumehood("run", "a.py", cwd=tmp_path)
    # On a slow machine the start takes longer than a second, and that is said here too.
    told = [line for line in done.stderr.splitlines() if not line.startswith("fumehood: starting a sandbox")]
    assert (done.stdout, told, done.returncode) == ("out\n", ["err"], 0)


def test_standard_input_runs(tmp_path):
    """`-` reads the code from a pipe."""
    done = fumehood("run", "-", cwd=tmp_path, stdin="print(6 * 7)")
    assert (done.stdout, done.returncode) == ("42\n", 0)


def test_a_module_that_is_not_there_is_one_line(tmp_path):
    """As `python -m` prints it, and the way out; no traceback of the line that looks for it."""
    done = fumehood("run", "-m", "nosuch", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "fumehood: No module named nosuch\nfumehood: a file of yours comes in by `--file nosuch.py` (a folder by "
        "`--file nosuch`)" in done.stderr
    )
    assert "runpy" not in done.stderr
    done = fumehood("run", "-m", "json.nosuch", cwd=tmp_path)
    assert done.stderr.endswith("fumehood: No module named json.nosuch\n")


def test_a_module_of_a_folder_that_is_uploaded(tmp_path):
    """Its arguments, its traceback without what has started it, and its code in the record as IPython reads it."""
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    (tmp_path / "pkg" / "__main__.py").write_text(
        "from pkg.inner.bad import f\nimport sys\nprint(sys.argv[1:])\nf()\n"
    )
    (tmp_path / "pkg" / "inner" / "bad.py").write_text("def f():\n    import nosuch\n")
    done = fumehood("run", "--file", "pkg", "-m", "pkg", "a b", "-c", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("['a b', '-c']\n", 1)
    traceback = done.stderr[done.stderr.index("-----\n") :]
    assert traceback.splitlines()[2].startswith("File /home/user/pkg/__main__.py:4")
    assert "File /home/user/pkg/inner/bad.py:2, in f\n" in traceback
    assert "runpy" not in traceback
    assert "__import__" not in traceback

    done = fumehood("run", "--json", "-m", "pkg.bad", cwd=tmp_path)
    error = json.loads(done.stdout)["execution"]["error"]
    assert error["value"].endswith("(ModuleNotFoundError: No module named 'pkg')")
    assert "Traceback" not in error["traceback"]


def test_values_of_expressions_are_printed_as_python_prints_them(tmp_path):
    """Of a program none, by whichever way it comes; of a notebook's cell the last one, as in a notebook."""
    (tmp_path / "a.py").write_text("print(1)\n'a value'")
    cell = {
        "cell_type": "code",
        "source": "'a value'",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    (tmp_path / "a.ipynb").write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})
    )
    assert fumehood("run", "a.py", cwd=tmp_path).stdout == "1\n"
    assert fumehood("run", "-c", "print(2); 'a value'", cwd=tmp_path).stdout == "2\n"
    assert fumehood("run", "-", cwd=tmp_path, stdin="print(3)\n'a value'").stdout == "3\n"
    assert fumehood("run", "a.ipynb", cwd=tmp_path).stdout == "'a value'\n"


def test_bash_runs_by_the_files_name(tmp_path):
    """A file that ends in .sh is a shell's."""
    (tmp_path / "a.sh").write_text("echo $((6 * 7))")
    assert fumehood("run", "a.sh", cwd=tmp_path).stdout == "42\n"


def test_a_program_has_its_arguments_and_its_file(tmp_path):
    """Options end with the first word that is none: what follows belongs to the program, as it stands."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "args.py").write_text(
        "import sys\nprint(sys.argv[1:], sys.argv[0], __file__, __name__)\nprint(open(__file__).readline())"
    )
    for words, given in (
        (["in/args.py", "--timeout", "20", "a", "--flag", "-"], ["a", "--flag", "-"]),
        (["--timeout", "20", "in/args.py", "--", "--timeout"], ["--timeout"]),
        (["--", "in/args.py", "--", "--json"], ["--", "--json"]),
    ):
        done = fumehood("run", *words, cwd=tmp_path)
        assert done.stdout == f"{given} in/args.py /home/user/args.py __main__\nimport sys\n\n", done.stderr


def test_code_and_modules_run(tmp_path):
    """As with python: `-c` and `-m`, with arguments, and behind a module all words are the module's."""
    code = "import sys; print(sys.argv); 1/0"
    done = fumehood("run", "-c", code, "--timeout", "20", "a", "-b", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("['-c', 'a', '-b']\n", 1)
    assert "File <string>, line 1" in done.stderr

    done = fumehood("run", "-m", "timeit", "-n", "1", "pass", cwd=tmp_path)
    assert (done.stdout[:6], done.returncode) == ("1 loop", 0), done.stderr

    done = fumehood("run", "-m", "no module", cwd=tmp_path)
    assert (done.returncode, "-m='no module' is refused" in done.stderr) == (64, True)


def test_tracebacks_name_the_file(tmp_path):
    """By the name that was given, wherever the error is raised."""
    (tmp_path / "bad.py").write_text("x = 1\n\ndef f():\n    return 1 / 0\n\nf()\n")
    done = fumehood("run", "bad.py", cwd=tmp_path)
    assert "File bad.py, line 6\n" in done.stderr
    assert "File bad.py, line 4, in f\n" in done.stderr
    assert "----> 4     return 1 / 0" in done.stderr
    assert "Cell In" not in done.stderr

    (tmp_path / "bad.py").write_text("x = 1\nx = = 2\n")
    assert "File bad.py, line 2\n" in fumehood("run", "bad.py", cwd=tmp_path).stderr
    assert "File <stdin>, line 1" in fumehood("run", "-", cwd=tmp_path, stdin="1/0").stderr


def test_a_shell_script_has_its_arguments(tmp_path):
    """As its positional parameters, whatever is in them."""
    (tmp_path / "a.sh").write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    assert fumehood("run", "a.sh", "x y", "$z", "-q", cwd=tmp_path).stdout == "x y|$z|-q|"


def test_a_notebook_runs_cell_by_cell(tmp_path):
    """In one context, up to the first cell that fails and may not; nothing is written."""

    def cell(source: str, *tags: str) -> dict[str, object]:
        return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": []}

    cells = [
        {"cell_type": "markdown", "source": "# No code", "metadata": {}},
        cell("import sys\nx = sys.argv[1]"),
        cell("1 / 0", "raises-exception"),
        cell("x * 2"),
        cell("raise SystemExit(5)"),
        cell("print('not reached')"),
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook))
    done = fumehood("run", "a.ipynb", "ab", cwd=tmp_path)

    assert (done.stdout, done.returncode) == ("'abab'\n", 5)
    # Cells are counted from 1, as in Jupyter; the line that sets the arguments does not count.
    assert "Cell In[2], line 1\n" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert sorted(os.listdir(tmp_path)) == [".state", "a.ipynb"] or os.listdir(tmp_path) == ["a.ipynb"]

    (tmp_path / "b.ipynb").write_text("no notebook")
    done = fumehood("run", "b.ipynb", cwd=tmp_path)
    assert (done.returncode, "FILE='b.ipynb' is refused" in done.stderr) == (64, True)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("1 / 0", 1),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('bye')", 1),
        ("import os; os._exit(3)", 3),
        ("import os; os._exit(0)", 0),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_the_exit_code_is_that_of_the_code(tmp_path, code, exit_code):
    """Callers can tell how the code ended."""
    assert fumehood("run", "-", cwd=tmp_path, stdin=code).returncode == exit_code


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [
        ("echo hi\nexit 0\n", 0),
        ("echo hi\nexit 4\n", 4),
        ("set -e\necho hi\n(exit 3)\necho not reached\n", 3),
        ("set -euo pipefail\necho hi\nfalse | cat\necho not reached\n", 1),
        ("echo hi\n(exit 5)\n", 5),
    ],
)
def test_a_shell_script_ends_as_in_a_shell(tmp_path, script, exit_code):
    """With its own exit code, its own output, and no report of a crash."""
    (tmp_path / "a.sh").write_text(script)
    done = fumehood("run", "a.sh", cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if not line.startswith("fumehood: starting a sandbox")]
    assert (done.stdout, told, done.returncode) == ("hi\n", [], exit_code)


def test_a_program_that_ends_its_process_is_reported_of_its_state(tmp_path):
    """The exit code is the program's, and what it lost is said beside it."""
    done = fumehood("run", "-", cwd=tmp_path, stdin="import os; os._exit(5)")
    assert done.returncode == 5
    assert "the context died (exit code 5), the state is lost" in done.stderr
    done = fumehood("run", "-", cwd=tmp_path, stdin="import os; os._exit(0)")
    assert (done.returncode, "context" in done.stderr) == (0, False)


def test_the_time_limit_has_the_code_of_timeout(tmp_path):
    """As timeout(1) does."""
    done = fumehood("run", "-", "--timeout", "0.5", cwd=tmp_path, stdin="while True: pass")
    assert done.returncode == 124
    assert "TimeLimitExceeded" in done.stderr


def test_files_and_figures_come_back(tmp_path):
    """Artifacts and new files of the home directory are saved, uploads and hidden files are not."""
    (tmp_path / "in.csv").write_text("a\n1\n")
    (tmp_path / "a.py").write_text(
        "import matplotlib.pyplot as plt\nopen('/mnt/data/r.txt', 'w').write(open('in.csv').read())\n"
        "open('new.txt', 'w').write('n')\nopen('.hidden', 'w').write('h')\nplt.plot([1, 2]);"
    )
    done = fumehood("run", "a.py", "--file", "in.csv", "--output", "out", cwd=tmp_path)

    assert done.returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["a-1.png", "new.txt", "r.txt"]
    assert (tmp_path / "out" / "r.txt").read_text() == "a\n1\n"
    assert (tmp_path / "out" / "a-1.png").read_bytes().startswith(b"\x89PNG")
    assert "new.txt" in done.stderr


def test_a_second_run_replaces_what_the_first_has_written_and_nothing_else(tmp_path):
    """A file that the user made or has changed since stays; then it is said, and the exit code is another."""
    envs = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "a.py").write_text(
        "import os, sys\nfor name in ('kept', 'changed', *sys.stdin.read().split()):\n"
        "    open(f'/mnt/data/{name}.txt', 'w').write(os.environ['TURN'])\n"
        "display({'image/png': b'\\x89PNG' + os.environ['TURN'].encode()}, raw=True)\n"
    )

    def run(turn: str, *words: str, names: str = "") -> subprocess.CompletedProcess[str]:
        code = (tmp_path / "a.py").read_text().replace("sys.stdin.read()", repr(names))
        given = ("--output", "out", "--env", f"TURN={turn}", *words)
        return fumehood("run", "-", *given, cwd=tmp_path, stdin=code, env=envs)

    def content() -> dict[str, str]:
        return {path.stem: path.read_text() for path in (tmp_path / "out").glob("*.txt")}

    def figures() -> dict[str, bytes]:
        return {path.name: path.read_bytes()[4:] for path in (tmp_path / "out").glob("*.png")}

    assert run("1").returncode == 0
    assert figures() == {"figure-1.png": b"1"}
    assert run("2").returncode == 0
    assert figures() == {"figure-1.png": b"2"}
    (tmp_path / "out" / "figure-1.png").write_bytes(b"mine")
    assert content() == {"kept": "2", "changed": "2", "mine": "mine"}

    (tmp_path / "out" / "changed.txt").write_text("edited")
    third = run("3", names="mine")
    assert third.returncode == 73
    assert content() == {"kept": "3", "changed": "edited", "mine": "mine"}
    assert "changed.txt was left out: out/changed.txt is already there" in third.stderr
    assert "mine.txt was left out" in third.stderr
    assert figures() == {"figure-1.png": b"", "figure-2.png": b"3"}

    assert run("4", "--overwrite", names="mine").returncode == 0
    assert content() == {"kept": "4", "changed": "4", "mine": "4"}


def test_a_name_of_a_file_is_one_line(tmp_path) -> None:
    """A guest cannot begin a note of ours."""
    code = "open('/mnt/data/a\\nfumehood: well done', 'w').write('1')"
    done = fumehood("run", "-c", code, "--output", "out", cwd=tmp_path)
    assert "fumehood: /mnt/data/a\\nfumehood: well done -> out/" in done.stderr
    assert "\nfumehood: well" not in done.stderr


def test_a_record_of_outputs_that_came_with_the_folder_counts_for_nothing(tmp_path):
    """Only what runs of this user have written may be replaced: the record does not lie beside the files."""
    done = fumehood(
        "run",
        "-",
        "--output",
        "out",
        cwd=tmp_path,
        stdin="open('/mnt/data/a', 'w').write('1')",
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert done.returncode == 0
    assert os.listdir(tmp_path / "out") == ["a"]
    (record,) = (tmp_path / "state" / "fumehood" / "outputs").iterdir()
    # A server of the same user keeps its token there, and refuses a folder that others can enter.
    assert (tmp_path / "state" / "fumehood").stat().st_mode & 0o777 == 0o700
    assert record.stat().st_mode & 0o077 == 0
    again = fumehood(
        "run",
        "-",
        "--output",
        "out",
        cwd=tmp_path,
        stdin="open('/mnt/data/a', 'w').write('2')",
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "another")},
    )
    assert (again.returncode, (tmp_path / "out" / "a").read_text()) == (73, "1")


def test_figures_are_saved_without_an_output_directory(tmp_path):
    """A plot is never lost."""
    done = fumehood("run", "-", cwd=tmp_path, stdin="import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert os.listdir(tmp_path) == ["figure-1.png"]
    assert "figure-1.png" in done.stderr


def test_escapes_are_made_visible_unless_raw(tmp_path):
    """A guest's escapes reach the terminal only with --raw."""
    code = "print('\\x1b[2Jgone')"
    assert fumehood("run", "-", cwd=tmp_path, stdin=code).stdout == "\\x1b[2Jgone\n"
    assert fumehood("run", "-", "--raw", cwd=tmp_path, stdin=code).stdout == "\x1b[2Jgone\n"


def test_json_is_one_object(tmp_path):
    """A program reads the whole execution."""
    done = fumehood("run", "-", "--json", cwd=tmp_path, stdin="print('\\x1b')\n1 / 0")
    execution = json.loads(done.stdout)["execution"]

    assert execution["logs"]["stdout"] == ["\x1b\n"]
    assert execution["error"]["name"] == "ZeroDivisionError"
    assert execution["isolation"]
    assert done.returncode == 1


def test_environment_and_input(tmp_path):
    """Variables are passed, and `input()` reads the terminal's lines."""
    (tmp_path / "a.py").write_text("import os\nprint(os.environ['A'], input('name? '))")
    done = fumehood("run", "a.py", "--env", "A=1", cwd=tmp_path, stdin="Ada\n")
    assert done.stdout == "name? 1 Ada\n"


def test_standard_input_of_a_program_is_that_of_the_command(tmp_path):
    """Of any bytes, and more than is sent at once; of a program that does not read it nothing is taken."""
    content = os.urandom(300_000)
    (tmp_path / "data").write_bytes(content)
    (tmp_path / "a.py").write_text(
        "import hashlib, sys\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    )

    with open(tmp_path / "data", "rb") as data:
        done = subprocess.run(
            [*COMMAND, "run", "a.py"], cwd=tmp_path, stdin=data, capture_output=True, timeout=90
        )

    assert done.stdout.decode() == f"{hashlib.sha256(content).hexdigest()}\n"

    with open(tmp_path / "data", "rb") as data:
        subprocess.run([*COMMAND, "run", "-c", "1"], stdin=data, capture_output=True, timeout=90, check=True)
        assert os.lseek(data.fileno(), 0, os.SEEK_CUR) == 0


def test_standard_input_comes_while_the_program_runs(tmp_path):
    """Each line is there when it was written, as in a pipe between two programs."""
    code = "import sys\nfor line in sys.stdin:\n    print(line.strip() * 2, flush=True)"
    run = subprocess.Popen(
        [*COMMAND, "run", "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdin is not None
    assert run.stdout is not None

    for word in ("a", "bc"):
        run.stdin.write(f"{word}\n")
        run.stdin.flush()
        assert run.stdout.readline() == f"{word * 2}\n"

    assert run.communicate(timeout=30) == ("", None)
    assert run.returncode == 0


def test_standard_input_reaches_a_run_with_json(tmp_path):
    """What it prints besides goes on to be one object."""
    done = fumehood("run", "--json", "-c", "print(input())", cwd=tmp_path, stdin="Ada\n")
    assert json.loads(done.stdout)["execution"]["logs"]["entries"][0]["text"] == "Ada\n"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["run", "missing.py"], 74, "missing.py"),
        (["run", "-", "--memory", "1K"], 64, "--memory=1024 is refused"),
        (["run", "-", "--memory", "5"], 64, "--memory takes a size such as 512M or 2G, of 64M or more"),
        (["run", "-", "--timeout", "-1"], 64, "--timeout takes a number of seconds"),
        (["run", "-", "--file", "missing.csv"], 74, "'missing.csv': No such file or directory"),
        (["run", "-", "--output", "file"], 64, "--output takes a folder that can be made here (File exists)"),
        (["repl", "--output", "/proc/x"], 64, "--output='/proc/x' is refused"),
        (
            ["notebook", "run", "a.ipynb", "-o", "nowhere/b.ipynb"],
            64,
            "--output='nowhere/b.ipynb' is refused",
        ),
        (["save", "ID", "x.saved"], 64, "url takes the address of a server"),
        (["audit", "export", "ID"], 64, "url takes the address of a server"),
        (["run", "-", "--env", "A"], 64, "NAME=VALUE"),
        (["run", "-", "--template", "none"], 70, "template"),
        (["run", "-", "--memory", "lots"], 64, "512M"),
        (["run", "-", "--timeout", "soon"], 64, "'soon' is no number of seconds"),
        (["run", ""], 64, "FILE='' is refused"),
        (["run", "-", "--file", ""], 64, "--file='' is refused"),
        (["run", "-", "--output", ""], 64, "--output='' is refused"),
        (["run", "-", "--env", "=value"], 64, "--env='=value' is refused"),
        (["run", "-", "--network", "http://x"], 64, "--network='http://x' is refused"),
        (["run", "-", "--template", ""], 64, "--template='' is refused"),
        (["notebook", "run", "file", "-o", "b.ipynb"], 64, "IN.ipynb='file' is refused"),
        (
            ["notebook", "run", "a.ipynb", "-o", "b.ipynb", "-p", "a b", "1"],
            64,
            "--parameter='a b' is refused",
        ),
        (["scan", "file", "--allow", "all"], 64, "--allow='all' is refused"),
        (["template", "build", "two words"], 64, "NAME='two words' is refused"),
        (["template", "build", "x", "--preload", "a b"], 64, "--preload=('a b',) is refused"),
        (["template", "build", "x", "--files", "nowhere"], 64, "nowhere' is refused"),
        (["template", "build", "x", "polars"], 64, "CONTEXT='polars' is refused"),
        (["audit", "export", "", "--url", "http://127.0.0.1:1"], 64, "SANDBOX='' is refused"),
        (["save", "ID", "ftp://x", "--url", "http://127.0.0.1:1"], 70, "http://127.0.0.1:1 does not answer"),
        (["load", "ftp://x", "--show"], 64, "PLACE='ftp://x' is refused"),
        (["load", "x"], 64, "--url is missing"),
        (["load", "x", "--url", "x"], 64, "--url='x' is refused"),
        (["load", "x", "--url", "http://127.0.0.1:1", "--timeout", "-1"], 64, "--timeout=-1.0 is refused"),
        (["mcp", "--port", "80"], 64, "--port takes a value beside --http alone"),
        (["mcp", "--max-network", "all"], 64, "--max-network='all' is refused"),
        (["mcp", "--print-config", "emacs"], 64, "--print-config='emacs' is refused"),
        (["serve", "--port", "http"], 64, "--port takes a whole number"),
        (["serve", "--own-interpreters", "perhaps"], 64, "--own-interpreters takes true or false"),
        (
            ["serve", "--port", "0", "--state-folder", "file"],
            64,
            "folder that can be made here (File exists)",
        ),
        (["bench", "--only", "cells"], 64, "did you mean 'cell'?"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(tmp_path, arguments, exit_code, said):
    """What was wrong, with the value, and a code of its own; before anything runs whose results would be lost."""
    (tmp_path / "file").write_text("")
    (tmp_path / "a.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    done = fumehood(*arguments, cwd=tmp_path)
    assert done.returncode == exit_code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FUMEHOOD_POOL_SIZE", "few"),
        ("FUMEHOOD_HOST_ID", "mine"),
        ("FUMEHOOD_ISOLATION", "strong"),
        ("FUMEHOOD_OWN_INTERPRETERS", "perhaps"),
        ("FUMEHOOD_URL", "localhost:8765"),
    ],
)
def test_a_variable_of_the_environment_is_reported_by_its_name(tmp_path, variable, value):
    """It may have been set long ago, and by somebody else."""
    done = fumehood("run", "-", cwd=tmp_path, env={**os.environ, variable: value})
    assert done.returncode == 64
    assert f"{variable}={value!r} is refused" in done.stderr


def test_a_port_in_use_is_reported_by_its_option(tmp_path):
    """And what was not given is missing, not refused."""
    envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    envs["XDG_STATE_HOME"] = str(tmp_path)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = fumehood("serve", "--port", port, cwd=tmp_path, env=envs)

    assert done.returncode == 64
    assert f"the server cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "hint: --port takes a port that is free" in done.stderr

    done = fumehood("serve", "--host", "0.0.0.0", cwd=tmp_path, env=envs)
    assert done.returncode == 64
    assert "hint: --token takes a secret of 16 characters or more" in done.stderr
    assert (
        "a server on 0.0.0.0, which others can reach, needs a token of 16 characters or more" in done.stderr
    )


def test_a_flag_that_says_yes_needs_no_word(tmp_path):
    """Alone it means true, and it can be given a value as all settings can."""
    envs = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    for words, kept in ((["--own-interpreters"], "true"), (["--own-interpreters", "false"], "false")):
        done = fumehood("serve", *words, "--print-config", cwd=tmp_path, env=envs)
        assert f"own_interpreters = {kept}\n" in done.stdout
        assert "addresses (flag)" in done.stdout


def test_streams_may_be_closed(tmp_path):
    """As a service starts its programs: nothing to read, nowhere to write, and no traceback."""
    for redirected in ("run - <&-", "run a.py >&- 2>&-"):
        (tmp_path / "a.py").write_text("open('/mnt/data/a', 'w').write('a')\nprint(1)")
        command = f"{sys.executable} -m fumehood {redirected}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_reader_that_leaves_ends_the_run_quietly(tmp_path):
    """As with `head`: no traceback, and the sandbox is gone."""
    code = f"{sys.executable} -m fumehood run a.py | head -n 1"
    (tmp_path / "a.py").write_text("for i in range(100_000): print(i)")
    done = subprocess.run(
        code, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )

    assert done.stdout == "0\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "doctor --help", "run --no-daemon -c 'print(1)'"])
def test_output_without_room_is_a_failure_that_is_told(words):
    """In one line, and never by the interpreter at its end, which only says what it has ignored."""
    command = f"{sys.executable} -m fumehood {words} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr.splitlines()[-1] == "fumehood: standard output: No space left on device"
    assert "ignored" not in done.stderr
    assert done.returncode == 74


def test_ctrl_c_ends_a_run(tmp_path):
    """The code is interrupted, nothing is left, and the shell sees an interrupt."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "run", "-"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write("print('go', flush=True)\nimport time\ntime.sleep(60)")
    process.stdin.close()
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=30) == 130
    assert "Traceback" not in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


def test_the_prompt_keeps_state_and_gathers_lines(tmp_path):
    """What is typed runs when it is complete; errors do not end it."""
    lines = "x = 20\nif x:\n    x += 1\n\nx * 2\n1/0\nx\n!echo shell\n"
    done = fumehood("repl", cwd=tmp_path, stdin=lines)

    assert done.returncode == 0
    shown = done.stdout
    assert [line for line in shown.splitlines() if line] == ["42", "21", "shell"]
    assert "ZeroDivisionError" in done.stderr


# As on a terminal of most people; a POSIX locale lets bytes through that are no text.
STRICT = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}


def test_what_is_no_text_is_refused_without_a_traceback(tmp_path):
    """As a file, and through a pipe."""
    (tmp_path / "large.py").write_bytes(b"#" * (8 << 20) + b"\n")
    (tmp_path / "latin.py").write_bytes(b"print('\xe9')")

    for words, said in (
        (["-"], "FILE='-' is refused"),
        (["latin.py"], "FILE takes text in UTF-8 of at most 8,388,608 bytes"),
        (["large.py"], "FILE='large.py' is refused"),
        (["/dev/zero"], "FILE='/dev/zero' is refused"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fumehood", "run", *words],
            cwd=tmp_path,
            env=STRICT,
            input=b"\xe9\n",
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, said in done.stderr.decode()) == (64, True), done.stderr
        assert b"Traceback" not in done.stderr


def test_input_that_is_no_text_is_an_error_of_the_program(tmp_path):
    """As in plain Python: of input(), and not of reading the bytes."""
    (tmp_path / "ask.py").write_text("import sys\nprint(sys.stdin.buffer.readline())\ninput()")
    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "run", "ask.py"],
        cwd=tmp_path,
        env=STRICT,
        input=b"\xe9\n\xe9\n",
        capture_output=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (1, b"b'\\xe9\\n'\n"), done.stderr
    assert b"UnicodeDecodeError" in done.stderr


def test_what_is_no_text_does_not_end_the_prompt(tmp_path):
    """Nothing has run; variables are what they were."""
    lines = b"x = 20\nprint('\xe9')\nx + 1\n"
    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "repl"],
        cwd=tmp_path,
        env=STRICT,
        input=lines,
        capture_output=True,
        timeout=60,
    )

    assert (done.returncode, b"21" in done.stdout) == (0, True), done.stderr
    assert b"encodable as UTF-8" in done.stderr


def test_exit_leaves_the_prompt(tmp_path):
    """As at Python's own, with the code that it is given."""
    done = fumehood("repl", cwd=tmp_path, stdin="exit(3)\nprint('still here')\n")

    assert done.returncode == 3
    assert "still here" not in done.stdout


def test_the_prompt_saves_and_names_figures(tmp_path):
    """A picture becomes a file, and its name is said."""
    lines = "import matplotlib.pyplot as plt\nplt.plot([1]);\nplt.plot([2]);\n"
    done = fumehood("repl", "--output", "pictures", cwd=tmp_path, stdin=lines)

    assert sorted(os.listdir(tmp_path / "pictures")) == ["figure-1.png", "figure-2.png"]
    assert "pictures/figure-2.png" in done.stderr


def test_the_prompt_goes_back_and_forks(tmp_path):
    """Checkpoints and forks are words of the prompt; the end of a fork leads back to where it was made."""
    lines = (
        "x = 1\n%checkpoint one\nx = 2\n%fork\nx += 10\nx\nexit()\nx\n%rollback one\nx\n%rollback none\n"
        "%checkpoint a b\n%fork 3\nx + 1\n"
    )
    done = fumehood("repl", cwd=tmp_path, stdin=lines)

    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert shown.split() == ["12", "2", "1", "2"]
    assert "kept as one: `%rollback one` goes back to it" in done.stderr
    assert "the fork has ended; back in sandbox" in done.stderr
    assert "%checkpoint takes a name and nothing else" in done.stderr
    assert "%fork takes no words" in done.stderr
    assert "none" in done.stderr.partition("back at one")[2]


def test_at_a_terminal_tab_completes_and_errors_have_colours(tmp_path):
    """Names come from the sandbox, lines typed are remembered, and NO_COLOR is heeded."""
    for no_color in ("", "1"):
        envs = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "NO_COLOR": no_color, "TERM": "xterm"}
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "fumehood", "repl"],
            cwd=tmp_path,
            env=envs,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        watchdog = threading.Timer(90, process.kill)
        watchdog.start()
        terminal = _Terminal(master)
        terminal.expect(b">>> ")
        terminal.type(b"a_rather_long_name = 6 * 7\n")
        terminal.expect(b">>> ")
        terminal.type(b"print(a_rath\t)\n")
        terminal.expect(b"a_rather_long_name)")
        terminal.expect(b"42")
        terminal.expect(b">>> ")
        terminal.type(b"1 / 0\n")
        terminal.expect(b"ZeroDivisionError: " if no_color else b"\x1b[1;31mZeroDivisionError")
        terminal.expect(b">>> ")
        terminal.type(b"\x04")

        assert process.wait() == 0
        watchdog.cancel()
        os.close(master)

    history = tmp_path / "fumehood" / "repl_history"
    assert history.stat().st_mode & 0o077 == 0
    assert "a_rather_long_name = 6 * 7" in history.read_text()


def test_ctrl_c_at_the_prompt_interrupts_what_runs_and_keeps_the_state(tmp_path):
    """On a real terminal the key stops the cell, not the prompt."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "repl"],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    os.close(slave)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    terminal = _Terminal(master)
    terminal.expect(b">>> ")
    terminal.type(b"x = 6; print('run' + 'ning'); import time; time.sleep(60)\n")
    terminal.expect(b"running")
    terminal.type(b"\x03")
    terminal.expect(b"interrupted")
    terminal.expect(b">>> ")
    terminal.type(b"x * 7\n")
    terminal.expect(b"42")
    # Before the prompt the line discipline would take the key itself.
    terminal.expect(b">>> ")
    terminal.type(b"\x04")

    assert process.wait() == 0
    watchdog.cancel()
    os.close(master)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class _Terminal:
    """The other end of a pty: what was read stays until it is expected."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def expect(self, wanted: bytes) -> None:
        while wanted not in self._seen:
            self._seen += os.read(self._master, 4096)

        self._seen = self._seen.partition(wanted)[2]


def test_limits_are_named_with_the_option_that_raises_them(tmp_path):
    """Behind the sentence of the library, which does not know how it was asked."""
    done = fumehood("run", "--memory", "64M", "-c", "b = bytearray(1 << 28)", cwd=tmp_path)
    assert (done.returncode, "`--memory 2G` allows more" in done.stderr) == (137, True), done.stderr
    done = fumehood("run", "--timeout", "0.5", "-c", "while True: pass", cwd=tmp_path)
    assert (done.returncode, "`--timeout 300` allows more" in done.stderr) == (124, True), done.stderr


def test_a_module_that_is_missing_comes_with_the_ways_to_bring_it(tmp_path):
    """A file of the user's own lies beside the program here, and not in the sandbox."""
    (tmp_path / "helper.py").write_text("x = 6")
    (tmp_path / "main.py").write_text("import helper; print(helper.x)")
    done = fumehood("run", "main.py", cwd=tmp_path)
    assert (done.returncode, "`--file helper.py`" in done.stderr) == (1, True), done.stderr
    done = fumehood("run", "main.py", "--file", "helper.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr


def test_the_show_of_going_back_runs(tmp_path):
    """It keeps the best of three, undoes, brings back, and draws the tree of states."""
    done = fumehood("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""

    for words in (
        "loaded\n",
        "├── mean",
        "└── median",
        ", kept\n",
        "a transaction  undone",
        "a crash",
        ", a fork, kept",
        "rollback",
        "adopt",
    ):
        assert words in done.stdout

    kept = next(line for line in done.stdout.splitlines() if line.startswith("keep"))
    assert kept.startswith("keep       median: 20,000 readings")


def test_doctor_tells_every_layer(tmp_path):
    """What is missing and a verdict for people, a list for programs, and an exit code for scripts."""
    done = fumehood("doctor", cwd=tmp_path)
    layers = json.loads(fumehood("doctor", "--json", cwd=tmp_path).stdout)

    assert done.returncode == 0
    assert "Sandboxes can start here (level " in done.stdout
    assert "  there  " not in done.stdout
    names = {layer["name"] for layer in layers}
    assert {"user namespace", "seccomp", "landlock", "cgroup", "first sandbox", "preload"} <= names
    assert all({"name", "state", "need", "why", "how_to_get_it"} <= layer.keys() for layer in layers)
    assert all(layer["why"] and layer["how_to_get_it"] for layer in layers if layer["state"] == "missing")


def test_a_network_is_named(tmp_path):
    """Nothing is reached but what was named; what was not is told in the code's own error."""
    (tmp_path / "job.py").write_text(
        "import urllib.request\n"
        "for name in ('127.0.0.9:9', 'other.invalid'):\n"
        "    try: urllib.request.urlopen(f'http://{name}/')\n"
        "    except OSError as error: print(error.code, error.reason)\n"
        "urllib.request.urlopen('http://other.invalid/')\n"
    )
    done = fumehood("run", "--network", "127.0.0.9:9", "--network", "192.0.2.7:8080", "job.py", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "502 no connection to 127.0.0.9 port 9: Connection refused",
        "403 other.invalid:80 is not allowed by this sandbox's network policy",
    ]
    assert done.stderr.endswith(
        "fumehood: `--network HOST` lets it reach a host and may be repeated; `--network internet` all that is public\n"
    )
    refused = fumehood("run", "--network", "http://x", "job.py", cwd=tmp_path)
    assert refused.returncode != 0
    assert "--network='http://x' is refused" in refused.stderr
