"""Packages from an index, only for sandboxes that were made with a network; and a notebook of what was done."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Connect, new_sandbox, over_stdio, play, run, text_of


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on the loopback with one package, `bouquet`; gives its address."""
    shelf = tmp_path / "simple" / "bouquet"
    shelf.mkdir(parents=True)
    wheel = "bouquet-1.0-py3-none-any.whl"
    (shelf / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    folder = "bouquet-1.0.dist-info"

    with zipfile.ZipFile(shelf / wheel, "w") as archive:
        archive.writestr("bouquet.py", "roses = 12")
        archive.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: bouquet\nVersion: 1.0\n")
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")

    serve = functools.partial(_Quiet, directory=str(tmp_path))

    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.2:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_hints_name_the_tools_that_there_are(index: str) -> None:
    """A missing package: how to get it with these tools, as far as the host's user allows a network at all."""

    missing = {"code": "import duckdb_x"}

    async def scene() -> None:
        async with over_stdio(PIP_INDEX_URL=index, PIP_CONFIG_FILE="/dev/null") as client:
            told = text_of(await client.call_tool("run_code", missing))
            assert "create_sandbox and network `pip`, then call install_packages" in told
            assert "cannot be installed from here" not in told

            made = await client.call_tool("create_sandbox", {"network": "pip"})
            place = {"sandbox_id": made.structured_content["sandbox_id"]}
            told = text_of(await client.call_tool("run_code", {**missing, **place}))
            assert "Install it with install_packages" in told
            assert "%pip" not in told

    async def without() -> None:
        async with over_stdio(FUMEHOOD_MAX_NETWORK="none") as client:
            told = text_of(await client.call_tool("run_code", missing))
            assert "cannot be installed from here" in told
            assert "create_sandbox" not in told.partition("Hint:")[2].partition("[")[0]

    play(scene)
    play(without)


def test_packages_come_from_the_index_of_the_host(index: str) -> None:
    async def scene() -> None:
        async with over_stdio(PIP_INDEX_URL=index, PIP_CONFIG_FILE="/dev/null") as client:
            made = await client.call_tool("create_sandbox", {"network": "pip"})
            assert made.structured_content["network"] == "pip"
            place = made.structured_content["sandbox_id"]
            done = await client.call_tool(
                "install_packages", {"sandbox_id": place, "packages": ["bouquet>=1"]}
            )
            assert not done.is_error, text_of(done)
            assert (await run(client, "import bouquet; bouquet.roses", place)).structured_content[
                "value"
            ] == "12"

            missing = await client.call_tool(
                "install_packages", {"sandbox_id": place, "packages": ["nothing"]}
            )
            assert missing.is_error
            assert "No matching distribution" in text_of(missing)

            for odd in (["--find-links=http://evil"], [], ["a\nb"]):
                refused = await client.call_tool("install_packages", {"sandbox_id": place, "packages": odd})
                assert "packages" in text_of(refused)

            # More than the index is for the user to allow.
            refused = await client.call_tool("create_sandbox", {"network": "internet"})
            assert refused.is_error
            assert "max_network" in text_of(refused)

    play(scene)


def test_without_a_network_it_says_how_to_get_one(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            refused = await client.call_tool(
                "install_packages", {"sandbox_id": place, "packages": ["bouquet"]}
            )
            assert refused.is_error
            assert "create_sandbox and network `pip`" in text_of(refused)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


def test_what_was_done_becomes_a_notebook(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            await run(client, "x = 6 * 7", place)
            await run(client, "print(x)\nx", place)
            written = await client.call_tool("to_notebook", {"sandbox_id": place})
            links = [item for item in written.content if item.type == "resource_link"]
            assert [item.mime_type for item in links] == ["application/x-ipynb+json"]
            contents = (await client.read_resource(links[0].uri)).contents[0]
            cells = json.loads(contents.text)["cells"]
            assert ["".join(cell["source"]) for cell in cells] == ["x = 6 * 7", "print(x)\nx"]
            assert cells[1]["outputs"][-1]["data"]["text/plain"] == "42"
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)
