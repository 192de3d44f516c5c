"""Loops of one's own, with the unmodified SDKs: what they give is handled, and what is appended they send on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.llm.scripted_server import Call, Dialect, Reply, Request, ScriptedServer

from fumehood import ArtifactStore
from fumehood.llm import CodeInterpreter

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


def chat(server: ScriptedServer, interpreter: CodeInterpreter) -> Any:
    """A loop over Chat Completions."""
    messages: list[Any] = [{"role": "user", "content": "go"}]

    with openai.OpenAI(base_url=server.base_url, api_key="scripted-key", max_retries=0) as client:
        while True:
            tools: Any = interpreter.openai_tools()
            with client.chat.completions.stream(model="scripted", messages=messages, tools=tools) as stream:
                message = stream.get_final_completion().choices[0].message

            messages.append(message)
            results = interpreter.handle(message, chat_images=True)

            if not results:
                return message.content

            messages += results


def responses(server: ScriptedServer, interpreter: CodeInterpreter) -> Any:
    """A loop over Responses."""
    items: list[Any] = [{"role": "user", "content": "go"}]

    with openai.OpenAI(base_url=server.base_url, api_key="scripted-key", max_retries=0) as client:
        while True:
            tools: Any = interpreter.openai_tools(api="responses")
            with client.responses.stream(model="scripted", input=items, tools=tools) as stream:
                response = stream.get_final_response()

            items += response.output
            results = interpreter.handle(response)

            if not results:
                return response.output_text

            items += results


def messages(server: ScriptedServer, interpreter: CodeInterpreter) -> Any:
    """A loop over Anthropic's Messages."""
    # Late: its models take longer to import than those of all other clients together.
    import anthropic

    said: list[Any] = [{"role": "user", "content": "go"}]

    with anthropic.Anthropic(base_url=server.base_url, api_key="scripted-key", max_retries=0) as client:
        while True:
            tools: Any = interpreter.anthropic_tools()
            with client.messages.stream(
                model="scripted", max_tokens=100, messages=said, tools=tools
            ) as stream:
                message = stream.get_final_message()

            said.append({"role": "assistant", "content": message.content})
            results = interpreter.handle(message)

            if not results:
                return "".join(block.text for block in message.content if block.type == "text")

            said += results


LOOPS: dict[Dialect, Any] = {"openai-chat": chat, "openai": responses, "anthropic": messages}


@pytest.mark.parametrize("dialect", LOOPS)
def test_a_loop_of_ones_own(dialect: Dialect, interpreter: CodeInterpreter) -> None:
    """Code, two calls at once of which one is broken, a picture, and an answer in the end."""

    def after_two(request: Request) -> None:
        first, second = request.outputs
        assert first == "42"
        assert second.startswith("Nothing was run: the argument `code` must be a text")

    def after_picture(request: Request) -> None:
        assert request.pictures == 1
        assert "[image 1: image/png" in request.outputs[2]

    script = [
        Reply(calls=[Call("x = 6\nx * 7"), Call(arguments='{"code": 3}')]),
        Reply(calls=[Call(FIGURE)], check=after_two),
        Reply("done", check=after_picture),
    ]

    with ScriptedServer(dialect, *script) as server:
        assert LOOPS[dialect](server, interpreter) == "done"


def test_new_files_get_addresses(tmp_path: Path) -> None:
    """By a store: the model reads them, and the result has them."""
    store = ArtifactStore(str(tmp_path / "artifacts"))

    with CodeInterpreter(publish=store) as made:
        made.run("1")
        result = made.run("open('/mnt/data/sums.csv', 'w').write('a');")

        (file,) = result.files
        assert file.url is not None
        assert f"[new file: /mnt/data/sums.csv, 1 byte, for the user at {file.url}]" in result.text


def test_a_store_that_fails_loses_nothing() -> None:
    """The model is told, and has its output."""

    class Broken:
        async def publish(self, sandbox: object, paths: object = None) -> list[Any]:
            raise OSError("secret details")

    with CodeInterpreter(publish=Broken()) as made:
        made.run("1")
        result = made.run("print('kept'); open('/mnt/data/x', 'w').close()")

    assert result.text == "kept\n[new file: /mnt/data/x, 0 bytes]\n[the files were not published: OSError]"
    assert [file.url for file in result.files] == [None]
