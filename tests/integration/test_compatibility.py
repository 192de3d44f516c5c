"""What people run in a sandbox works there: the scientific stack, processes, files, programs, packages.

Each file of `cells` is a program that checks one corner of it and ends with the word `works`. It is run as
a cell of a live session, whose interpreter is a fork of the zygote, and as a script in a fresh child process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import CommandExitError, Sandbox, WriteEntry

from .wheels import GREETER_SOURCES, make_wheel

CELLS = sorted((Path(__file__).parent / "cells").glob("*.py"))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def _run(sandbox: Sandbox, code: str, **options: object) -> str:
    """Run a cell that must not fail, and return what it printed."""
    execution = sandbox.run_code(code, **options)
    assert execution.error is None, f"{execution.error}\n{execution.logs}"
    return str(execution.logs)


@pytest.mark.parametrize("cell", CELLS, ids=lambda path: path.stem)
def test_cell_of_a_session(sandbox: Sandbox, cell: Path) -> None:
    """The program works as a cell, without a word of complaint."""
    assert _run(sandbox, cell.read_text(encoding="utf-8"), timeout=60) == "works\n"


@pytest.mark.parametrize("cell", CELLS, ids=lambda path: path.stem)
def test_script_of_a_child(sandbox: Sandbox, cell: Path) -> None:
    """The program works as a script of a fresh interpreter, without a word of complaint."""
    sandbox.files.write("program.py", cell.read_bytes())

    try:
        result = sandbox.commands.run("python -X dev -W error program.py", timeout=60)
    except CommandExitError as error:
        pytest.fail(f"{error.stdout}\n{error.stderr}")

    assert (result.stdout, result.stderr) == ("works\n", "")


# -- figures


def test_a_figure_is_shown_without_savefig(sandbox: Sandbox) -> None:
    """A plot becomes a PNG picture, by `plt.show()` or by the end of the cell."""
    for end in ("plt.show()", "None"):
        execution = sandbox.run_code(
            f"import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('größe')\n{end}"
        )
        assert execution.error is None
        pictures = [result.png for result in execution.results if result.png]
        assert len(pictures) == 1


def test_an_image_of_pillow_is_shown(sandbox: Sandbox) -> None:
    """What renders itself as a picture is one."""
    execution = sandbox.run_code("from PIL import Image; Image.new('RGB', (8, 8), 'red')")
    assert execution.results[0].png


def test_a_script_shows_a_figure_in_a_child(sandbox: Sandbox) -> None:
    """A script with `plt.show()` ends well: there is no screen, and it is told so."""
    script = (
        "import matplotlib.pyplot as plt; plt.plot([1]); plt.savefig('/tmp/a.png'); plt.show(); print('end')"
    )
    result = sandbox.commands.run(["python", "-c", script])
    assert result.stdout == "end\n"


# -- asyncio in a session


def test_top_level_await_and_tasks_between_cells(sandbox: Sandbox) -> None:
    """A session has one event loop: servers and tasks of one cell are there in the next."""
    _run(
        sandbox,
        """
import asyncio

async def answer(reader, writer):
    writer.write(b"served")
    writer.close()

server = await asyncio.start_server(answer, "127.0.0.1", 0)
port = server.sockets[0].getsockname()[1]
child = await asyncio.create_subprocess_shell("read word; echo $word", stdin=-1, stdout=-1)
""",
    )
    shown = _run(
        sandbox,
        """
reader, writer = await asyncio.open_connection("127.0.0.1", port)
print(await reader.read(), await child.communicate(b"heard\\n"), await asyncio.to_thread(sum, [1, 2]))
""",
    )
    assert shown == "b'served' (b'heard\\n', None) 3\n"


# -- bash and git


def test_bash_cells(sandbox: Sandbox) -> None:
    """Bash keeps its state, and has loops, pipes, arrays, arithmetic, here documents, jobs and traps."""
    _run(
        sandbox, "count=0; for i in {1..5}; do ((count += i)); done; declare -A map=([a]=1)", language="bash"
    )
    shown = _run(
        sandbox,
        """
echo $count ${map[a]} $(seq 3 | paste -sd+ | sed s/+/-/g)
cat <<EOF | tr a-z A-Z
here
EOF
(sleep 60 & kill $!; wait $!; echo "ended $?")
diff <(echo a) <(echo b) > /dev/null || echo different
while read -r line; do echo "<$line>"; done < <(printf 'x\\ny\\n')
trap 'echo trapped' USR1; kill -USR1 $$
""",
        language="bash",
    )
    assert shown.split("\n")[:-1] == ["15 1 1-2-3", "HERE", "ended 143", "different", "<x>", "<y>", "trapped"]


@pytest.mark.parametrize("how", ["cell", "bang", "command"])
def test_redirection_to_the_devices_of_standard_output(sandbox: Sandbox, how: str) -> None:
    """/dev/stdout, /dev/stderr and /dev/fd/1 can be opened, as scripts do."""
    line = "echo one > /dev/stdout; echo two | tee /dev/fd/1 > /dev/null; echo three > /dev/stderr"

    match how:
        case "cell":
            execution = sandbox.run_code(line, language="bash")
        case "bang":
            execution = sandbox.run_code(f"!{line}")
        case _:
            result = sandbox.commands.run(line)
            assert (result.stdout, result.stderr) == ("one\n", "three\n")
            return

    assert execution.error is None
    assert sorted(str(execution.logs).split()) == ["one", "three"]


def test_git(sandbox: Sandbox) -> None:
    """git makes repositories, commits, branches, merges, clones and logs."""
    shown = sandbox.commands.run(
        """
set -e
git config --global user.email ada@example.com
git config --global user.name 'Ada Löve'
git init -q -b main project && cd project
echo one > a && git add a && git commit -qm first
git checkout -qb side && echo two > b && git add b && git commit -qm second
git checkout -q main && git merge -q side && git gc -q
git clone -q . ../copy && cd ../copy
git log --format='%an %s' && git status --short && git fsck
"""
    )
    assert shown.stdout == "Ada Löve second\nAda Löve first\n"


# -- packages


# What the shelf has: the template brings cycler too, in an older version.
_SHELF = [
    ("greeter", "1.0", ""),
    ("greeter", "2.0", ""),
    ("bouquet", "1.0", "greeter<2"),
    ("cycler", "99.0", ""),
]


@pytest.fixture
def shelf(sandbox: Sandbox) -> str:
    """A folder of the sandbox that serves wheels."""
    for name, version, requires in _SHELF:
        path = f"/mnt/data/wheels/{name}-{version}-py3-none-any.whl"
        sandbox.files.write(path, make_wheel(name, version, requires))

    return "--no-index --find-links /mnt/data/wheels"


@pytest.mark.parametrize("install", ["!pip install -q", "%pip install -q", "!python -m pip install -q"])
def test_pip_installs_for_session_children_and_later_contexts(
    sandbox: Sandbox, shelf: str, install: str
) -> None:
    """A package can be imported at once, by children, and after a restart; its program is on PATH."""
    assert sandbox.run_code("import greeter").error.name == "ModuleNotFoundError"
    _run(sandbox, f"{install} {shelf} greeter")

    assert sandbox.run_code("import greeter; greeter.greet('session')").text == "'hello session'"
    assert _run(sandbox, "!python -c 'import greeter; print(greeter.greet(\"child\"))'") == "hello child\n"
    assert sandbox.commands.run("greet command").stdout == "hello command\n"
    assert _run(sandbox, "greet bash", language="bash") == "hello bash\n"

    sandbox.restart_code_context("default")
    assert sandbox.run_code("import greeter; greeter.greet('restart')").text == "'hello restart'"


@pytest.mark.parametrize("install", ["!pip install", "%pip install"])
def test_pip_says_why_it_finds_nothing(sandbox: Sandbox, shelf: str, install: str) -> None:
    """Without a network that is the reason; with a wrong name among the wheels that are there it is, too."""
    execution = sandbox.run_code(f"{install} -q none-such")
    assert "".join(execution.logs.stdout) == ""
    said = "".join(execution.logs.stderr).splitlines()
    assert said[-1].startswith("ERROR: this sandbox has no network; make it with network="), said
    assert _run(sandbox, f"{install} -q {shelf} greeter") == ""


def test_pip_upgrades_and_removes(sandbox: Sandbox, shelf: str) -> None:
    """Dependencies come along; a later version replaces an older, even the template's, and can be removed."""
    run = sandbox.commands.run
    run(f"pip install -q {shelf} bouquet")
    assert run("python -c 'import bouquet, greeter; print(greeter.__version__)'").stdout == "1.0\n"
    run(f"pip install -q {shelf} -U greeter cycler")
    shown = run(
        "python -c 'import cycler as c, greeter as g; print(c.__version__, g.__version__)'; ls .local/lib/*/*"
    )
    assert shown.stdout.startswith("99.0 2.0\n")
    assert "greeter-1.0.dist-info" not in shown.stdout
    assert sandbox.run_code(
        "import importlib.metadata as m; m.version('greeter'), m.version('cycler')"
    ).text == ("('2.0', '99.0')")

    run("pip uninstall -q -y greeter cycler")
    assert run("python -c 'import cycler; print(cycler.__version__)'").stdout != "99.0\n"

    with pytest.raises(CommandExitError, match="No module named 'greeter'"):
        run("python -c 'import greeter'")


def test_pip_builds_a_wheel_and_installs_it(sandbox: Sandbox) -> None:
    """A project with its own build backend becomes a wheel inside the sandbox, which installs."""
    sandbox.files.write_files([WriteEntry(f"project/{path}", text) for path, text in GREETER_SOURCES.items()])
    sandbox.commands.run("pip wheel -q --no-index --no-build-isolation --wheel-dir built ./project")
    sandbox.commands.run("pip install -q --no-index --find-links built greeter")
    assert sandbox.commands.run("greet builder").stdout == "hello builder\n"


def test_pip_installs_into_a_virtual_environment(sandbox: Sandbox, shelf: str) -> None:
    """`python -m venv` makes an environment of its own, and pip installs into it."""
    sandbox.commands.run(
        f"python -m venv own && PIP_USER=0 own/bin/pip install -q {shelf} greeter", timeout=60
    )
    assert sandbox.commands.run("own/bin/greet venv").stdout == "hello venv\n"
