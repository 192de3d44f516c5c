"""`ask`: one question, one answer, with code run in between in a sandbox that is killed afterwards.

Runs in the user's process, over the agent. Nothing is shared between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fumehood import AsyncSandbox, Sandbox
from fumehood.llm.agent import Agent, AsyncAgent, HostPath
from fumehood.llm.answer import Answer, with_files
from fumehood.llm.costs import Price
from fumehood.llm.providers.base import Provider
from fumehood.portal import call


async def aask(
    prompt: str,
    *,
    model: str | Provider,
    files: Iterable[HostPath] = (),
    sandbox: AsyncSandbox | Sandbox | None = None,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    instructions: str = "",
    max_repairs: int = 3,
    max_steps: int = 20,
    prices: Mapping[str, Price] | None = None,
    fenced: bool = False,
    images: bool = True,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Answer:
    """Ask one question; described at `ask`."""
    agent = AsyncAgent(
        model,
        sandbox=sandbox,
        tools=tools,
        instructions=instructions,
        max_repairs=max_repairs,
        max_steps=max_steps,
        prices=prices,
        fenced=fenced,
        images=images,
        base_url=base_url,
        api_key=api_key,
    )

    async with agent:
        answer = await agent.ask(prompt, files=files)

        if sandbox is not None or not answer.files:
            return answer

        return await with_files(answer, agent.interpreter.sandbox.files)


def ask(
    prompt: str,
    *,
    model: str | Provider,
    files: Iterable[HostPath] = (),
    sandbox: AsyncSandbox | Sandbox | None = None,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    instructions: str = "",
    max_repairs: int = 3,
    max_steps: int = 20,
    prices: Mapping[str, Price] | None = None,
    fenced: bool = False,
    images: bool = True,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Answer:
    """Ask a model one question; it may run code in a sandbox of its own, which is killed afterwards.

    The arguments are those of `Agent` and of `Agent.ask`. The files that the code made outlive the sandbox:
    `answer.files[0].data`, up to 64 MiB all together.

    Raises:
        ModelError: The request to the model failed; its class says why.
    """
    agent = Agent(
        model,
        sandbox=sandbox,
        tools=tools,
        instructions=instructions,
        max_repairs=max_repairs,
        max_steps=max_steps,
        prices=prices,
        fenced=fenced,
        images=images,
        base_url=base_url,
        api_key=api_key,
    )

    with agent:
        answer = agent.ask(prompt, files=files)

        if sandbox is not None or not answer.files:
            return answer

        return call(with_files, answer, agent.interpreter.sandbox.files._async)
