"""What neither a model nor the code it writes may do: odd arguments, odd messages, output made to hurt."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from .conftest import Connect, at, new_sandbox, play, run, text_of
from .raw import RawServer


@pytest.fixture
def raw(server: Any) -> Iterator[RawServer]:
    started = RawServer(**at(server))
    yield started
    started.close()


def test_wrong_arguments_are_reported_in_plain_words(connect: Connect) -> None:
    """What was wrong, with the value, and what the tool takes: nothing of the library that found it."""

    async def scene() -> None:
        async with connect() as client:
            for given, said in (
                ({}, "the argument `code` is missing"),
                ({"code": 7}, "the argument `code` must be a text, and is 7"),
                (
                    {"code": "1", "timeout": "soon"},
                    "the argument `timeout` must be a number, and is 'soon'",
                ),
                ({"code": "1", "timeout": 0}, "the argument `timeout` must be at least 0.1, and is 0"),
                ({"code": "1", "sandbox_id": ""}, "must have at least 1 characters, and is ''"),
            ):
                result = await client.call_tool("run_code", given)
                assert result.is_error
                assert said in text_of(result)
                assert "call run_code with code (required), language, timeout, sandbox_id" in text_of(result)
                assert "pydantic" not in text_of(result)

            word = await client.call_tool("create_sandbox", {"network": "packages"})
            assert "the argument `network` must be 'none', 'pip' or 'internet', and is 'packages'" in text_of(
                word
            )
            word = await client.call_tool("create_sandbox", {"network": "interent"})
            assert "and is 'interent'; did you mean 'internet'?" in text_of(word)

    play(scene)


def test_arguments_are_bounded(connect: Connect) -> None:
    """Each refusal says which argument it was; none ends anything."""

    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)

            for tool, given, said in (
                ("run_code", {"code": "1", "sandbox": place}, "no argument sandbox"),
                ("run_code", {"code": "1", "timeout": -1}, "timeout"),
                ("run_code", {"code": "1", "timeout": 1e9}, "timeout"),
                ("run_code", {"code": 7}, "code"),
                ("run_code", {"code": "x" * 1_000_001}, "code"),
                ("run_code", {"code": "1", "sandbox_id": "../../etc"}, "no sandbox has the id"),
                ("run_code", {"code": "1", "sandbox_id": ""}, "sandbox_id"),
                ("run_code", {"code": "1", "sandbox_id": "a" * 65}, "sandbox_id"),
                ("read_file", {"sandbox_id": place, "path": "a\0b"}, "path"),
                ("read_file", {"sandbox_id": place, "path": "/proc/1/mem"}, ""),
                ("read_file", {"sandbox_id": place, "path": "/home/user"}, "list_files"),
                ("read_file", {"sandbox_id": place, "path": "x", "first_line": 0}, "first_line"),
                ("write_file", {"sandbox_id": place, "path": "/etc/passwd", "content": ""}, ""),
                (
                    "write_file",
                    {"sandbox_id": place, "path": "x", "content": "?", "encoding": "base64"},
                    "no base64",
                ),
                ("list_files", {"sandbox_id": place, "depth": 99}, "depth"),
                ("create_sandbox", {"template": "../x"}, ""),
                ("create_sandbox", {"envs": {"A=B": "1"}}, ""),
                ("create_sandbox", {"idle_timeout": 0}, "idle_timeout"),
            ):
                result = await client.call_tool(tool, given)
                assert result.is_error, (tool, given)
                assert said in text_of(result), (tool, given, text_of(result))
                assert "Traceback" not in text_of(result)
                assert "pydantic" not in text_of(result)

            assert (await run(client, "1 + 1", place)).structured_content["value"] == "2"
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


FLOOD = """
import sys
print("head" + "x" * 900_000 + "tail")
sys.stderr.write("\\x1b]0;title\\x07\\u202e" + "e" * 500_000)
"""
FALSE_PICTURES = """
from IPython.display import publish_display_data as show
import base64
show({"image/png": base64.b64encode(b"no picture").decode()})
show({"image/png": base64.b64encode(b"\\x89PNG\\r\\n\\x1a\\n" + b"x" * 2_000_000).decode()})
show({"text/html": "<script>alert(1)</script>" * 1000})
"""


def test_results_fit_a_model(connect: Connect) -> None:
    """Text is bounded with head and tail, hidden characters are spelled out, a false picture is not passed on."""

    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            flooded = await run(client, FLOOD, place)
            text = text_of(flooded)
            assert text.startswith("headxxx")
            assert "tail" in text
            assert "characters left out" in text
            assert len(text) < 21_000
            assert not {"\x1b", "\x07", "\u202e"} & set(json.dumps(flooded.structured_content) + text)
            assert len(json.dumps(flooded.structured_content)) < 40_000
            assert flooded.structured_content["is_shortened"] is True

            shown = await run(client, FALSE_PICTURES, place)
            assert {item.type for item in shown.content} == {"text"}
            assert "its bytes are no image/png" in text_of(shown)
            assert "alert" not in text_of(shown)

            many = await run(
                client, "import matplotlib.pyplot as p\nfor i in range(7): p.figure(); p.plot([i])", place
            )
            pictures = [item for item in many.content if item.type == "image"]
            assert len(pictures) == many.structured_content["images"] == 4
            assert all(len(base64.b64decode(item.data)) < 1 << 20 for item in pictures)

            await run(client, "for i in range(500): open(f'n{i}', 'w').close()", place)
            listed = await client.call_tool("list_files", {"sandbox_id": place})
            assert len(listed.structured_content["files"]) == 200
            assert listed.structured_content["more"] >= 300
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


def test_a_long_line_of_a_file_is_cut(connect: Connect) -> None:
    async def scene() -> None:
        async with connect() as client:
            place = await new_sandbox(client)
            code = "open('a', 'w').write('ä' * 3_000_000 + '\\nend\\n'); open('b', 'w').write('x\\n' * 1_000_000)"
            await run(client, code, place)
            cut = await client.call_tool("read_file", {"sandbox_id": place, "path": "a"})
            assert (len(cut.structured_content["text"]), cut.structured_content["next_line"]) == (20_000, 2)
            after = await client.call_tool("read_file", {"sandbox_id": place, "path": "a", "first_line": 2})
            assert (after.structured_content["text"], after.structured_content["next_line"]) == (
                "end\n",
                None,
            )
            last = await client.call_tool(
                "read_file", {"sandbox_id": place, "path": "b", "first_line": 999_999}
            )
            assert last.structured_content["text"] == "x\nx\n"
            await client.call_tool("kill_sandbox", {"sandbox_id": place})

    play(scene)


def test_lines_that_are_no_messages_do_no_harm(raw: RawServer) -> None:
    """Garbage, depth, and a line longer than any message; the next message is answered."""
    raw.begin()

    for line in (b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"jsonrpc":"2.0","id":{}}'):
        raw.say(line)

    raw.say(b"x" * (17 << 20))
    assert raw.ask("tools/list", {})["result"]["tools"]
    unknown = raw.call("no_such_tool")
    assert unknown["isError"]
    assert unknown["content"][0]["text"].startswith(
        "There is no tool no_such_tool.\nNext: call one of checkpoint, "
    )
    ended = raw.call("kill_sandbox", sandbox_id="zz")
    assert (ended["isError"], ended["content"][0]["text"]) == (True, "no living sandbox has the id zz")
    assert "kept checkpoint-1 (mine): " in raw.call("checkpoint", name="mine")["content"][0]["text"]
    assert "at checkpoint-1 (mine)" in raw.call("rollback", checkpoint_id="mine")["content"][0]["text"]
    assert raw.ask("no/such/method", {})["error"]["code"] == -32601
    # Half of a character: JSON can say it, UTF-8 cannot.
    result = raw.call("run_code", code="print('[\ud83d] [\U0001f600]')")
    assert result["content"][0]["text"].startswith("[?] [\U0001f600]")


def test_standard_output_is_the_protocol_alone(raw: RawServer) -> None:
    """`heard` reads each line as a message; what children and code write goes elsewhere."""
    raw.begin()
    code = "import os; os.write(1, b'loud'); os.write(2, b'louder'); print('and so on')"
    result: dict[str, Any] = raw.call("run_code", code=code)
    assert "loud" in result["content"][0]["text"]
    assert raw.process.stdin is not None
    raw.process.stdin.close()
    assert raw.process.stdout is not None
    assert raw.process.stdout.read() == b""
    assert raw.wait() == 0


def test_a_model_that_forgets_its_sandboxes_is_reported_to_end_some(raw: RawServer, server: Any) -> None:
    """One host keeps a bounded number; what has ended makes room, whoever ended it."""
    headers = {"Authorization": f"Bearer {server.token}"}

    def living() -> set[str]:
        items = httpx2.get(f"{server.url}/v1/sandboxes", headers=headers, timeout=60).json()["items"]
        return {item["id"] for item in items}

    of_other_tests = living()
    raw.begin()
    made = [raw.call("create_sandbox")["structuredContent"]["sandbox_id"] for _ in range(32)]
    assert made == [f"s{number}" for number in range(1, 33)]
    refused = raw.call("create_sandbox")
    assert refused["isError"]
    assert "32 of 32 sandboxes are in use" in refused["content"][0]["text"]
    assert "kill_sandbox" in refused["content"][0]["text"]
    ended = min(living() - of_other_tests)
    httpx2.delete(f"{server.url}/v1/sandboxes/{ended}", headers=headers, timeout=60)
    assert not raw.call("create_sandbox")["isError"]
    left = next(name for name in made if not raw.call("run_code", code="1", sandbox_id=name)["isError"])
    assert raw.call("kill_sandbox", sandbox_id=left)["structuredContent"]["was_alive"]
    assert raw.call("run_code", code="1")["structuredContent"]["is_new_sandbox"]
