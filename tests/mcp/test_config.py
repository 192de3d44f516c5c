"""The snippets for hosts: each is what its host reads, the guide shows them, and the program that they name works."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from tests import forked

from fumehood.mcp.hosts import HOSTS, Launch, config_for
from fumehood.mcp.toolbox import TOOLS

from .conftest import ARGV, play, run

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "mcp.md"
SHOWN = Launch(argv=("/opt/fumehood/bin/python", *ARGV))
SERVER = "https://sandboxes.example.com/mcp"
# Where each host looks for servers in its file.
PLACES = {"vscode": "servers", "zed": "context_servers", "codex": "mcp_servers"}


def printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["mcp", *arguments], environ=os.environ, folder=os.getcwd())


def read(host: str, text: str) -> dict[str, Any]:
    data = tomllib.loads(text) if HOSTS[host].file.endswith(".toml") else json.loads(text)
    entry: dict[str, Any] = data[PLACES.get(host, "mcpServers")]["fumehood"]
    return entry


@pytest.mark.parametrize("host", HOSTS)
def test_the_guide_shows_what_is_printed(host: str) -> None:
    assert config_for(host, SHOWN) in GUIDE.read_text()
    entry = read(host, config_for(host, SHOWN))
    assert (entry["command"], entry["args"]) == (SHOWN.argv[0], [*ARGV])


@pytest.mark.parametrize("host", HOSTS)
def test_a_server_is_named_with_its_key(host: str) -> None:
    text = config_for(host, Launch(argv=SHOWN.argv, url=SERVER))
    entry = read(host, text)
    address = entry.get("url") or entry.get("httpUrl") or entry["env"]["FUMEHOOD_URL"] + "/mcp"
    assert address == SERVER
    assert any(word in text for word in ("FUMEHOOD_API_KEY", "YOUR_KEY", "${input:fumehood-key}"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765/mcp"),
        ("https://example.com/sandboxes/mcp/", "https://example.com/sandboxes/mcp"),
        ("https://example.com/sandboxes", "https://example.com/sandboxes/mcp"),
    ],
)
def test_a_server_may_be_named_without_the_path(given: str, url: str) -> None:
    """What is printed works: the address that people know is that of the server."""
    done = printed("--print-config", "cursor", "--url", given)
    assert (done.returncode, read("cursor", done.stdout)["url"]) == (0, url)


def test_what_is_no_address_of_a_server_is_refused() -> None:
    done = printed("--print-config", "cursor", "--url", "host:8765")
    assert (done.returncode, done.stdout) == (64, "")
    assert "--url='host:8765' is refused" in done.stderr


def test_the_program_that_is_printed_works() -> None:
    done = printed("--print-config", "cursor")
    entry = json.loads(done.stdout)["mcpServers"]["fumehood"]

    async def scene() -> None:
        server = StdioServerParameters(command=entry["command"], args=entry["args"])

        async with Client(server) as client:
            assert (await run(client, "6 * 7")).structured_content["value"] == "42"

    play(scene)


def test_the_guide_names_every_tool() -> None:
    shown = GUIDE.read_text()
    assert [tool.name for tool in TOOLS if f"`{tool.name}" not in shown] == []


def test_an_unknown_host_is_reported_which_there_are() -> None:
    done = printed("--print-config", "emacs")
    assert (done.returncode, done.stdout) == (64, "")
    assert "claude-desktop" in done.stderr


def test_what_is_wrong_is_said_before_anything_is_served() -> None:
    done = printed("--max-network", "all")
    assert (done.returncode, done.stdout) == (64, "")
    assert "none, pip, listed, internet" in done.stderr
