"""What the tools do, by each transport and each version of the protocol."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from mcp import Client

from .conftest import MODES, Connect, new_sandbox, over_http, over_stdio, play, run, text_of

PNG = b"\x89PNG\r\n\x1a\n"
TOOLS = {
    "checkpoint",
    "create_sandbox",
    "fork_sandbox",
    "install_packages",
    "kill_sandbox",
    "list_files",
    "list_sandboxes",
    "read_file",
    "rollback",
    "run_code",
    "run_command",
    "to_notebook",
    "write_file",
}


def test_code_in_a_fence_is_run(connect: Connect) -> None:
    """Some models write an argument as they write a message."""

    async def scene() -> None:
        async with connect() as client:
            done = await run(client, "```python\nx = 6\nx * 7\n```\n")
            assert done.structured_content["value"] == "42"

    play(scene)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_state_stays_from_call_to_call(transport: str, mode: str, server: Any) -> None:
    """One conversation: code, state, an error, a figure, a file; then the sandbox is ended."""

    async def scene() -> None:
        # Over stdio with an engine of its own, as hosts start it.
        reached = over_stdio(mode) if transport == "stdio" else over_http(server.url, server.token, mode)

        async with reached as client:
            assert client.session.protocol_version == MODES[mode]
            first = await run(client, "numbers = [1, 2, 3]\nprint('made')\nsum(numbers)")
            data = first.structured_content
            place = data["sandbox_id"]
            assert (data["is_new_sandbox"], data["stdout"], data["value"]) == (True, "made\n", "6")
            assert text_of(first).startswith("made\n6")
            # Over stdio the next call goes on here by itself.
            assert (place in text_of(first)) == (transport == "http")

            again = await run(client, "numbers.append(4); numbers", place)
            assert (again.structured_content["value"], text_of(again)) == ("[1, 2, 3, 4]", "[1, 2, 3, 4]")

            failed = await client.call_tool("run_code", {"code": "x = 7\n1/0", "sandbox_id": place})
            assert failed.is_error
            assert failed.structured_content["error"]["name"] == "ZeroDivisionError"
            assert "line 2: 1/0" in text_of(failed)
            assert (await run(client, "x", place)).structured_content["value"] == "7"

            words = {"code": "WORD=kept; echo $WORD", "language": "bash", "sandbox_id": place}
            assert text_of(await client.call_tool("run_code", words)) == "kept"

            drawn = await run(client, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", place)
            pictures = [item for item in drawn.content if item.type == "image"]
            assert [item.mime_type for item in pictures] == ["image/png"]
            assert base64.b64decode(pictures[0].data).startswith(PNG)

            assert place in text_of(await client.call_tool("list_sandboxes", {}))
            ended = await client.call_tool("kill_sandbox", {"sandbox_id": place})
            assert ended.structured_content == {"sandbox_id": place, "was_alive": True}
            again = await client.call_tool("kill_sandbox", {"sandbox_id": place})
            assert again.structured_content["was_alive"] is False

    play(scene)


def test_files_and_commands(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            await _files(client, place)
            await _commands(client, place)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


async def _files(client: Client, place: str) -> None:
    text = "".join(f"line {number} ä\n" for number in range(1, 11))
    written = await client.call_tool("write_file", {"sandbox_id": place, "path": "a/b.txt", "content": text})
    assert written.structured_content["path"] == "/home/user/a/b.txt"

    part = await client.call_tool(
        "read_file", {"sandbox_id": place, "path": "a/b.txt", "first_line": 3, "max_lines": 2}
    )
    assert part.structured_content["text"] == "line 3 ä\nline 4 ä\n"
    assert part.structured_content["next_line"] == 5
    assert "first_line=5" in text_of(part)
    last = await client.call_tool("read_file", {"sandbox_id": place, "path": "a/b.txt", "first_line": 10})
    assert (last.structured_content["text"], last.structured_content["next_line"]) == ("line 10 ä\n", None)

    bytes_given = {"sandbox_id": place, "path": "x.bin", "content": "AAEC", "encoding": "base64"}
    assert (await client.call_tool("write_file", bytes_given)).structured_content["size_bytes"] == 3
    binary = await client.call_tool("read_file", {"sandbox_id": place, "path": "x.bin"})
    assert binary.structured_content["text"] is None
    links = [item for item in binary.content if item.type == "resource_link"]
    assert [(item.uri, item.mime_type, item.size) for item in links] == [
        (f"sandbox://{place}/home/user/x.bin", "application/octet-stream", 3)
    ]

    await run(client, "import matplotlib.pyplot as p; p.plot([1]); p.savefig('f.png'); p.close()", place)
    picture = await client.call_tool("read_file", {"sandbox_id": place, "path": "f.png"})
    assert [item.type for item in picture.content] == ["text", "image"]

    listed = await client.call_tool("list_files", {"sandbox_id": place, "path": "a"})
    assert [entry["path"] for entry in listed.structured_content["files"]] == ["/home/user/a/b.txt"]


async def _commands(client: Client, place: str) -> None:
    command = {"sandbox_id": place, "command": "cat b.txt | wc -l; echo oh >&2", "cwd": "a"}
    done = await client.call_tool("run_command", command)
    assert not done.is_error
    assert (done.structured_content["stdout"], done.structured_content["stderr"]) == ("10\n", "oh\n")

    failed = await client.call_tool("run_command", {"sandbox_id": place, "command": "echo so; exit 3"})
    assert (failed.is_error, failed.structured_content["exit_code"]) == (True, 3)
    assert text_of(failed) == "so\n[exit code 3]"

    late = await client.call_tool("run_command", {"sandbox_id": place, "command": "sleep 60", "timeout": 0.3})
    assert (late.structured_content["timed_out"], late.structured_content["exit_code"]) == (True, None)


def test_what_was_spoilt_is_taken_back(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            await run(client, "rows = [1, 2, 3]\nopen('kept.txt', 'w').write('before')", place)
            kept = await client.call_tool("checkpoint", {"sandbox_id": place, "name": "clean"})
            assert not kept.is_error, text_of(kept)
            await run(client, "rows.clear()\nopen('kept.txt', 'w').write('after')", place)

            for point in (kept.structured_content["checkpoint_id"], "clean"):
                back = await client.call_tool("rollback", {"sandbox_id": place, "checkpoint_id": point})
                assert not back.is_error, text_of(back)
                result = await run(client, "rows, open('kept.txt').read()", place)
                assert result.structured_content["value"] == "([1, 2, 3], 'before')"
                await run(client, "rows.clear()", place)

            again = await client.call_tool("checkpoint", {"sandbox_id": place, "name": "clean"})
            assert text_of(again).endswith("the name is the new one's, the older one is checkpoint-1")
            await run(client, "rows.append(4)", place)
            await client.call_tool("rollback", {"sandbox_id": place, "checkpoint_id": "clean"})
            result = await run(client, "rows", place)
            assert result.structured_content["value"] == "[]"
            missing = await client.call_tool("rollback", {"sandbox_id": place, "checkpoint_id": "nowhere"})
            assert missing.is_error
            assert "nowhere" in text_of(missing)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


def test_several_ways_are_tried_from_one_state(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            await run(client, "rows = [1, 2, 3]\nopen('kept.txt', 'w').write('before')", place)
            await client.call_tool("checkpoint", {"sandbox_id": place, "name": "three"})
            await run(client, "rows.append(4)", place)
            forked = await client.call_tool("fork_sandbox", {"sandbox_id": place, "count": 2})
            assert not forked.is_error, text_of(forked)
            forks = [fork["sandbox_id"] for fork in forked.structured_content["forks"]]
            assert all(fork in text_of(forked) for fork in forks)

            for way, fork in enumerate(forks):
                await run(client, f"rows.append({way + 5}); open('kept.txt', 'w').write('way {way}')", fork)

            for way, fork in enumerate(forks):
                result = await run(client, "rows, open('kept.txt').read()", fork)
                assert result.structured_content["value"] == f"([1, 2, 3, 4, {way + 5}], 'way {way}')"

            mine = await run(client, "rows, open('kept.txt').read()", place)
            assert mine.structured_content["value"] == "([1, 2, 3, 4], 'before')"

            earlier = await client.call_tool("fork_sandbox", {"sandbox_id": place, "checkpoint": "three"})
            (fork,) = [fork["sandbox_id"] for fork in earlier.structured_content["forks"]]
            assert (await run(client, "rows", fork)).structured_content["value"] == "[1, 2, 3]"
            missing = await client.call_tool("fork_sandbox", {"sandbox_id": place, "checkpoint": "nowhere"})
            assert missing.is_error
            assert "nowhere" in text_of(missing)

            for one in (place, fork, *forks):
                ended = await client.call_tool("kill_sandbox", {"sandbox_id": one})
                assert ended.structured_content["was_alive"]

    play(scene)


def test_progress_comes_while_code_runs(connect: Connect) -> None:
    """The output is there before the end; without output there is at least the time."""

    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            seen: list[tuple[float, float | None, str | None]] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                seen.append((progress, total, message))

                if message and awaited in message:
                    # Only what was reported lets the code go on.
                    done = {"sandbox_id": place, "path": "go", "content": ""}
                    await client.call_tool("write_file", done)

            awaited = "waiting"
            wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nos.remove('go')"
            given = {"code": f"print('waiting', flush=True)\n{wait}", "sandbox_id": place, "timeout": 30}
            result = await client.call_tool("run_code", given, progress_callback=note)
            assert not result.is_error, text_of(result)
            assert (30.0, "waiting") in [one[1:] for one in seen]

            awaited = "running for"
            result = await client.call_tool("run_code", given | {"code": wait}, progress_callback=note)
            assert not result.is_error, text_of(result)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


def test_files_are_resources(connect: Connect) -> None:
    """With their own types; text as text, bytes as bytes."""

    async def scene() -> None:
        async with connect() as client:
            templates = (await client.list_resource_templates()).resource_templates
            assert [item.uri_template for item in templates] == ["sandbox://{sandbox_id}/{+path}"]
            assert (await client.list_resources()).resources == []

            place = await new_sandbox(client)
            code = (
                "import os; os.makedirs('d e'); open('d e/t ü.csv', 'w').write('a,b')\n"
                "open('x.png', 'wb').write(bytes([1, 255])); open('plain', 'w').write('ä')\n"
                "open('big.txt', 'wb').truncate(5 << 20)"
            )
            await run(client, code, place)
            await _resources(client, place)
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


async def _resources(client: Client, place: str) -> None:
    root = f"sandbox://{place}/home/user"
    table = (await client.read_resource(f"{root}/d%20e/t%20%C3%BC.csv")).contents[0]
    assert (table.mime_type, table.text) == ("text/csv", "a,b")
    picture = (await client.read_resource(f"{root}/x.png")).contents[0]
    assert (picture.mime_type, base64.b64decode(picture.blob)) == ("image/png", bytes([1, 255]))
    plain = (await client.read_resource(f"{root}/plain")).contents[0]
    assert (plain.mime_type, plain.text) == ("text/plain", "ä")

    for address, said in (
        (f"{root}/big.txt", "larger than 4 MiB"),
        (f"{root}/nothing", "list_files"),
        (f"{root}", "directory"),
        (f"sandbox://{'a' * 32}/etc/passwd", "no sandbox has the id"),
        ("file:///etc/passwd", "no address of a file"),
    ):
        with pytest.raises(Exception, match=said):
            await client.read_resource(address)


def test_hosts_are_reported_what_tools_do() -> None:
    """Names, annotations, schemas; each argument has a description, and each tool says what it gives."""

    async def scene() -> None:
        async with over_stdio() as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) >= TOOLS
            assert "go on in the last sandbox" in (client.session.instructions or "")

            for tool in tools.values():
                assert tool.description
                assert tool.output_schema
                properties = tool.input_schema["properties"]
                assert all(item.get("description") for item in properties.values()), tool.name

            marks = {
                name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
                for name, tool in tools.items()
            }
            assert marks["list_files"] == (True, False)
            assert marks["kill_sandbox"] == (False, True)
            assert marks["run_code"] == (False, False)

    play(scene)
