"""`fumehood mcp` for the one host that has started it: a last sandbox, short names, options of the user."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from fumehood import AsyncSandbox, Template
from fumehood.mcp.setup import Setup

from .conftest import at, over_http, over_stdio, play, run, text_of
from .test_config import printed, read

# What a host sends to its model of each tool, with each request.
_MAX_CHARS = 6_000


async def told(client: Client, tool: str, **given: Any) -> str:
    """Calls a tool and gives its text."""
    return text_of(await client.call_tool(tool, given))


def test_tools_cost_a_model_little(server: Any) -> None:
    """Names, descriptions and arguments of all tools; nothing of the library that makes the schemas."""

    async def scene() -> None:
        for reached in (over_stdio(), over_http(server.url, server.token)):
            async with reached as client:
                tools = (await client.list_tools()).tools
                sent = [
                    {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                    for tool in tools
                ]
                assert len(json.dumps(sent)) <= _MAX_CHARS
                schemas = json.dumps([[tool.input_schema, tool.output_schema] for tool in tools])
                assert not {"$defs", "$ref", "anyOf", '"title": "'} & {
                    word for word in ("$defs", "$ref", "anyOf", '"title": "') if word in schemas
                }
                required = {tool.name: tool.input_schema.get("required", []) for tool in tools}
                is_stdio = client.session.instructions is not None and "last" in client.session.instructions
                assert ("sandbox_id" in required["list_files"]) is not is_stdio
                assert "sandbox_id" not in required["run_code"]

    play(scene)


def test_a_call_without_a_sandbox_goes_on_in_the_last_one(server: Any) -> None:
    """Whatever the tool; calls that come at once have the same first one; names are short."""

    async def scene() -> None:
        async with over_stdio(**at(server)) as client:
            firsts = await asyncio.gather(*(run(client, f"x{number} = {number}") for number in range(3)))
            assert {first.structured_content["sandbox_id"] for first in firsts} == {"s1"}
            assert (await run(client, "x0 + x1 + x2")).structured_content["value"] == "3"
            assert "wrote /home/user/a.txt" in await told(client, "write_file", path="a.txt", content="here")
            assert await told(client, "run_command", command="cat a.txt") == "here"
            await client.call_tool("checkpoint", {"name": "before"})
            await run(client, "x0 = 9")
            await client.call_tool("rollback", {"checkpoint_id": "before"})
            assert (await run(client, "x0")).structured_content["value"] == "0"

            # The one that was named or made last is the last one.
            assert "made sandbox s2: running" in await told(client, "create_sandbox")
            assert "NameError" in await told(client, "run_code", code="x0")
            assert (await run(client, "x0", "s1")).structured_content["value"] == "0"
            assert (await run(client, "x0")).structured_content["sandbox_id"] == "s1"
            assert "s1: running" in await told(client, "list_sandboxes")
            assert (await client.read_resource("sandbox://s1/home/user/a.txt")).contents[0].text == "here"

            missing = await told(client, "run_code", code="1", sandbox_id="s9")
            assert missing.startswith("no sandbox has the id 's9'")

    play(scene)


def test_the_end_of_the_last_one_is_reported(server: Any) -> None:
    """Code goes on in a new one, and the answer tells that; other tools have nothing to go on with."""

    async def scene() -> None:
        async with over_stdio(**at(server)) as client:
            await client.call_tool("create_sandbox", {"idle_timeout": 4})
            # Beside other work a call may take longer than a second; then there would be no last one.
            await run(client, "x = 1")

            while "s1: " in await told(client, "list_sandboxes"):
                await asyncio.sleep(0.1)

            assert "sandbox 's1' has ended" in await told(client, "read_file", path="a.txt")
            fresh = await run(client, "y = 2")
            assert text_of(fresh).startswith(
                "[s1 has ended; this ran in the new s2, without its variables and files"
            )
            assert text_of(await run(client, "y")) == "2"
            assert "sandbox s2 has ended" in await told(client, "kill_sandbox", sandbox_id="s2")
            # A killed one as well, also before an error, and for the tools beside run_code.
            failed = await told(client, "run_code", code="y")
            assert failed.startswith(
                "[s2 has ended; this ran in the new s3, without its variables and files]"
            )
            assert "NameError" in failed
            assert "has ended" not in text_of(await run(client, "z = 3"))
            await client.call_tool("fork_sandbox", {})
            await client.call_tool("kill_sandbox", {"sandbox_id": "s3"})
            missing = await told(client, "read_file", path="no.txt")
            assert missing.startswith("[s3 has ended; this ran in the new s5")
            assert "(still there: s4)]" in missing

    play(scene)


def test_to_copy_a_folder_is_no_command_of_the_user(tmp_path: Path) -> None:
    """What makes the copies read-only is in no record and no history, and leaves no variable."""
    (tmp_path / "a'b.csv").write_text("1")

    async def scene() -> None:
        async with AsyncSandbox(template=Template(name="plain", preload=())) as sandbox:
            before = (await sandbox.run_code("sorted(globals())")).text
            await Setup(folder=str(tmp_path)).fill(sandbox)
            assert (await sandbox.activity.commands()).items == ()
            assert (await sandbox.files.get_info("/mnt/data/a'b.csv")).permissions == "-r--r--r--"
            after = await sandbox.run_code("sorted(name for name in globals() if not name.startswith('_'))")
            assert set(ast.literal_eval(after.text)) <= set(ast.literal_eval(before))
            assert len((await sandbox.get_record()).cells) == 2

    asyncio.run(scene())


def test_a_folder_of_the_user_is_at_hand_and_stays_as_it_is(tmp_path: Path) -> None:
    """As copies, without hidden files and links; what code makes comes back, and replaces nothing of the user's."""
    folder, output = tmp_path / "data", tmp_path / "out"
    (folder / "more").mkdir(parents=True)
    (folder / "penguins.csv").write_text("a,b\n1,2\n")
    (folder / "more" / "n.txt").write_text("n")
    (folder / ".env").write_text("SECRET=1")
    (folder / "link").symlink_to("/etc/passwd")
    single = tmp_path / "single.csv"
    single.write_text("s")
    output.mkdir()
    (output / "mine.txt").write_text("the user's")
    options = ["--folder", str(folder), "--output", str(output), "--file", str(single)]
    options += ["--memory", "700M", "--timeout", "7", "--env", "MODE=test"]

    async def scene() -> None:
        async with over_stdio(options=options) as client:
            listed = await client.call_tool("list_files", {"path": "/mnt/data", "depth": 2})
            paths = [entry["path"] for entry in listed.structured_content["files"] if entry["type"] == "file"]
            assert paths == ["/mnt/data/more/n.txt", "/mnt/data/penguins.csv", "/mnt/data/single.csv"]
            refused = await told(client, "run_code", code="open('/mnt/data/penguins.csv', 'w')")
            assert "That file is read-only: write to a file of another name." in refused

            made = await run(
                client, "import os\nfor n in ('new.txt', '/mnt/data/mine.txt'): open(n, 'w').write('1')"
            )
            assert "[brought to the user: new.txt]" in text_of(made)
            assert "mine.txt is already there" in text_of(made)
            again = await told(client, "run_command", command="echo 2 > new.txt")
            assert "[brought to the user: new.txt]" in again
            assert "brought" not in text_of(await run(client, "os.environ['MODE'], open('new.txt').read()"))

            listed = await client.call_tool("list_sandboxes", {})
            assert listed.structured_content["sandboxes"][0]["memory_bytes"] == 700 << 20
            (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "run_code"]
            assert tool.input_schema["properties"]["timeout"]["description"] == "Default 7"

    play(scene)
    assert (output / "new.txt").read_text() == "2\n"
    assert (output / "mine.txt").read_text() == "the user's"
    assert sorted(path.name for path in output.iterdir()) == ["mine.txt", "new.txt"]
    assert (folder / "penguins.csv").read_text() == "a,b\n1,2\n"


def test_calls_that_come_at_once_keep_to_their_own_sandboxes(tmp_path: Path) -> None:
    """What one has made comes back with its own answer, though another names another sandbox meanwhile."""
    output = tmp_path / "out"
    output.mkdir()

    async def scene() -> None:
        async with over_stdio(options=["--output", str(output)]) as client:
            await run(client, "1")
            await client.call_tool("create_sandbox", {})
            slow = "import time\ntime.sleep(1)\nopen('first.txt', 'w').write('1')"
            first, second = await asyncio.gather(
                run(client, slow, "s1"), run(client, "open('second.txt', 'w').write('2')", "s2")
            )
            assert "[brought to the user: first.txt]" in text_of(first)
            assert "[brought to the user: second.txt]" in text_of(second)

    play(scene)
    assert {path.name for path in output.iterdir()} == {"first.txt", "second.txt"}


def test_each_of_several_calls_is_reported_that_its_sandbox_has_ended(server: Any) -> None:
    """One of them begins the new one; the variables of all are gone."""

    async def scene() -> None:
        async with over_stdio(**at(server)) as client:
            await client.call_tool("create_sandbox", {"idle_timeout": 1})

            while "s1: " in await told(client, "list_sandboxes"):
                await asyncio.sleep(0.1)

            answers = await asyncio.gather(*(run(client, f"x{number} = {number}") for number in range(3)))
            assert all("[s1 has ended; this ran in the new s2" in text_of(one) for one in answers)

    play(scene)


def test_only_some_tools_are_served(server: Any) -> None:
    """Hints then name none of the others."""

    async def scene() -> None:
        async with over_stdio(options=["--tools", "run_code,list_files"], **at(server)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"run_code", "list_files"}
            missing = await told(client, "run_code", code="import duckdb_x")
            assert "Nothing can be installed here" in missing
            assert "install_packages" not in missing
            assert (await client.call_tool("kill_sandbox", {"sandbox_id": "s1"})).is_error

    play(scene)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tools", "run"], "--tools='run' is refused"),
        (["--folder", "/nowhere"], "--folder='/nowhere' is refused"),
        (["--file", "/nowhere.csv"], "/nowhere.csv"),
        (["--memory", "5"], "--memory=5 is refused"),
        (["--timeout", "0"], "--timeout"),
        (["--output", "/proc/nowhere"], "--output='/proc/nowhere' is refused"),
        (["--http", "--folder", "/tmp"], "without --http alone"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_served(options: list[str], said: str) -> None:
    done = printed(*options)
    assert done.returncode != 0
    assert done.stdout == ""
    assert said in done.stderr


def test_options_are_in_the_snippet_for_a_host(tmp_path: Path) -> None:
    """With whole paths, because a host starts the program elsewhere."""
    done = printed("--print-config", "cursor", "--folder", str(tmp_path), "--memory", "1G", "--strict")
    arguments = read("cursor", done.stdout)["args"]
    assert arguments[4:] == ["--memory", str(1 << 30), "--strict", "--folder", str(tmp_path)]
