"""What is published: a wheel and a source archive with all that they need, and a package page that can be read."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from readme_renderer import markdown
from tests.conftest import RunningServer

from fumehood import Sandbox

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@dataclass(frozen=True)
class Built:
    """The two files, and what the wheel says of itself."""

    wheel: Path
    sdist: Path

    def names(self) -> set[str]:
        """The files of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def metadata(self) -> email.message.Message:
        """Its fields, with the package page as payload."""
        with zipfile.ZipFile(self.wheel) as archive:
            return email.message_from_bytes(archive.read(f"fumehood-{VERSION}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, built as for a release: the wheel from the source archive."""
    if shutil.which("npm") is None and not (ROOT / "src/fumehood/console/dist/index.html").is_file():
        pytest.skip("npm is not installed: the page of the console cannot be built")

    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder / f"fumehood-{VERSION}-py3-none-any.whl", folder / f"fumehood-{VERSION}.tar.gz")


def _tracked(folder: str) -> set[str]:
    """The files of the repository below a folder, relative to it."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
        cwd=ROOT / folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in done.stdout.splitlines() if (ROOT / folder / name).exists()}


def _page(names: set[str], folder: str) -> set[str]:
    """The files of the built console among names of an archive: its document, its licences, and what it loads."""
    page = {name for name in names if name.startswith(folder)}
    assert {f"{folder}index.html", f"{folder}THIRD_PARTY.txt"} <= page
    assert {name.rpartition(".")[2] for name in page if name.startswith(f"{folder}assets/")} >= {
        "js",
        "css",
        "svg",
    }
    return page


def test_the_wheel_has_these_packages_and_no_other(built: Built) -> None:
    """A name at the top of site-packages is one that no other distribution can have."""
    tops = {name.partition("/")[0] for name in built.names()}
    assert tops == {
        "fumehood",
        "fumehood_guest",
        "fumehood_jail",
        "fumehood_wire",
        f"fumehood-{VERSION}.dist-info",
    }


def test_the_wheel_has_every_file_of_the_sources(built: Built) -> None:
    """Modules, `py.typed`, policies, tables of system calls, migrations; and what `fumehood bench` runs."""
    wanted = _tracked("src") | {
        f"fumehood/benchmarks/fumehood_bench/{name}" for name in _tracked("benchmarks/fumehood_bench")
    }
    names = {name for name in built.names() if ".dist-info/" not in name}
    assert names - _page(names, "fumehood/console/dist/") == wanted
    assert {"fumehood/py.typed", "fumehood_jail/policies/sandbox.toml"} <= names
    assert any(re.fullmatch(r"fumehood/storage/.*versions/\w+\.py", name) for name in names)


def test_the_source_archive_has_what_a_build_and_a_reader_need(built: Built) -> None:
    """And nothing that the repository does not have."""
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"README.md", "LICENSE", "CHANGELOG.md", "docs/README.md", "src/fumehood/py.typed"} <= names
    page = _page(names, "src/fumehood/console/dist/")
    assert names - page - {"PKG-INFO"} <= _tracked(".")


def test_the_package_page_can_be_read_anywhere(built: Built) -> None:
    """It is rendered without a complaint, each link is absolute, and those to the repository lead to files of it."""
    command = [sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    metadata = built.metadata()
    page = markdown.render(str(metadata.get_payload(decode=True), "utf-8"))
    assert page is not None
    links = re.findall(r'href="([^"]*)"', page)
    urls = dict(value.split(", ", 1) for value in metadata.get_all("Project-URL", []))
    here = f"{urls['Repository']}/blob/v{VERSION}/"
    assert len(links) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    ours = [link.removeprefix(here).partition("#")[0] for link in links if link.startswith(here)]
    assert len(ours) > 30
    assert [name for name in ours if not (ROOT / name).exists()] == []
    pictures = re.findall(r'<img[^>]*src="([^"]*)"', page)
    raw = f"{urls['Repository'].replace('//github.com', '//raw.githubusercontent.com')}/v{VERSION}/"
    assert len(pictures) == 4
    assert [link for link in pictures if not (ROOT / link.removeprefix(raw)).is_file()] == []
    assert {"Documentation", "Changelog", "Security"} <= set(urls)
    assert metadata["Summary"] in page


@pytest.fixture(scope="module")
def python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment into which the wheel was installed for a server."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    interpreter = str(environment / "bin" / "python")
    wanted = f"fumehood[server] @ {built.wheel.as_uri()}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", interpreter, wanted]
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", wanted]

    # As in the Makefile: uv reads nothing of pip's configuration, and may find no index.
    if subprocess.run(uv, check=False).returncode != 0:
        subprocess.run(pip, check=True)

    return interpreter


@pytest.fixture
def run(python: str, tmp_path: Path) -> Callable[..., str]:
    """Runs `fumehood ...` of that environment, elsewhere than in the repository, and returns what it printed."""
    envs = {name: value for name, value in os.environ.items() if not name.startswith(("FUMEHOOD_", "PYTHON"))}

    def run_command(*arguments: str, stdin: str = "") -> str:
        program = str(Path(python).with_name("fumehood"))
        done = subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env=envs,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_command


@pytest.mark.timeout(300)
def test_the_installed_command_line_works(run: Callable[..., str], tmp_path: Path) -> None:
    """It tells its version, finds what the machine offers, and runs code."""
    assert run("--version").startswith(f"fumehood {VERSION}")
    assert json.loads(run("doctor", "--json"))
    (tmp_path / "program.py").write_text("print(6 * 7)")
    assert run("run", "program.py") == "42\n"


@pytest.mark.timeout(300)
def test_the_installed_server_runs_code(python: str, tmp_path: Path) -> None:
    """`fumehood serve` from the wheel makes its database and runs code of a client."""
    server = RunningServer(tmp_path / "state", python=python, pool_size=0)
    try:
        with Sandbox(url=server.url, api_key=server.token) as sandbox:
            assert sandbox.run_code("6 * 7").text == "42"

        # The page comes with the wheel, and loads nothing from elsewhere.
        with httpx2.Client(base_url=server.url) as client:
            document = client.get("/console/")
            assert document.status_code == 200
            named = re.findall(r'(?:src|href)="([^"]+)"', document.text)
            assert {path.rpartition(".")[2] for path in named} == {"js", "css", "svg"}
            assert [client.get(path).status_code for path in named] == [200] * len(named)
    finally:
        assert server.stop() == 0
