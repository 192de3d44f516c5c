"""Named templates, really built: installers, Pythons, and what a failure, an interrupt or a removal leaves behind.

Every build installs IPython from the package index. Of the Pythons of this machine that `fumehood template build
--python` can find, the oldest and the newest are tried, and by all other tests the one that runs them; EVERY_PYTHON=1
has all tried.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import forked

from fumehood import (
    InvalidArgumentError,
    Sandbox,
    Template,
    TemplateError,
    TemplateStoreError,
    build_template,
    list_templates,
)
from fumehood.api.templates import _try_out
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal
from fumehood.templates import requirements
from fumehood.templates.pythons import Interpreter, find_uv, installed_pythons

from .wheels import make_wheel

# Installing takes most of it, and on a busy machine many times what it takes on an idle one.
pytestmark = pytest.mark.timeout(400)


@functools.cache
def pythons() -> list[Interpreter]:
    """Those of this machine, the oldest first. Each is asked, which no process need do that only collects tests."""
    return sorted(installed_pythons(), key=lambda python: python.version)


def own() -> Interpreter:
    """The one that runs these tests."""
    return next(python for python in pythons() if python.version[:2] == sys.version_info[:2])


TRIED = (
    [python.text for python in pythons()] if os.environ.get("EVERY_PYTHON") else ["oldest", "newest", "own"]
)
_BUILD_SECONDS = 300

# A package whose wheel takes forever to build, and says when that has begun.
_SLOW_BACKEND = """
import os

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open({begun!r}, "w") as begun:
        begun.write("x")
        begun.flush()
        open({never!r}).read()
"""


class Bench:
    """A folder of recipes, a store of its own, and `fumehood` over both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.environ = {**os.environ, "FUMEHOOD_HOME": str(self.home), "FUMEHOOD_POOL_SIZE": "0"}
        wheels = folder / "wheels"
        wheels.mkdir()

        for name, requires in (("greeter", ""), ("breaking", "")):
            (wheels / f"{name}-1.0-py3-none-any.whl").write_bytes(make_wheel(name, "1.0", requires))

        self.write("greeter.txt", "--find-links ./wheels\ngreeter\n")
        self.write("given/notes.txt", "as given")
        self.write("given/tools/hello", '#!/bin/sh\necho "hello $WHO"\n').chmod(0o755)
        self.write("given/table.csv", "number\n" * 300_000)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return forked.run(
            arguments, environ=self.environ, folder=str(self.folder), stdin=stdin, seconds=_BUILD_SECONDS
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "fumehood", *arguments]

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("template", "build", *arguments)

    def cell(self, template: str, code: str) -> str:
        """What a cell prints in a sandbox that another process starts from the template."""
        done = self.run("run", "--template", template, "-", stdin=code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def listed(self) -> dict[str, dict[str, object]]:
        done = self.run("template", "list", "--json")
        return {info["name"]: info for info in json.loads(done.stdout)}

    def builds(self) -> list[str]:
        return sorted(os.listdir(self.home / "templates" / "builds"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("templates"))


@pytest.fixture(scope="module")
def data(bench: Bench) -> Bench:
    """The bench with a template called `data`."""
    done = bench.build(*_DATA)
    assert done.returncode == 0, done.stderr
    assert "building" not in done.stdout
    assert "starting a sandbox from it" in done.stderr
    assert "'data' is built" in done.stderr.splitlines()[-1]
    return bench


_DATA = (
    "data",
    "--requirements",
    "greeter.txt",
    "--preload",
    "greeter,json",
    "--files",
    "given",
    "--env",
    "WHO=Ada",
)


@pytest.fixture
def at_home(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The functions of this process use the bench's store."""
    monkeypatch.setenv("FUMEHOOD_HOME", str(bench.home))
    return bench


class Engine:
    """An engine of this process, over the store that the environment names."""

    def __init__(self) -> None:
        self._portal = Portal()
        self._backend = make_backend(EngineSettings(pool_size=0), self._portal)
        self._opened: list[Sandbox] = []

    def open(self, name: str) -> Sandbox:
        self._opened.append(Sandbox(name, backend=self._backend))
        return self._opened[-1]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().kill()

        self._portal.close()


@pytest.fixture
def engine(at_home: Bench) -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


# -- what a template gives


def test_packages_files_variables_and_preloaded_modules_are_there(data: Bench) -> None:
    """In a sandbox that a process starts which knows nothing but the name."""
    shown = data.cell(
        "data",
        """
import os, subprocess, sys
print([name in sys.modules for name in ("greeter", "json", "wave")], os.environ["WHO"])
import greeter
print(greeter.greet("cell"), open("notes.txt").read(), len(open("table.csv").readlines()))
print(subprocess.check_output("tools/hello; greet child; pip --version | cut -c 1-4", shell=True, text=True))
""",
    )
    assert shown == "[True, True, False] Ada\nhello cell as given 300000\nhello Ada\nhello child\npip \n\n"


def test_each_sandbox_has_files_of_its_own_and_the_template_stays_as_it_is(data: Bench) -> None:
    """Small files can be changed, the large one and the packages cannot."""
    change = """
import greeter
open("notes.txt", "a").write("!")
for path in ("table.csv", greeter.__file__, "/opt/template/notes.txt"):
    try:
        open(path, "a")
    except OSError:
        print("refused")
"""
    assert data.cell("data", change) == "refused\n" * 3
    assert data.cell("data", "print(open('notes.txt').read())") == "as given\n"


def test_variables_of_the_sandbox_go_before_those_of_the_template(engine: Engine, data: Bench) -> None:
    """The template gives the default."""
    done = data.run(
        "run", "--template", "data", "--env", "WHO=Bob", "-", stdin="import os; print(os.environ['WHO'])"
    )
    assert done.stdout == "Bob\n"

    sandbox = engine.open("data")
    assert sandbox.commands.run("echo $WHO").stdout == "Ada\n"
    assert sandbox.get_info().template == "data"


def test_the_list_says_what_is_there(data: Bench, at_home: Bench) -> None:
    """For people, for programs, and in Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    info = data.listed()["data"]
    table = data.run("template", "list").stdout.splitlines()

    assert (info["python"], info["preload"], info["has_files"]) == (version, ["greeter", "json"], True)
    assert table[0].split() == ["NAME", "PYTHON", "SIZE", "BUILT", "PRELOAD"]
    assert table[1].startswith("default  -")
    assert any(row.split()[:2] == ["data", version] for row in table[1:])
    assert "data" in [info.name for info in list_templates()]


def test_what_has_not_changed_is_not_built_again(data: Bench) -> None:
    """And that is said."""
    before = data.listed()["data"], data.builds()
    done = data.build(*_DATA)

    assert done.returncode == 0
    assert "up to date" in done.stderr
    assert (data.listed()["data"], data.builds()) == before


# -- change and removal


def test_sandboxes_live_on_while_their_template_is_built_anew_and_removed(
    bench: Bench, engine: Engine
) -> None:
    """They keep the version that they started from; later ones get the new one; nothing stays in the end."""
    assert bench.build("moving", "--requirements", "greeter.txt", "--files", "given").returncode == 0
    old = engine.open("moving")

    bench.write("given/notes.txt", "given later")
    done = bench.build("moving", "--requirements", "greeter.txt", "--files", "given")
    assert "'moving' is built" in done.stderr
    assert bench.cell("moving", "print(open('notes.txt').read())") == "given later\n"
    assert engine.open("moving").files.read("notes.txt") == "given later"

    removed = bench.run("template", "remove", "moving")
    assert removed.returncode == 0
    assert "moving" not in bench.listed()
    # What has not been imported before is read from the version that was replaced.
    assert old.run_code("import greeter, antigravity, wave; greeter.greet('old')").text == "'hello old'"

    with pytest.raises(TemplateError, match="no template has this name"):
        engine.open("moving")

    assert old.files.read("notes.txt") == "as given"
    assert [name for name in bench.builds() if name.startswith("moving.")]

    engine.close()
    bench.run("template", "list")
    assert not [name for name in bench.builds() if name.startswith("moving.")]
    bench.write("given/notes.txt", "as given")


@pytest.mark.parametrize("arguments", [("template", "remove", "dta"), ("run", "--template", "dta", "-")])
def test_an_unknown_name_is_reported_with_those_that_are_like_it(
    data: Bench, arguments: tuple[str, ...]
) -> None:
    """And the way out."""
    done = data.run(*arguments, stdin="1")
    assert done.returncode == 70
    assert "'dta'" in done.stderr
    assert "did you mean 'data'?" in done.stderr


# -- failures


def _unchanged_by(bench: Bench, *arguments: str) -> str:
    """A build of `data` that must fail; returns what it says."""
    before = bench.listed(), bench.builds()
    done = bench.build(*arguments)
    assert done.returncode == 70, done.stderr
    assert (bench.listed(), bench.builds()) == before
    return done.stderr


def test_a_requirement_that_cannot_be_had_is_reported_in_the_installers_words(data: Bench) -> None:
    """The template that had the name stays, and nothing else."""
    data.write("missing.txt", "no-such-package-of-fumehood==9\n")
    said = _unchanged_by(data, "data", "--requirements", "missing.txt")
    assert "no-such-package-of-fumehood" in said.partition("failed with exit code")[2]
    assert "hint: check the names and versions" in said


def test_a_module_that_cannot_be_preloaded_fails_the_build(data: Bench) -> None:
    """A real sandbox is started before the template counts."""
    data.write("breaking.txt", "--find-links ./wheels\nbreaking\n")
    said = _unchanged_by(data, "data", "--requirements", "breaking.txt", "--preload", "breaking.no_part")
    assert "No module named 'breaking.no_part'" in said


def test_the_trial_misses_what_a_start_would_leave_out() -> None:
    """A module that is not there at all is reported by other templates; a build refuses it."""
    with pytest.raises(TemplateError, match="'no_such_module' is not in its environment") as caught:
        _try_out(Template(name="odd", preload=("no_such_module", "json")))

    assert "preload list" in caught.value.hint
    _try_out(Template(name="odd", preload=("json",)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_an_interrupted_build_leaves_the_old_template_and_no_rubbish(data: Bench, number: int) -> None:
    """Ctrl-C or `timeout` in the middle of an installation ends the installer and all that it has started."""
    begun, never = data.folder / f"begun{number}", data.folder / f"never{number}"
    os.mkfifo(begun)
    os.mkfifo(never)
    data.write("slow/backend.py", _SLOW_BACKEND.format(begun=str(begun), never=str(never)))
    data.write(
        "slow/pyproject.toml",
        "[project]\nname = 'slow'\nversion = '1'\n"
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
    )
    data.write("slow.txt", "./slow\n")
    before = data.listed(), data.builds()
    pipe = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    builder = subprocess.Popen(
        data.command("template", "build", "data", "--requirements", "slow.txt"),
        cwd=data.folder,
        env=data.environ,
        stderr=subprocess.PIPE,
        text=True,
    )

    with builder:
        try:
            assert select.select([pipe], [], [], 90)[0], "the installation has not begun"
            assert os.read(pipe, 1) == b"x"
            builder.send_signal(number)
            _, said = builder.communicate(timeout=60)
        finally:
            # Only if it was too slow: otherwise it has ended.
            _end(builder)

    # The end of the pipe is the end of the innermost program.
    assert select.select([pipe], [], [], 60)[0]
    assert os.read(pipe, 1) == b""
    os.close(pipe)
    assert builder.returncode == 130, said
    assert "Traceback" not in said
    assert (data.listed(), data.builds()) == before


def _end(builder: subprocess.Popen[str]) -> None:
    builder.terminate()

    try:
        builder.wait(timeout=30)
    except subprocess.TimeoutExpired:
        builder.kill()


def test_what_cannot_work_is_refused_before_anything_is_made(at_home: Bench) -> None:
    """Exit code 64, the value and the way out."""
    for arguments, value in (
        (("a b",), "'a b'"),
        (("new", "--python", "3.77"), "'3.77'"),
        (("new", "--files", "nowhere"), "nowhere"),
        (("new", "--env", "WHO"), "'WHO'"),
        (("new", "--requirements", "nowhere.txt"), "nowhere.txt"),
    ):
        done = at_home.build(*arguments)
        assert (done.returncode, value in done.stderr, "hint:" in done.stderr) == (64, True, True), (
            done.stderr
        )

    with pytest.raises(InvalidArgumentError):
        build_template("new", requirements=["six\nattrs"])

    assert "new" not in at_home.listed()


# -- Pythons and installers


def _exercise(sandbox: Sandbox, version: tuple[int, ...]) -> None:
    """What a cell may do, in whatever Python."""
    assert sandbox.run_code("import sys; tuple(sys.version_info[:3])").text == str(version)
    failed = sandbox.run_code("print('before')\nx = 1\nx / 0")
    assert (str(failed.logs), failed.error.name) == ("before\n", "ZeroDivisionError")
    assert sandbox.run_code("import asyncio; await asyncio.sleep(0, x)").text == "1"
    assert sandbox.run_code("[n for n in range(3) if n]\n").text == "[1, 2]"
    assert str(sandbox.run_code("%%bash\necho $((6 * 7))").logs) == "42\n"
    assert str(sandbox.run_code("echo $HOME", language="bash").logs) == "/home/user\n"
    assert sandbox.run_code("import time; time.sleep(60)", timeout=0.2).error.kind == "time_limit"
    checkpoint = sandbox.checkpoint()
    undone = sandbox.run_code("x = 2; open('new', 'w'); 1 / 0", transactional=True, changes=True)
    assert [change.name for change in undone.changes.variables] == ["x"]
    sandbox.run_code("x = 3; tick = asyncio.create_task(asyncio.sleep(0)); await tick")
    sandbox.rollback(checkpoint)
    assert (
        sandbox.run_code("import os; await asyncio.sleep(0, (x, os.path.exists('new')))").text == "(1, False)"
    )
    sandbox.files.write("a.py", "import greeter, sys; print(greeter.greet(sys.version_info[1]))")
    assert sandbox.commands.run("python a.py").stdout == f"hello {version[1]}\n"
    sandbox.commands.run(
        "pip install -q --no-index --find-links wheels breaking && python -c 'import breaking'"
    )


@pytest.mark.parametrize("which", TRIED)
def test_each_python_of_this_machine(at_home: Bench, engine: Engine, which: str) -> None:
    """The guest runs there, with the IPython that the installer finds for it."""
    named = {"oldest": pythons()[0], "newest": pythons()[-1], "own": own()}
    python = named.get(which) or next(one for one in pythons() if one.text == which)

    # Tried under that name.
    if which in ("oldest", "newest") and python == own():
        return

    name = f"py{python.version[1]}"
    wheels = at_home.folder / "wheels"
    info = build_template(
        name, requirements=[f"--find-links {wheels}", "greeter"], python=python.text, preload=["greeter"]
    )
    assert info.python == python.text

    sandbox = engine.open(name)
    wheel = "breaking-1.0-py3-none-any.whl"
    sandbox.files.write(f"wheels/{wheel}", (wheels / wheel).read_bytes())
    _exercise(sandbox, python.version)


def test_the_python_of_these_tests_is_among_them() -> None:
    """The other tests of this file try it; the oldest and the newest are tried here."""
    assert own() in pythons()


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_either_installer(
    at_home: Bench, engine: Engine, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    """uv where it is installed, pip where it is not."""
    if installer == "uv" and find_uv() is None:
        pytest.skip("uv is not installed")

    if installer == "pip":
        monkeypatch.setattr(requirements, "find_uv", lambda: None)

    heard: list[str] = []
    build_template(
        f"by-{installer}",
        requirements=[f"--find-links {at_home.folder / 'wheels'}", "greeter"],
        preload=["greeter"],
        own_interpreter=True,
        on_progress=heard.append,
    )
    assert at_home.listed()[f"by-{installer}"]["own_interpreter"] is True
    assert f"installing the requirements with {installer}" in heard

    sandbox = engine.open(f"by-{installer}")
    assert sandbox.run_code("greeter = __import__('greeter'); greeter.greet('x')").text == "'hello x'"
    assert "pip " in sandbox.commands.run("pip --version").stdout


def test_an_installer_that_fails_is_an_error_of_the_tree(
    at_home: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is."""
    monkeypatch.setattr(requirements, "find_uv", lambda: None)
    with pytest.raises(TemplateStoreError, match="no-such-package") as caught:
        build_template("broken", requirements=["no-such-package-of-fumehood"])

    assert caught.value.template == "broken"
    assert "broken" not in at_home.listed()
