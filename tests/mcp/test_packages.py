"""Packages from an index, only for sandboxes that were made with a network; and a notebook of what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.package_index import package_index

from .conftest import Connect, new_sandbox, over_stdio, play, run, text_of


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index with one package, `bouquet`; gives its address."""
    with package_index(tmp_path) as address:
        yield address


def test_hints_name_the_tools_that_there_are(index: str) -> None:
    """A missing package: how to get it with these tools, as far as the host's user allows a network at all."""

    missing = {"code": "import duckdb_x"}

    async def scene() -> None:
        async with over_stdio(PIP_INDEX_URL=index, PIP_CONFIG_FILE="/dev/null") as client:
            told = text_of(await client.call_tool("run_code", missing))
            assert "create_sandbox and network `pip`, then call install_packages" in told
            assert "Nothing can be installed" not in told

            made = await client.call_tool("create_sandbox", {"network": "pip"})
            place = {"sandbox_id": made.structured_content["sandbox_id"]}
            told = text_of(await client.call_tool("run_code", {**missing, **place}))
            assert "Install it with install_packages" in told
            assert "%pip" not in told

    async def without() -> None:
        async with over_stdio(FUMEHOOD_MAX_NETWORK="none") as client:
            told = text_of(await client.call_tool("run_code", missing))
            assert "Nothing can be installed here" in told
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
