"""The files of `packaging`: read by the programs that they are for, as far as those can be had here."""

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

from fumehood.cli.setting_flags import flag_of
from fumehood.daemon.settings import HostSettings
from fumehood.server.settings import ServerSettings
from fumehood.setting_fields import SettingsKind, variable_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
GUIDE = ROOT / "docs" / "guides" / "running-a-server.md"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
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
    assert len(units) == 2


def test_units_and_containers_name_settings_that_exist() -> None:
    """A misspelt variable would be ignored in silence."""
    known = {variable_of(item) for kind in (ServerSettings, HostSettings) for item in fields(kind)}
    known |= {"FUMEHOOD_HOME", "FUMEHOOD_MEMORY"}

    for path in (*UNITS, PACKAGING / "docker" / "Dockerfile", PACKAGING / "docker" / "compose.yaml"):
        assert set(re.findall(r"FUMEHOOD_[A-Z_]+", path.read_text())) <= known, path


def test_no_container_is_privileged() -> None:
    text = (PACKAGING / "docker" / "compose.yaml").read_text()
    assert "privileged:" not in text
    assert "SYS_ADMIN]" not in text
    assert text.count("cap_drop: [ALL]") == 2


def test_the_script_starts_the_program_in_any_case(tmp_path: Path) -> None:
    told = subprocess.run(
        [str(PACKAGING / "own-cgroup.sh"), "sh", "-c", 'echo "$0 $1"', "a", "b c"],
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
        [*argv, str(PACKAGING / "docker" / "seccomp.json"), str(table)],
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
    compose = (PACKAGING / "docker" / "compose.yaml").read_text()
    assert f"cap_add: [{', '.join(name.upper() for name in CAPABILITIES)}]" in compose


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
