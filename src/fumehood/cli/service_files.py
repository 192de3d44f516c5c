"""A unit of systemd, a compose file and a script for Docker, for a server with given settings.

Runs in the user's terminal, on any system. All are made from the files of `deployment`, which come with the package,
and repeat none of their text here. A secret is never written into them: it is read from a file beside, or from the
environment, as the first lines say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from fumehood.engine.settings import EngineSettings
from fumehood.errors import InvalidArgumentError
from fumehood.server.settings import ServerSettings
from fumehood.setting_fields import flag_of, is_secret, variable_of

_DEPLOYMENT = Path(__file__).resolve().parents[1] / "deployment"
_UNIT_SECRETS = "/etc/fumehood/server.env"
_COMPOSE_SECRETS = "fumehood.env"
_FOLDERS = ("state_folder", "audit_folder", "records_folder", "blobs_url")
# Where the image of the Dockerfile keeps what pip has installed.
_IMAGE_PACKAGES = "/usr/local/lib/python3.12/site-packages"


def systemd_unit(settings: ServerSettings, sources: Mapping[str, str]) -> str:
    """Return a unit that runs a server of this installation.

    Args:
        settings: The settings of the server.
        sources: The source of each setting, as `load_settings` returns it.
    """
    own_cgroup = _DEPLOYMENT / "own-cgroup.sh"
    program = f"{_unit_word(sys.executable)} -P -m fumehood serve"

    if settings.host_socket:
        unit = (_DEPLOYMENT / "systemd" / "fumehood.service").read_text(encoding="utf-8")
        before = [
            f"Its sandboxes are in `fumehood host`: see {_DEPLOYMENT / 'systemd' / 'fumehood-host.service'}"
        ]
    else:
        unit = (_DEPLOYMENT / "systemd" / "fumehood-host.service").read_text(encoding="utf-8")
        unit = re.sub(
            r"^Description=.*$", "Description=fumehood server: sandboxes over HTTP", unit, flags=re.M
        )
        unit = re.sub(r"^Environment=FUMEHOOD_HOST_SOCKET=.*\n", "", unit, flags=re.M)
        unit = unit.replace(
            "FUMEHOOD_HOST_STATE_FOLDER=/var/lib/fumehood-host", "FUMEHOOD_STATE_FOLDER=/var/lib/fumehood"
        )
        unit = unit.replace("StateDirectory=fumehood-host ", "StateDirectory=fumehood ")
        unit = unit.replace("/etc/fumehood/host.env", _UNIT_SECRETS)
        program = f"/bin/sh {_unit_word(str(own_cgroup))} {program}"
        before = [
            "usermod --add-subuids 1000000-1065535 --add-subgids 1000000-1065535 fumehood    (a uid for each sandbox)"
        ]

    values, secrets = _given(settings, sources)

    for name in _FOLDERS:
        if name in values and "://" not in values[name]:
            values[name] = os.path.abspath(os.path.expanduser(values[name]))

    lines = [
        f"Environment={_unit_word(f'{_variable(name)}={value}', is_quoted=True)}"
        for name, value in values.items()
    ]
    # The system is read-only for the unit but for these.
    lines += [
        f"ReadWritePaths={_unit_word(values[name])}"
        for name in _FOLDERS
        if name in values and "://" not in values[name]
    ]

    for name in values:
        unit = re.sub(rf"^Environment={_variable(name)}=.*\n", "", unit, flags=re.M)

    unit = re.sub(r"^ExecStart=.*$", lambda _: f"ExecStart={program}", unit, flags=re.M)
    unit = re.sub(r"^EnvironmentFile=", lambda _: "\n".join([*lines, "EnvironmentFile="]), unit, flags=re.M)
    head = [
        "A server of fumehood: /etc/systemd/system/fumehood.service, printed by `fumehood serve --print-systemd`.",
        "",
        "Before the first start:",
        "  useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin fumehood",
        *(f"  {line}" for line in before),
        f"  install -D -m 0600 /dev/null {_UNIT_SECRETS}",
        *(
            f"Write into {_UNIT_SECRETS}: {_variable(name)}=... (a secret, which is not printed)"
            for name in secrets
        ),
    ]

    if sys.prefix.startswith(("/home/", "/root/")):
        head.append(
            f"The unit cannot read {sys.prefix}: install fumehood elsewhere, as in /opt/fumehood, and print it there."
        )

    return _with_head(unit, head)


def compose_file(settings: ServerSettings, sources: Mapping[str, str]) -> str:
    """Return a compose file for two containers: a server, and the host of its sandboxes.

    Args:
        settings: The settings of the server.
        sources: The source of each setting, as `load_settings` returns it.

    Raises:
        InvalidArgumentError: A setting names a path of this machine, or an address without a port.
    """
    values, secrets = _given(settings, sources)
    _check_for_containers(settings, values)
    published = _published(settings)
    values.pop("host", None)
    engine = {item.name for item in fields(EngineSettings)}
    docker = _DEPLOYMENT / "docker"
    text = (docker / "compose.yaml").read_text(encoding="utf-8")
    text = text.replace(
        "seccomp=seccomp.json", json.dumps(f"seccomp={docker / 'seccomp.json'}".replace("$", "$$"))
    )
    text = re.sub(
        r"^      context: .*\n      dockerfile: .*\n",
        lambda _: "      dockerfile_inline: |\n" + _indented(_dockerfile().replace("$", "$$"), 8),
        text,
        flags=re.M,
    )
    at_engine, at_server = (
        [
            f"      {_variable(name)}: {json.dumps(value.replace('$', '$$'))}\n"
            for name, value in values.items()
            if name in names
        ]
        for names in (engine, set(values))
    )
    socket_line = "      FUMEHOOD_HOST_SOCKET: /run/fumehood/engine/host.sock\n"
    of_host, of_server = text.split("\n  server:\n")
    of_host = of_host.replace(socket_line, socket_line + "".join(at_engine))
    of_server = re.sub(r"^      FUMEHOOD_TOKEN: .*\n", "", of_server, flags=re.M)
    of_server = of_server.replace(
        f"    environment:\n{socket_line}",
        f"    env_file: [{_COMPOSE_SECRETS}]\n    environment:\n{socket_line}{''.join(at_server)}",
    )
    of_server = of_server.replace('"127.0.0.1:8765:8765"', f'"{published}:{settings.port}:{settings.port}"')
    of_server = of_server.replace("127.0.0.1:8765/readyz", f"127.0.0.1:{settings.port}/readyz")
    head = [
        "A server of fumehood in two containers, printed by `fumehood serve --print-compose`.",
        "",
        "Before the first start:",
        f'  (umask 077; echo "FUMEHOOD_TOKEN=$(openssl rand -hex 24)" > {_COMPOSE_SECRETS})',
        *(
            f"Write into {_COMPOSE_SECRETS}: {_variable(name)}=... (a secret, which is not printed)"
            for name in secrets
            if name != "token"
        ),
        "",
        "Neither is privileged. What the first needs beyond Docker's defaults, and why, stands beside each option.",
    ]
    return _with_head(f"{of_host}\n  server:\n{of_server}", head)


def docker_script(settings: ServerSettings, sources: Mapping[str, str]) -> str:
    """Return a shell script that starts a server in one container and prints the variables with which to reach it.

    Args:
        settings: The settings of the server.
        sources: The source of each setting, as `load_settings` returns it.

    Raises:
        InvalidArgumentError: A setting names a path of this machine, or an address without a port.
    """
    values, secrets = _given(settings, sources)
    _check_for_containers(settings, values)
    published = _published(settings)
    values.pop("host", None)
    docker = _DEPLOYMENT / "docker"
    host = (docker / "compose.yaml").read_text(encoding="utf-8").partition("\n  server:\n")[0]
    (capabilities,), (processes,), (files,) = (
        re.findall(rf"^ +{name}: (.*)$", host, flags=re.M) for name in ("cap_add", "pids_limit", "nofile")
    )
    profile = f"seccomp={(docker / 'seccomp.json').as_posix()}"
    security = re.findall(r"^      - ([a-z-]+=.*)$", host, flags=re.M)
    others = [name for name in secrets if name != "token"]
    options = [
        "--cap-drop ALL",
        *(f"--cap-add {name}" for name in re.findall(r"\w+", capabilities)),
        *(
            f"--security-opt {shlex.quote(option.replace('seccomp=seccomp.json', profile))}"
            for option in security
        ),
        f"--pids-limit {processes} --ulimit nofile={files}",
        *(f"--env {shlex.quote(f'{_variable(name)}={value}')}" for name, value in values.items()),
        # A name alone: its value is that of the script's own environment.
        *(f"--env {_variable(name)}" for name in ("token", *others)),
    ]
    address = {"0.0.0.0": "127.0.0.1", "[::]": "127.0.0.1"}.get(published, published)  # noqa: S104
    given = {
        "image": f"fumehood:{metadata.version('fumehood')}",
        "dockerfile": _dockerfile().rstrip("\n"),
        "published": f"{published}:{settings.port}",
        "port": str(settings.port),
        "url": f"http://{address}:{settings.port}",
        "options": " \\\n    ".join(options),
        "secrets": "\n".join(f': "${{{_variable(name)}:?is a secret: set it}}"' for name in others),
    }
    script = (docker / "run.sh").read_text(encoding="utf-8")
    return re.sub("@([a-z]+)@", lambda found: given[found[1]], script).replace("\n\n\n", "\n\n")


def _check_for_containers(settings: ServerSettings, values: Mapping[str, str]) -> None:
    for name in (*_FOLDERS, "host_socket"):
        if name in values and "://" not in values[name]:
            raise InvalidArgumentError(
                field=flag_of(name),
                value=values[name],
                allowed="left out: the containers keep this in volumes",
            )

    if settings.port == 0:
        raise InvalidArgumentError(field="--port", value=0, allowed="a port that is known beforehand")


def _published(settings: ServerSettings) -> str:
    """Returns the address of this machine at which a container is published."""
    address = {"localhost": "127.0.0.1"}.get(settings.host, settings.host)
    return f"[{address}]" if ":" in address else address


def _given(settings: ServerSettings, sources: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the settings that were given, as text, without secrets; and the names of the secret ones."""
    values, secrets = {}, []

    for name, source in sources.items():
        if source == "default":
            continue

        value = getattr(settings, name)

        if is_secret(name, value):
            secrets.append(name)
        else:
            values[name] = _text(value)

    return values, secrets


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    return ",".join(value) if isinstance(value, tuple) else str(value)


def _variable(name: str) -> str:
    return next(variable_of(item) for item in fields(ServerSettings) if item.name == name)


def _unit_word(text: str, *, is_quoted: bool = False) -> str:
    """Returns a word for a systemd unit, with systemd's special characters escaped."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{text}"' if is_quoted or re.search(r"\s", text) else text


def _dockerfile() -> str:
    """Returns the Dockerfile, changed to install the released package of this version in place of a checkout."""
    text = (_DEPLOYMENT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    package = f"fumehood[data,fonts,server,postgres,mcp]=={metadata.version('fumehood')}"
    install = f"RUN pip install --no-cache-dir '{package}'\n"
    text = re.sub(r"^ARG EXTRAS.*&& rm -rf /src\n", lambda _: install, text, flags=re.M | re.S)
    script = "/usr/local/libexec/fumehood/own-cgroup.sh"
    text = re.sub(
        r"^COPY --chmod=0755 .*$",
        f"RUN install -D -m 0755 {_IMAGE_PACKAGES}/fumehood/deployment/own-cgroup.sh {script}",
        text,
        flags=re.M,
    )
    return re.sub(r"\A(?:#.*\n)+", "", text)


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}".rstrip() + "\n" for line in text.splitlines())


def _with_head(text: str, head: list[str]) -> str:
    """Returns the file with its leading comments replaced."""
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + re.sub(r"\A(?:#.*\n)+", "", text)
