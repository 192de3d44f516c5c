"""`AsyncAgent` and `Agent`: a conversation with a model that has a code interpreter; `ask`: a single question.

Runs in the user's process, over the interpreter and a provider. Each turn runs in a task of its own and yields events;
closing the stream ends the request to the model and interrupts the code. Each method of the synchronous class is one
line over the asynchronous one. Paths of uploaded files are the caller's own; nothing of a guest is used as one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from os import PathLike
from types import TracebackType
from typing import Any

from fumehood import AsyncSandbox, InvalidArgumentError, Sandbox
from fumehood.cancellation import cancel_once, consume_result, finish
from fumehood.llm.costs import AgentUsage, CostMeter, Price
from fumehood.llm.events import (
    AgentEvent,
    Answer,
    EventLine,
    FileUploaded,
    ModelCell,
    StopReason,
    TurnFinished,
    with_files,
)
from fumehood.llm.formats.calls import PYTHON_ALONE
from fumehood.llm.interpreter import AsyncCodeInterpreter, CodeInterpreter
from fumehood.llm.loop import Setting, TurnBounds, TurnLoop
from fumehood.llm.notebook import conversation_notebook
from fumehood.llm.providers.base import Message, Provider
from fumehood.llm.providers.choose import choose_provider
from fumehood.llm.readable_text import in_bytes
from fumehood.llm.result import ToolFile
from fumehood.portal import Turn, call, shared_portal
from fumehood.text import visible_line
from fumehood.tracebacks import PlainErrors


def check_uploads(files: Iterable[str | PathLike[str]]) -> dict[str, str]:
    """Return the paths of files by the names that they will have in the sandbox.

    Raises:
        InvalidArgumentError: A path is not a file, or two files have the same name.
    """
    if isinstance(files, str | PathLike):
        files = [files]

    uploads: dict[str, str] = {}

    for given in files:
        path = os.fspath(given)
        name = os.path.basename(path)

        if not os.path.isfile(path):
            raise InvalidArgumentError(field="files", value=path, allowed="paths of files that are there")

        if name in uploads:
            raise InvalidArgumentError(field="files", value=path, allowed="files of different names")

        uploads[name] = path

    return uploads


async def upload(interpreter: AsyncCodeInterpreter, uploads: dict[str, str]) -> list[FileUploaded]:
    """Write the files into the sandbox and return their paths."""
    uploaded: list[FileUploaded] = []

    for name, path in uploads.items():
        with open(path, "rb") as file:
            where = await interpreter.upload(name, file)
            uploaded.append(FileUploaded(path=where, size_bytes=file.tell()))

    return uploaded


def describe_uploads(prompt: str, files: Sequence[FileUploaded]) -> str:
    """Return the prompt with a line for each file."""
    lines = [
        f"- {visible_line(file.path, max_characters=300)} ({in_bytes(file.size_bytes)})" for file in files
    ]
    return "\n".join([prompt, "", "Uploaded files:", *lines])


HostPath = str | PathLike[str]


class AsyncAgent(PlainErrors):
    """A model with a code interpreter, for asyncio; described at `Agent`."""

    def __init__(
        self,
        model: str | Provider,
        *,
        sandbox: AsyncSandbox | Sandbox | None = None,
        interpreter: AsyncCodeInterpreter | CodeInterpreter | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        instructions: str = "",
        system_prompt: str | None = None,
        max_repairs: int = 3,
        max_steps: int = 20,
        prices: Mapping[str, Price] | None = None,
        fenced: bool = False,
        images: bool = True,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        bounds = TurnBounds(max_steps=max_steps, max_repairs=max_repairs)
        self._owns_provider = isinstance(model, str)
        provider = choose_provider(model, base_url=base_url, api_key=api_key, images=images, fenced=fenced)
        self._owns_interpreter = interpreter is None
        self._setting = Setting(
            provider=provider,
            interpreter=_interpreter(interpreter, sandbox, tools),
            bounds=bounds,
            system_prompt=system_prompt,
            instructions=instructions,
        )
        self._prices = dict(prices or {})
        self._total = CostMeter(provider.model, self._prices)
        self._history: list[Message] = []
        self._cells: list[ModelCell] = []
        self._files: dict[str, ToolFile] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[StopReason] | None = None
        self.last_answer: Answer | None = None

    @property
    def interpreter(self) -> AsyncCodeInterpreter:
        """The interpreter that runs the code."""
        return self._setting.interpreter

    @property
    def model(self) -> str:
        """The model's name, without the dialect."""
        return self._setting.provider.model

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far, oldest first."""
        return tuple(self._history)

    @property
    def cells(self) -> tuple[ModelCell, ...]:
        """The code that was run in this conversation, in order."""
        return tuple(self._cells)

    @property
    def files(self) -> tuple[ToolFile, ...]:
        """Files that the code of this conversation made or changed, in their last version."""
        return tuple(self._files[path] for path in sorted(self._files))

    @property
    def usage(self) -> AgentUsage:
        """The usage of the whole conversation."""
        return self._total.usage

    async def __aenter__(self) -> AsyncAgent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the turn under way, and close the interpreter, the sandbox and the connections that were made here."""
        # By its task and not by its stream, which may have no reader any more.
        if self._task is not None:
            await _end(self._task)

        if self._owns_interpreter:
            await self._setting.interpreter.close()

        if self._owns_provider:
            await self._setting.provider.close()

    def reset(self) -> None:
        """Forget the conversation; variables and files of the sandbox stay."""
        if self._task is not None:
            raise InvalidArgumentError(field="reset", value="now", allowed="the time between two turns")

        self._history.clear()
        self._cells.clear()

    def to_notebook(self, path: HostPath | None = None) -> str:
        """Write the conversation as a notebook."""
        text = conversation_notebook(self._history, self._cells)

        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        return text

    def cancel(self) -> bool:
        """Stop the turn under way; its stream ends with a cancelled answer."""
        return self._task is not None and cancel_once(self._task)

    async def ask(self, prompt: str, *, files: Iterable[HostPath] = ()) -> Answer:
        """Ask, and wait for the answer."""
        return await self._ask(prompt, files, {})

    async def _ask(self, prompt: str, files: Iterable[HostPath], options: Mapping[str, Any]) -> Answer:
        async with aclosing(self._stream(prompt, files, options)) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    return event.answer

        raise AssertionError("a stream ends with TurnFinished, or raises")

    async def stream(
        self, prompt: str, *, files: Iterable[HostPath] = ()
    ) -> AsyncGenerator[AgentEvent, None]:
        """Ask, and yield events as they happen."""
        async with aclosing(self._stream(prompt, files, {})) as events:
            async for event in events:
                yield event

    async def _stream(
        self, prompt: str, files: Iterable[HostPath], options: Mapping[str, Any]
    ) -> AsyncGenerator[AgentEvent, None]:
        if not isinstance(prompt, str) or not prompt.strip():
            raise InvalidArgumentError(field="prompt", value=prompt, allowed="some text")

        uploads = check_uploads(files)

        async with self._lock:
            line = EventLine()
            meter = CostMeter(self.model, self._prices)
            turn = TurnLoop(self._setting, self._history, meter, line.tell, self.files, options)

            async def work() -> StopReason:
                described = prompt

                if uploads:
                    uploaded = await upload(self._setting.interpreter, uploads)
                    described = describe_uploads(prompt, uploaded)

                    for event in uploaded:
                        await line.tell(event)

                return await turn.run(described)

            self._task = task = asyncio.create_task(work())
            task.add_done_callback(line.end)

            try:
                async with aclosing(line.events()) as events:
                    async for event in events:
                        yield event

                stopped = "cancelled" if task.cancelled() else task.result()
                yield TurnFinished(answer=self._finish(turn, meter, stopped))
            finally:
                try:
                    await _end(task)
                finally:
                    # The caller closed the stream early, or the turn has failed.
                    if self._task is task:
                        self._finish(turn, meter, "cancelled" if task.cancelled() else "failed")

    def _finish(self, turn: TurnLoop, meter: CostMeter, stopped: StopReason) -> Answer:
        self._task = None
        self._files |= {file.path: file for file in turn.files}
        self._total.add(meter)
        self.last_answer = turn.answer(stopped)
        self._cells += self.last_answer.cells
        return self.last_answer


class Agent(PlainErrors):
    """A model with a code interpreter: it writes code, the code runs, it reads the output and continues.

    Attributes:
        last_answer: The answer of the last turn, also when it was cancelled; None before the first.

    Args:
        model: `"openai:NAME"` (Responses), `"openai-chat:NAME"` (Chat Completions), `"anthropic:NAME"` (Messages), or
            an object with the `Provider` protocol.
        sandbox: A sandbox of yours, which is not killed; without it one is made at first use and killed by `close()`.
        interpreter: An interpreter of yours, with options of its own, in place of `sandbox` and `tools`.
        tools: Functions of yours that the code may call, by name.
        instructions: Text that is added to the system prompt.
        system_prompt: Text that replaces the system prompt computed from the sandbox.
        max_repairs: How many pieces of code may fail in a row before the turn stops.
        max_steps: How often the model is asked in one turn.
        prices: Prices of models, by name; without it a cost is None.
        fenced: For a model without tool calls: it writes its code between ```python and ```.
        images: Whether the model can see; False sends it none.
        base_url: Address of the server; None: the provider's own.
        api_key: The key of the provider; None: OPENAI_API_KEY or ANTHROPIC_API_KEY.

    Raises:
        InvalidArgumentError: An argument is refused, or the SDK that it needs is not installed.
    """

    def __init__(
        self,
        model: str | Provider,
        *,
        sandbox: AsyncSandbox | Sandbox | None = None,
        interpreter: AsyncCodeInterpreter | CodeInterpreter | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        instructions: str = "",
        system_prompt: str | None = None,
        max_repairs: int = 3,
        max_steps: int = 20,
        prices: Mapping[str, Price] | None = None,
        fenced: bool = False,
        images: bool = True,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._async = AsyncAgent(
            model,
            sandbox=sandbox,
            interpreter=interpreter,
            tools=tools,
            instructions=instructions,
            system_prompt=system_prompt,
            max_repairs=max_repairs,
            max_steps=max_steps,
            prices=prices,
            fenced=fenced,
            images=images,
            base_url=base_url,
            api_key=api_key,
        )

    @property
    def interpreter(self) -> CodeInterpreter:
        """The interpreter that runs the code."""
        face = CodeInterpreter.__new__(CodeInterpreter)
        face._async = self._async.interpreter
        return face

    @property
    def model(self) -> str:
        """The model's name, without the dialect."""
        return self._async.model

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far, oldest first."""
        return self._async.history

    @property
    def cells(self) -> tuple[ModelCell, ...]:
        """The code that was run in this conversation, in order."""
        return self._async.cells

    @property
    def files(self) -> tuple[ToolFile, ...]:
        """Files that the code of this conversation made or changed, in their last version."""
        return self._async.files

    @property
    def usage(self) -> AgentUsage:
        """The usage of the whole conversation."""
        return self._async.usage

    @property
    def last_answer(self) -> Answer | None:
        """The answer of the last turn, also when it was cancelled."""
        return self._async.last_answer

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the turn under way, and close the interpreter, the sandbox and the connections that were made here."""
        call(self._async.close)

    def reset(self) -> None:
        """Forget the conversation; variables and files of the sandbox stay."""
        self._async.reset()

    def to_notebook(self, path: HostPath | None = None) -> str:
        """Write the conversation as a notebook (nbformat 4.5), with prompts, prose, code and outputs; return its text.

        Args:
            path: The path to write it to; a file there is replaced. None: nothing is written.
        """
        return self._async.to_notebook(path)

    def cancel(self) -> None:
        """Stop the turn under way, from another thread or a signal handler.

        The request to the model ends, running code is interrupted, and the stream ends with an answer whose `stopped`
        is cancelled.
        """
        shared_portal().loop.call_soon_threadsafe(self._async.cancel)

    def ask(self, prompt: str, *, files: Iterable[HostPath] = ()) -> Answer:
        """Ask, and wait for the answer.

        Args:
            prompt: The user's message.
            files: Paths of this machine, uploaded to `/mnt/data` first; the prompt lists them.

        Raises:
            ModelError: The request to the model failed; its class says why. The conversation stays usable.
            SandboxStartError: No sandbox can be made.
        """
        turn = Turn()
        return turn.call(self._async._ask, prompt, files, self.interpreter._relayed(turn))

    def stream(self, prompt: str, *, files: Iterable[HostPath] = ()) -> Iterator[AgentEvent]:
        """Ask, and yield events as they happen; the last event is `TurnFinished`.

        Leaving the loop early ends the request to the model and interrupts the code; text and results until then stay
        in the conversation. The arguments are those of `ask`.
        """
        turn = Turn()
        return turn.iterate(self._async._stream(prompt, files, self.interpreter._relayed(turn)))


async def _end(task: asyncio.Task[StopReason]) -> None:
    """Wait for the end of a turn, also when the caller is cancelled: the turn interrupts its cell, which ends soon."""
    cancel_once(task)
    consume_result(task)
    await finish(asyncio.wait({task}))


def _interpreter(
    given: AsyncCodeInterpreter | CodeInterpreter | None,
    sandbox: AsyncSandbox | Sandbox | None,
    tools: Mapping[str, Callable[..., Any]] | None,
) -> AsyncCodeInterpreter:
    if given is None:
        return AsyncCodeInterpreter(sandbox, tools=tools)

    if sandbox is not None or tools is not None:
        raise InvalidArgumentError(
            field="interpreter", value=given, allowed="nothing beside it: it has its own sandbox and tools"
        )

    found = given._async if isinstance(given, CodeInterpreter) else given

    if found.languages != PYTHON_ALONE:
        raise InvalidArgumentError(
            field="interpreter",
            value=given,
            allowed="one without `languages`: an agent's model writes Python",
        )

    return found


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
