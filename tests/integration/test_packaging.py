"""The files for service managers and containers: read by the programs that they are for, where those are here."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from fumehood.cli.setting_flags import flag_of
from fumehood.daemon.settings import HostSettings
from fumehood.server.settings import ServerSettings
from fumehood.setting_fields import SettingsKind, variable_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = ROOT / "src" / "fumehood" / "deployment"
GUIDE = ROOT / "docs" / "guides" / "running-a-server.md"
UNITS = sorted((DEPLOYMENT / "systemd").glob("*.service"))
# As the container of compose.yaml has it: these capabilities, and that filter.
CAPABILITIES = ("setuid", "setgid", "kill")
IN_A_CONTAINER = """
import json, struct, sys
from fumehood_jail import seccomp, syscalls
profile, table = (json.load(open(path)) for path in sys.argv[1:])
(rule,) = profile["syscalls"]
numbers = sorted(table[name] for name in rule["names"] if name in table)
load, jump_equal, answer = 0x20, 0x15, 0x06
code = [(load, 0, 0, 0)]
code += [(jump_equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
code += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | rule["errnoRet"])]
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
seccomp.load(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
from fumehood import Sandbox
with Sandbox() as sandbox:
    layers = {layer.name: layer.state for layer in sandbox.get_info().isolation.layers}
    print(json.dumps([len(numbers), sandbox.run_code("6 * 7").text, layers]))
"""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """With programs in the places that the units name, there is nothing to complain of."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    for unit in UNITS:
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)

    units = [str(tmp_path / unit.name) for unit in UNITS]
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert len(units) == 3


def test_units_and_containers_name_settings_that_exist() -> None:
    """A misspelt variable would be ignored in silence."""
    known = {variable_of(item) for kind in (ServerSettings, HostSettings) for item in fields(kind)}
    known |= {"FUMEHOOD_HOME", "FUMEHOOD_MEMORY", "FUMEHOOD_CLUSTER_HEAD"}

    for path in (*UNITS, DEPLOYMENT / "docker" / "Dockerfile", DEPLOYMENT / "docker" / "compose.yaml"):
        assert set(re.findall(r"FUMEHOOD_[A-Z_]+", path.read_text())) <= known, path


def test_no_container_is_privileged() -> None:
    text = (DEPLOYMENT / "docker" / "compose.yaml").read_text()
    assert "privileged:" not in text
    assert "SYS_ADMIN]" not in text
    assert text.count("cap_drop: [ALL]") == 2


def test_the_script_starts_the_program_in_any_case(tmp_path: Path) -> None:
    told = subprocess.run(
        [str(DEPLOYMENT / "own-cgroup.sh"), "sh", "-c", 'echo "$0 $1"', "a", "b c"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert told.stdout == "a b c\n"


def test_a_sandbox_starts_with_what_the_container_leaves() -> None:
    """The filter and the capabilities of compose.yaml are enough for each sandbox to have a uid of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")

    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (package util-linux)")

    bounds = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
    from fumehood_jail import seccomp

    table = Path(seccomp.POLICIES, f"syscalls_{platform.machine()}.json")
    argv = ["setpriv", "--bounding-set", bounds, "--inh-caps", "-all", sys.executable, "-c", IN_A_CONTAINER]
    told = subprocess.run(
        [*argv, str(DEPLOYMENT / "docker" / "seccomp.json"), str(table)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    refused, text, layers = json.loads(told.stdout)
    assert refused > 20
    assert text == "42"
    assert {layers[name] for name in ("namespaces", "identity", "seccomp", "no new privileges")} == {"on"}
    compose = (DEPLOYMENT / "docker" / "compose.yaml").read_text()
    assert f"cap_add: [{', '.join(name.upper() for name in CAPABILITIES)}]" in compose


SECRETS = ["--token", "hunter2hunter2hunter2", "--database-url", "postgresql://u:hunter2@db/fumehood"]
GIVEN = ["--port", "9000", "--max-sandboxes", "200", "--allowed-hosts", 'a b,c%d$e"f\\g', *SECRETS]


def serve(*words: str, **envs: str) -> subprocess.CompletedProcess[str]:
    """What `fumehood serve` prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    return subprocess.run(
        [sys.executable, "-m", "fumehood", "serve", *words],
        env={**kept, **envs},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)")
@pytest.mark.parametrize("socket", ["", "/run/fumehood/host.sock"])
def test_systemd_understands_a_printed_unit(tmp_path: Path, socket: str) -> None:
    """It has the settings that were given, as systemd reads them; secrets are named and not printed."""
    words = ["--host", "0.0.0.0", "--state-folder", "/srv/my state", *GIVEN]
    printed = serve(*words, *(["--host-socket", socket] if socket else []), "--print-systemd")
    assert (printed.returncode, printed.stderr) == (0, "")
    unit = tmp_path / "fumehood.service"
    unit.write_text(printed.stdout)
    read = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (read.returncode, read.stderr) == (0, "")
    lines = printed.stdout.splitlines()
    assert {
        'Environment="FUMEHOOD_PORT=9000"',
        'Environment="FUMEHOOD_MAX_SANDBOXES=200"',
        r'Environment="FUMEHOOD_ALLOWED_HOSTS=a b,c%%d$e\"f\\g"',
        'Environment="FUMEHOOD_STATE_FOLDER=/srv/my state"',
    } <= set(lines)
    assert len([line for line in lines if "FUMEHOOD_STATE_FOLDER" in line]) == 1
    assert "hunter2" not in printed.stdout
    assert all(
        f"server.env: {name}=" in printed.stdout for name in ("FUMEHOOD_TOKEN", "FUMEHOOD_DATABASE_URL")
    )
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start.endswith(f"{sys.executable} -P -m fumehood serve")
    # With sandboxes of its own it has control groups to hand down; without, nothing but its socket.
    assert ("own-cgroup.sh" in start, "Delegate=yes" in lines, "NoNewPrivileges=yes" in lines) == (
        not socket,
        not socket,
        bool(socket),
    )


def test_a_printed_compose_file_has_the_settings() -> None:
    """Those of the engine at the host as well; secrets are in a file beside it."""
    printed = serve("--host", "::", *GIVEN, "--print-compose")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "hunter2" not in printed.stdout
    assert "fumehood.env: FUMEHOOD_DATABASE_URL=" in printed.stdout
    services = yaml.safe_load(printed.stdout)["services"]
    server, host = services["server"], services["host"]
    assert server["ports"] == ["[::]:9000:9000"]
    assert server["env_file"] == ["fumehood.env"]
    assert server["environment"] == {
        "FUMEHOOD_HOST_SOCKET": "/run/fumehood/engine/host.sock",
        "FUMEHOOD_PORT": "9000",
        "FUMEHOOD_MAX_SANDBOXES": "200",
        "FUMEHOOD_ALLOWED_HOSTS": 'a b,c%d$$e"f\\g',
    }
    assert host["environment"] == {
        "FUMEHOOD_HOST_SOCKET": "/run/fumehood/engine/host.sock",
        "FUMEHOOD_MAX_SANDBOXES": "200",
    }
    assert ":9000/readyz" in server["healthcheck"]["test"][-1]
    (profile,) = [option for option in host["security_opt"] if option.startswith("seccomp=")]
    assert Path(profile.removeprefix("seccomp=")).samefile(DEPLOYMENT / "docker" / "seccomp.json")
    image = host["build"]["dockerfile_inline"]
    assert "COPY" not in image
    assert "pip install --no-cache-dir 'fumehood[data,fonts,server,postgres,mcp]==" in image
    assert "fumehood/deployment/own-cgroup.sh /usr/local/libexec/fumehood/own-cgroup.sh" in image


def test_a_compose_file_without_settings_is_that_of_the_repository() -> None:
    """But for the image, the profile and the file of the token."""
    printed = yaml.safe_load(serve("--print-compose").stdout)
    kept = yaml.safe_load((DEPLOYMENT / "docker" / "compose.yaml").read_text())

    for read in (printed, kept):
        del read["services"]["host"]["build"]
        del read["services"]["host"]["security_opt"][0]
        read["services"]["server"].pop("env_file", None)
        read["services"]["server"]["environment"].pop("FUMEHOOD_TOKEN", None)

    assert printed == kept


def test_no_token_is_needed_to_print_a_unit() -> None:
    """It is read from the file; on loopback the server makes its own."""
    assert "server.env: FUMEHOOD_TOKEN=" in serve("--host", "0.0.0.0", "--print-systemd").stdout
    assert "FUMEHOOD_TOKEN" not in serve("--print-systemd").stdout
    assert "hunter2" not in serve("--print-systemd", FUMEHOOD_TOKEN="hunter2hunter2hunter2").stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--state-folder", "/srv/x", "--print-compose"], "--state-folder='/srv/x'"),
        (["--host-socket", "/run/x", "--print-compose"], "--host-socket='/run/x'"),
        (["--port", "0", "--print-compose"], "--port=0"),
        (["--print-systemd", "--print-compose"], "--print-systemd"),
        (["--port", "x", "--print-systemd"], "--port='x'"),
    ],
)
def test_what_cannot_be_printed_is_refused(words: list[str], named: str) -> None:
    """By the name of the option."""
    printed = serve(*words)
    assert (printed.returncode, printed.stdout) == (64, "")
    assert named in printed.stderr


@pytest.mark.parametrize("kind", [ServerSettings, HostSettings])
def test_the_guide_has_every_setting(kind: type[SettingsKind]) -> None:
    """Flag, variable, default and what it is for, as the program says them."""
    assert table_of(kind) in GUIDE.read_text()


def table_of(kind: type[SettingsKind]) -> str:
    """Returns the table of the guide for these settings; print it to write it anew."""
    rows = ["| flag | variable | default | what for |", "|---|---|---|---|"]

    for item in fields(kind):
        default = ",".join(item.default) if isinstance(item.default, tuple) else str(item.default)
        shown = f"`{default}`" if default else ""
        rows.append(f"| `{flag_of(item.name)}` | `{variable_of(item)}` | {shown} | {item.metadata['help']} |")

    return "\n".join(rows)
