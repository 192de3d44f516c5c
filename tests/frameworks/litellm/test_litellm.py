"""LiteLLM's own sandbox functions, and its code interpreter for any model, with provider e2b on a server of ours."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


@pytest.fixture
def where(server: Any) -> dict[str, str]:
    return {"provider": "e2b", "api_key": server.token, "api_base": server.url}


def test_a_sandbox_lives_from_call_to_call(gate: Any, where: dict[str, str]) -> None:
    import litellm

    async def run() -> None:
        handle = await litellm.acreate_sandbox(timeout=60, **where)
        first = await litellm.arun_code(provider="e2b", container=handle, code="x = 20\nprint('set')")
        assert (first.stdout, first.error) == ("set\n", None)
        second = await litellm.arun_code(provider="e2b", container=handle, code="x * 2 + 2")
        assert second.results[0]["text"] == "42"
        failed = await litellm.arun_code(provider="e2b", container=handle, code="1 / 0")
        assert failed.error["name"] == "ZeroDivisionError"
        shown = await litellm.arun_code(provider="e2b", container=handle, code=FIGURE)
        assert shown.results[0]["png"].startswith("iVBOR")
        own = await litellm.arun_code(
            provider="e2b", container=handle, code="import os\nprint(os.environ['A'])", env_vars={"A": "b"}
        )
        assert own.stdout == "b\n"
        assert gate.names[-1] == f"49999-{handle.id}.boxes.test"
        assert await litellm.adelete_sandbox(container=handle, provider="e2b") is True
        assert await litellm.adelete_sandbox(container=handle, provider="e2b") is False

    asyncio.run(run())


def test_one_call_makes_a_sandbox_and_ends_it(where: dict[str, str]) -> None:
    import litellm

    result = asyncio.run(litellm.acode_interpreter_tool(code="print(6 * 7)", **where))
    assert result.stdout == "42\n"


class _Model(BaseHTTPRequestHandler):
    """The Responses API of a model that says what is written down."""

    turns: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        response = {
            "id": f"resp_{len(self.asked)}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": "scripted",
            "output": [self.turns.pop(0)],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        }
        body = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def model() -> Iterator[str]:
    _Model.asked.clear()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


def _call(number: int, code: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "litellm_code_execution",
        "arguments": json.dumps({"code": code}),
        "status": "completed",
    }


def test_any_model_has_openais_code_interpreter_in_our_sandbox(model: str, where: dict[str, str]) -> None:
    """The hosted tool becomes a function; its calls run here, with an error repaired and the state kept."""
    import litellm
    from litellm.integrations.code_interpreter_interception.handler import CodeInterpreterInterceptionLogger
    from litellm.sandbox.sandbox_tools import register_sandbox_tools

    text = {"type": "output_text", "text": "It is 42.", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    _Model.turns[:] = [
        _call(1, "numbers = [40, 2]\nprint(totl(numbers))"),
        _call(2, "print(sum(numbers))"),
        message,
    ]
    params = {"sandbox_provider": "e2b", "api_key": where["api_key"], "api_base": where["api_base"]}
    register_sandbox_tools([{"sandbox_tool_name": "fumehood", "litellm_params": params}])
    litellm.callbacks = [CodeInterpreterInterceptionLogger(sandbox_tool_name="fumehood")]

    try:
        response = asyncio.run(
            litellm.aresponses(
                model="openai/scripted",
                api_base=model,
                api_key="none",
                input="What is the sum?",
                tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
            )
        )
    finally:
        litellm.callbacks = []

    assert _Model.asked[0]["tools"][0]["name"] == "litellm_code_execution"
    told = [
        item["output"] for item in _Model.asked[-1]["input"] if item.get("type") == "function_call_output"
    ]
    assert "name 'totl' is not defined" in told[0]
    assert told[1] == "42\n"
    assert response.output[-1].content[0].text == "It is 42."
    items = [item if isinstance(item, dict) else item.model_dump() for item in response.output]
    assert [item["type"] for item in items][-2:] == ["code_interpreter_call", "message"]
