"""`pip install` in a sandbox, from the index that this machine's own pip is set to, and from nowhere else."""

from __future__ import annotations

import asyncio
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.wheels import make_wheel

from fumehood.egress import route
from fumehood.egress.route import pip_settings, read_pip_settings
from fumehood.errors import InvalidArgumentError
from fumehood.templates import requirements

_NAME = "packages.test"
# Settings of pip are this process's own: the engine that reads them is one of its own, too.
_PROGRAM = """
import sys
from fumehood import CommandExitError, Network, Sandbox

port = sys.argv[1]
network = Network(presets=["pip"], allow=[f"127.0.0.1:{port}"], hosts={"packages.test": "127.0.0.1"})

with Sandbox(network=network) as sandbox:
    sandbox.commands.run("pip install fumehood-test-wheel", timeout=100)
    print(sandbox.run_code("import fumehood_test_wheel; fumehood_test_wheel.greet('you')").text)

    try:
        elsewhere = "pip download --retries 0 --trusted-host elsewhere.test -i http://elsewhere.test/simple"
        sandbox.commands.run(f"{elsewhere} fumehood-test-wheel")
    except CommandExitError as error:
        print("elsewhere", error.exit_code)

    print(sorted({(record.name, record.verdict) for record in sandbox.egress_log()}))
    print(sandbox.get_info().network.presets)

    # The credentials of the settings stay here.
    print("hush" in sandbox.commands.run("env").stdout)
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[int]:
    """A package index on the loopback; its port."""
    folder = tmp_path / "index"
    page = folder / "simple" / "fumehood-test-wheel"
    page.mkdir(parents=True)
    name = "fumehood_test_wheel-1.0-py3-none-any.whl"
    (page / name).write_bytes(make_wheel("fumehood_test_wheel"))
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_pip_installs_from_the_index_of_this_machine(index):
    """A real pip inside, with the address and without the credentials; another index is refused."""
    envs = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "FUMEHOOD_"))}
    envs |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://somebody:hush@{_NAME}:{index}/simple",
        "PIP_TRUSTED_HOST": _NAME,
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(index)], env=envs, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer, elsewhere, seen, presets, leaked = done.stdout.splitlines()
    assert (answer, elsewhere, presets, leaked) == ("'hello you'", "elsewhere 1", "('pip',)", "False")
    assert seen == f"[('elsewhere.test', 'denied'), ('{_NAME}', 'allowed')]"


@pytest.mark.parametrize(
    ("said", "rules", "envs"),
    [
        ("", ("pypi.org:443", "files.pythonhosted.org:443"), {"PIP_INDEX_URL": "https://pypi.org/simple"}),
        (
            "global.index-url='https://a.example.com/simple'\n:env:.index-url='https://b.example.com:8443/simple'\n",
            ("b.example.com:8443",),
            {"PIP_INDEX_URL": "https://b.example.com:8443/simple"},
        ),
        (
            ":env:.config-file='/x'\nglobal.extra-index-url='\\nhttps://u:p@c.example.com/s\\nhttp://d.example.com/s'\n"
            "global.index-url='https://token@a.example.com/simple'\ninstall.trusted-host='d.example.com\\ne.example.com'\n"
            "list.index-url='https://never.example.com/'\n",
            ("a.example.com:443", "c.example.com:443", "d.example.com:80"),
            {
                "PIP_INDEX_URL": "https://a.example.com/simple",
                "PIP_EXTRA_INDEX_URL": "https://c.example.com/s http://d.example.com/s",
                "PIP_TRUSTED_HOST": "d.example.com e.example.com",
            },
        ),
        (
            "global.index-url='http://[2001:db8::1]:3141/root'\n",
            ("[2001:db8::1]:3141",),
            {"PIP_INDEX_URL": "http://[2001:db8::1]:3141/root"},
        ),
    ],
)
def test_the_settings_of_pip_become_rules(said, rules, envs):
    """As pip itself lists them: the environment over the section over the rest, and no credentials."""
    settings = read_pip_settings(said)
    assert settings.rules == rules
    assert settings.envs == envs


@pytest.mark.parametrize("setting", ["index-url", "extra-index-url"])
@pytest.mark.parametrize(
    "address", ["file:///srv/index", "ftp://a.example.com/", "a.example.com/simple", "https:///x"]
)
def test_an_index_that_is_no_address_of_the_web_is_refused(setting, address):
    """The preset then stands for nothing that could be allowed; the address may hold a credential, and is not told."""
    with pytest.raises(InvalidArgumentError, match=f"the {setting} of the host's own pip") as caught:
        read_pip_settings(f"global.{setting}={address!r}\n")

    assert address not in str(caught.value)


def test_pip_of_this_machine_imports_nothing_of_the_working_directory(tmp_path, monkeypatch):
    """Files that a sandbox made may have been brought there, and would run outside of it."""
    for name in ("pip", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()")

    monkeypatch.chdir(tmp_path)
    # The control: without care they are imported.
    subprocess.run([sys.executable, "-m", "pip"], check=True)
    (tmp_path / "ran").unlink()

    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(route, "_asked", None)
    asyncio.run(pip_settings())
    requirements._pip_configuration()
    assert not (tmp_path / "ran").exists()
