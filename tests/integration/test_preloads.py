"""Preload lists with modules that cannot be preloaded: sandboxes start all the same, and are told what is left out.

The environments are real ones, with small packages that do at their import what pyarrow, polars and others do.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from fumehood import Sandbox, SandboxStartError, Template, build_template, list_templates
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal
from fumehood_jail.landlock_fence import why_impossible

from .wheels import make_wheel

# Installing takes most of it.
pytestmark = pytest.mark.timeout(300)
SOURCES = Path(__file__).resolve().parents[2] / "src"

_THREADED = """
import threading
threading.Thread(target=threading.Event().wait, name="{name}-cleaner", daemon=True).start()
"""
MODULES = {
    # As a library does that looks something up in the background.
    "pandas": _THREADED.format(name="pandas"),
    "left_thread": _THREADED.format(name="left_thread"),
    "left_above": "import left_thread",
    "brief": "import threading\nthreading.Thread(target=lambda: None).start()",
    "raising": "import os\nos.write(2, b'Fontconfig error: noise\\n')\nraise ValueError('it is broken')",
    "dying": "import os\nos.write(2, b'assertion failed in dying.c\\n')\nos._exit(3)",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has all of these packages, and what fumehood itself requires."""
    folder = tmp_path_factory.mktemp("preloads")

    for name, text in MODULES.items():
        (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(make_wheel(name, module=text))

    (folder / "names.txt").write_text("\n".join(["--find-links .", "--no-index", *MODULES]))
    environment = folder / "environment"
    uv = [sys.executable, "-m", "uv"]
    interpreter = environment / "bin" / "python"
    install = [*uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(interpreter)]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(environment)], check=True)
    required = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    subprocess.run([*install, *required], check=True)
    subprocess.run([*install, "-r", "names.txt"], cwd=folder, check=True)
    return str(interpreter)


def _imported(sandbox: Sandbox, name: str) -> str | None:
    execution = sandbox.run_code(
        f"import sys\nwas = {name!r} in sys.modules\nimport {name}\nwas, {name}.__version__"
    )
    assert execution.error is None, execution.error
    return execution.text


WAYS = {
    "namespaces": (False, None),
    "own interpreter": (True, None),
    "landlock-only": (False, "landlock-only"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_leaves_a_thread_is_left_out(
    way: str, python: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is preloaded, the module can be imported in sandboxes, and the log says which and why, once."""
    own_interpreter, isolation = WAYS[way]

    if isolation is not None and why_impossible() is not None:
        pytest.skip("needs Landlock ABI 6")

    template = Template(
        name=f"left {way}",
        python=python,
        preload=("json", "left_thread", "left_above", "brief", "raising", "not_there"),
        own_interpreter=own_interpreter,
    )

    with caplog.at_level(logging.WARNING, "fumehood.runtimes"):
        for _ in range(2):
            with Sandbox(template, isolation=isolation) as sandbox:
                assert _imported(sandbox, "left_thread") == "(False, '1.0')"
                assert _imported(sandbox, "brief") == "(True, '1.0')"

    said = sorted("{module}: {cause}".format(**record.fields) for record in caplog.records)
    # What `left_above` would leave, `left_thread` has left already: it is found when that is left out.
    assert said == ["left_above: threads", "left_thread: threads", "not_there: missing", "raising: error"]


def test_the_real_reason_is_reported(python: str) -> None:
    """An interpreter that dies is told with the module at fault and its last words, not with any warning."""
    with pytest.raises(SandboxStartError) as caught:
        Sandbox(Template(name="dying", python=python, preload=("json", "dying")))

    assert "it ended while it imported 'dying': assertion failed in dying.c" in str(caught.value)


def _fumehood(interpreter: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in an environment, whose packages are then those of the default template."""
    return subprocess.run(
        [interpreter, "-m", "fumehood", *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        input="print(6 * 7)",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_package_beside_the_default_template_stops_no_sandbox(python: str) -> None:
    """`fumehood run` works, and `fumehood doctor` says what is not preloaded."""
    done = _fumehood(python, "run", "-")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr

    doctor = _fumehood(python, "doctor", "--json")
    rows = {row["name"]: row for row in json.loads(doctor.stdout)}
    assert doctor.returncode == 0
    assert rows["first sandbox"]["state"] == "there"
    assert rows["preload"]["state"] == "degraded"
    assert "pandas: its import leaves 1 thread running: pandas-cleaner" in rows["preload"]["why"]
    assert "numpy: it is not installed" in rows["preload"]["why"]


def test_the_doctor_finds_what_prevents_every_sandbox(tmp_path: Path) -> None:
    """No layer is missing, and no sandbox starts: the exit code, the row and the verdict say so."""
    environment = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    interpreter = str(environment / "bin" / "python")
    # The words of the command line are read by click; what the guest needs is what is missing.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "click").symlink_to(Path(click.__file__).parent)

    doctor = _fumehood(interpreter, "doctor")
    assert doctor.returncode == 1
    assert doctor.stdout.splitlines()[-2].startswith("No sandbox starts here, though no layer is missing.")
    row = next(line for line in doctor.stdout.splitlines() if line.startswith("first sandbox"))
    assert "missing" in row
    assert "No module named 'IPython'" in row


def test_a_build_tells_what_it_leaves_out(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template counts; what is left out is said while it is built, is kept, and costs no later start."""
    monkeypatch.setenv("FUMEHOOD_HOME", str(tmp_path))
    wheels = Path(python).parents[2]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"--find-links {wheels}\nleft_thread\nleft_above\n")
    heard: list[str] = []
    info = build_template(
        "left_thread",
        requirements=str(requirements),
        preload=["json", "left_thread", "left_above"],
        on_progress=heard.append,
    )
    reason = "its import leaves 1 thread running: left_thread-cleaner"
    assert info.left_out == {"left_thread": reason, "left_above": reason}
    assert f"not preloaded: left_thread: {reason}; sandboxes can import it all the same" in heard
    assert list_templates() == (info,)

    portal = Portal()
    try:
        backend = make_backend(EngineSettings(pool_size=0), portal)

        with Sandbox("left_thread", backend=backend) as sandbox:
            assert _imported(sandbox, "left_thread") == "(False, '1.0')"
    finally:
        portal.close()

    listed = subprocess.run(
        [sys.executable, "-m", "fumehood", "template", "list"], capture_output=True, text=True, check=True
    )
    assert f"fumehood: left_thread does not preload left_thread: {reason}" in listed.stderr


def test_the_default_template_preloads_what_the_setting_names() -> None:
    """An engine imports the named modules beforehand, and no other of its default list."""
    portal = Portal()

    try:
        backend = make_backend(EngineSettings(pool_size=0, preload=("wave",)), portal)

        with Sandbox(backend=backend) as sandbox:
            seen = sandbox.run_code("import sys; ['wave' in sys.modules, 'pandas' in sys.modules]")
            assert seen.text == "[True, False]"
    finally:
        portal.close()
