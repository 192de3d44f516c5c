"""A real model, served on loopback, writes code that runs: `make test-model`.

The model is very small. What is asserted is the machinery and never its wisdom: that what it wrote was run, and that
what came out, a failure too, was read by it in the next request, by the server's own count of tokens.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fumehood import Sandbox
from fumehood.llm import (
    Agent,
    AnthropicMessages,
    CellOutput,
    FencedProvider,
    ModelMessage,
    OpenAIResponses,
    TextWritten,
)

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "small_model" / "model"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "real_model", ROOT / "examples" / "models" / "real_model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def address(example: ModuleType) -> Iterator[str]:
    with example.serve_model(MODEL) as address:
        yield address


def asked_in_order(agent: Agent) -> list[ModelMessage]:
    return [message for message in agent.history if isinstance(message, ModelMessage)]


def test_code_of_a_real_model_runs_and_its_output_goes_back(example, address):
    """Text and code are streamed, a cell runs, and the next request is longer by what it gave."""
    with example.open_agent(address) as agent:
        events = list(agent.stream("Print the square root of 2."))

        assert any(isinstance(event, TextWritten) for event in events)
        assert agent.cells
        assert agent.cells[0].result.execution is not None
        first, second, *_ = asked_in_order(agent)
        assert first.tokens.output_tokens > 0
        assert second.tokens.input_tokens > first.tokens.input_tokens


def test_a_failure_is_read_by_a_real_model(example, address):
    """Whatever it writes to print, it fails; the model is told and asked again, within bounds."""
    with Sandbox() as sandbox, example.open_agent(address, sandbox) as agent:
        sandbox.run_code("def print(*_, **__): raise RuntimeError('the printer is out of paper')")
        answer = agent.ask("Print the largest of the numbers 3, 9 and 4.")

        failed = [
            message for message in agent.history if isinstance(message, CellOutput) and message.is_error
        ]
        assert "out of paper" in failed[0].text
        assert answer.usage.requests > 1
        assert len(asked_in_order(agent)) == answer.usage.requests


@pytest.mark.parametrize("kind", [OpenAIResponses, AnthropicMessages])
def test_other_dialects_of_the_same_server(kind, example, address):
    """llama.cpp speaks all three, and the SDKs take its word for it."""
    bound = "max_output_tokens" if kind is OpenAIResponses else "max_tokens"
    options = {bound: 100, "extra_body": {"temperature": 0.0}}
    url = address if kind is OpenAIResponses else address.removesuffix("/v1")
    provider = kind("smollm2", base_url=url, api_key="none", images=False, options=options)

    with Agent(FencedProvider(provider, instructions=""), system_prompt=example.SYSTEM, max_steps=2) as agent:
        agent.ask("Print the square root of 2.")
        assert agent.cells
        assert all(message.tokens is not None for message in asked_in_order(agent))
