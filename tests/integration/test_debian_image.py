"""A Dockerfile over a whole Debian, which mmdebstrap makes without a registry: `make test-images` runs this.

It downloads some 60 MB from the mirror of this machine's own sources.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_homes import make_home, remove_home, shared_interpreter
from tests.image_layouts import needs_program

from fumehood import Network, Sandbox, build_template

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
    harbor = Path(__file__).parents[2] / ".venv-harbor" / "bin" / "harbor"
    assert harbor.exists(), "`make test-images` installs it"
    task = tmp_path / "task"

    for name, text in _TASK.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)

    os.link(context / "base.tar", task / "environment" / "base.tar")
    done = subprocess.run(
        [
            *(harbor, "run", "-p", task, "-a", "oracle", "-o", "jobs", "-n", "1", "--quiet"),
            *("--env", "fumehood.frameworks.harbor:FumehoodEnvironment"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    rewards = [path.read_text() for path in tmp_path.glob("jobs/*/*/verifier/reward.txt")]
    assert rewards == ["1\n"], done.stdout[-3000:] + done.stderr[-3000:]
    assert "solved" in next(tmp_path.glob("jobs/*/*/agent/oracle.txt")).read_text()
    assert "interpreter shutdown" not in done.stderr


def test_a_task_of_inspect_runs_in_an_image(context, tmp_path):
    """Inspect's command finds the provider and the Dockerfile; its own model for tests is asked nothing."""
    inspect = Path(__file__).parents[2] / ".venv-harbor" / "bin" / "inspect"
    assert inspect.exists(), "`make test-images` installs it"
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
    python = Path(__file__).parents[2] / ".venv-harbor" / "bin" / "python"
    assert python.exists(), "`make test-images` installs it"
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
    swerex, executed, autogen, smolagents = done.stdout.splitlines() or [done.stderr[-3000:], "", "", ""]
    assert swerex == "swerex ['in-a-build', '/home/user/app', 'of', 'a', 'session']"
    assert executed == "swerex ['of', 'a', 'session']"
    assert autogen.startswith("autogen ['in-a-build', '12.")
    assert smolagents == "smolagents ['in-a-build']"
