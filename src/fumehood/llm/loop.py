"""One turn of an agent: the model writes code, the code runs, its output goes back, until there is an answer.

Runs in the user's process, in a task of its own that may be cancelled at any point. In every case the history can be
sent again: each call has its output, and the output of an interrupted call reports the interruption.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from fumehood import InvalidArgumentError, Result
from fumehood.llm.costs import CostMeter
from fumehood.llm.events import (
    AgentEvent,
    Answer,
    CellFinished,
    CellStarted,
    CodeWritten,
    ModelCell,
    OutputWritten,
    ResultShown,
    StopReason,
    TextWritten,
)
from fumehood.llm.file_links import LinkRewriter, rewrite_links
from fumehood.llm.interpreter import AsyncCodeInterpreter
from fumehood.llm.model_errors import ModelAnswerError, ModelError
from fumehood.llm.providers.base import (
    CellOutput,
    CodeCall,
    CodeTool,
    JsonObject,
    MessageEnd,
    ModelMessage,
    ModelRequest,
    Provider,
    UserMessage,
)
from fumehood.llm.readable_text import readable, shorten
from fumehood.llm.result import ToolFile, ToolResult

Tell = Callable[[AgentEvent], Awaitable[None]]

_STOPS: dict[MessageEnd, StopReason] = {"end": "answered", "length": "length", "refused": "refused"}
_INTERRUPTED = "[interrupted by the user]"
_CUT_OFF = "[the message was cut off here: it had become too long]"
_REFUSED = "[refused]"
_STOPPED = "The user has interrupted this code while it ran; what it had done until then holds."
_BROKEN = "The tool has failed while this code ran; what it has done is not known."
_NOT_RUN = "Nothing was run: the turn ended before."
# The most output of interrupted code that the model gets.
_PARTIAL_CHARS = 4_000
_ENOUGH = "Nothing was run: too many calls before this one have failed."


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBounds:
    """The bounds of one turn.

    Attributes:
        max_steps: Requests to the model.
        max_repairs: Failures in a row.
    """

    max_steps: int
    max_repairs: int

    def __post_init__(self) -> None:
        for field, value in (("max_steps", self.max_steps), ("max_repairs", self.max_repairs)):
            if type(value) is not int or not 1 <= value <= 10_000:
                raise InvalidArgumentError(
                    field=field, value=value, allowed="a whole number from 1 to 10,000"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of all turns of a conversation.

    Attributes:
        provider: The model.
        interpreter: Runs its code.
        bounds: The bounds of a turn.
        system_prompt: The system prompt; None: that of the interpreter.
        instructions: The caller's addition to it.
    """

    provider: Provider
    interpreter: AsyncCodeInterpreter
    bounds: TurnBounds
    system_prompt: str | None
    instructions: str


class TurnLoop:
    """One turn.

    Args:
        setting: The settings of the conversation.
        history: The conversation so far; it grows by this turn.
        meter: Counts the usage of the model.
        tell: Called with each event.
        files: Files of earlier turns, which the answer may link to.
        options: Options that replace the interpreter's own in this turn.
    """

    def __init__(
        self,
        setting: Setting,
        history: list[UserMessage | ModelMessage | CellOutput],
        meter: CostMeter,
        tell: Tell,
        files: Sequence[ToolFile] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._setting = setting
        self._history = history
        self._meter = meter
        self._tell = tell
        self._earlier_files = tuple(files)
        self._options = dict(options or {})
        self._cells: list[ModelCell] = []
        self._failures = 0
        # The model's last text, or its part of the current message.
        self._text = ""
        self._unfinished: list[str] = []
        # The output of the running code so far.
        self._heard: list[str] = []

    @property
    def files(self) -> tuple[ToolFile, ...]:
        """The files that the code of this turn made or changed, in their last version."""
        latest = {file.path: file for cell in self._cells for file in cell.result.files}
        return tuple(latest[path] for path in sorted(latest))

    def answer(self, stopped: StopReason) -> Answer:
        """Return the answer so far, with the reason why the turn stopped."""
        text = "".join(self._unfinished) or self._text
        return Answer(
            text=rewrite_links(text, (*self._earlier_files, *self.files)),
            stopped=stopped,
            cells=tuple(self._cells),
            files=self.files,
            usage=self._meter.usage,
        )

    async def run(self, prompt: str) -> StopReason:
        """Run the turn to its end and return why it stopped."""
        interpreter = self._setting.interpreter
        prompts = [
            await interpreter.system_prompt()
            if self._setting.system_prompt is None
            else self._setting.system_prompt,
            self._setting.instructions,
        ]
        instructions = "\n\n".join(part for part in prompts if part)
        tool = _tool_of(interpreter)
        begun_at = len(self._history)
        self._history.append(UserMessage(text=prompt))

        for _ in range(self._setting.bounds.max_steps):
            try:
                message = await self._ask(instructions, tool)
            except ModelError:
                # A turn without any event leaves nothing in the history, so that it can be asked again.
                if len(self._history) == begun_at + 1:
                    self._history.pop()

                raise

            if message.end == "paused" and not message.calls:
                continue

            if not message.calls:
                return _STOPS[message.end]

            await self._run_calls(message.calls)

            if self._failures >= self._setting.bounds.max_repairs:
                return "max_repairs"

        return "max_steps"

    async def _ask(self, instructions: str, tool: CodeTool) -> ModelMessage:
        """Ask the model and add its message to the history."""
        request = ModelRequest(instructions=instructions, messages=tuple(self._history), tool=tool)
        self._meter.begin()
        self._unfinished = []

        try:
            message = await self._listen(request)
        except asyncio.CancelledError:
            written = ModelMessage(text="".join(self._unfinished))
            self._history.append(written.without_calls(_INTERRUPTED))
            raise

        self._meter.count(message.tokens)

        # Code that was cut off, or that the model withdrew by refusing, is not run.
        if message.end in ("length", "refused") and (message.calls or not message.text.strip()):
            note = _CUT_OFF if message.end == "length" else _REFUSED
            self._history.append(message.without_calls(note))
            message = ModelMessage(text=message.text, end=message.end, tokens=message.tokens)
        else:
            self._history.append(message)

        self._unfinished = []
        self._text = message.text or self._text
        return message

    async def _listen(self, request: ModelRequest) -> ModelMessage:
        rewriter = LinkRewriter((*self._earlier_files, *self.files))
        message: ModelMessage | None = None

        async with aclosing(self._setting.provider.generate(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case TextWritten(text=text):
                        self._unfinished.append(text)
                        await self._tell_text(rewriter.feed(text))
                    case CodeWritten():
                        await self._tell(piece)
                    case ModelMessage():
                        message = piece

        await self._tell_text(rewriter.finish())

        if message is None:
            provider = self._setting.provider
            raise ModelAnswerError(
                provider=provider.name, model=provider.model, reason="the provider gave no message"
            )

        return message

    async def _tell_text(self, text: str) -> None:
        if text:
            await self._tell(TextWritten(text=text))

    async def _run_calls(self, calls: tuple[CodeCall, ...]) -> None:
        """Run the calls of a message one after the other; each gets an output in every case."""
        waiting = list(calls)

        try:
            while waiting and self._failures < self._setting.bounds.max_repairs:
                if not waiting[0].problem:
                    await self._tell(CellStarted(call_id=waiting[0].id, code=waiting[0].code))

                await self._answer_call(waiting.pop(0))
        except BaseException:
            self._refuse(waiting, _NOT_RUN)
            raise

        self._refuse(waiting, _ENOUGH)

    async def _answer_call(self, call: CodeCall) -> None:
        self._heard = []

        try:
            result = await self._run_call(call)
        except asyncio.CancelledError:
            self._note(call, self._broken_off(_STOPPED))
            raise
        except Exception:
            self._note(call, self._broken_off(_BROKEN))
            raise

        cell = self._note(call, result)
        self._failures = self._failures + 1 if result.is_error else 0
        await self._tell(CellFinished(cell=cell))

    async def _run_call(self, call: CodeCall) -> ToolResult:
        if call.problem:
            return ToolResult(text=call.problem, is_error=True)

        async def hear_stdout(text: str) -> None:
            self._heard.append(text)
            await self._tell(OutputWritten(call_id=call.id, stream="stdout", text=text))

        async def hear_stderr(text: str) -> None:
            self._heard.append(text)
            await self._tell(OutputWritten(call_id=call.id, stream="stderr", text=text))

        async def hear_result(result: Result) -> None:
            await self._tell(ResultShown(call_id=call.id, result=result))

        callbacks: dict[str, Any] = {
            "on_stdout": hear_stdout,
            "on_stderr": hear_stderr,
            "on_result": hear_result,
        }
        interpreter = self._setting.interpreter

        if self._options:
            return await interpreter._bench.run_python(call.code, {**callbacks, **self._options})

        return await interpreter.run(call.code, **callbacks)

    def _broken_off(self, why: str) -> ToolResult:
        """Return the result of interrupted code for the model: its output so far, and the interruption."""
        printed = shorten(readable("".join(self._heard)), _PARTIAL_CHARS).rstrip("\n")
        return ToolResult(text=f"{printed}\n{why}" if printed else why, is_error=True)

    def _note(self, call: CodeCall, result: ToolResult) -> ModelCell:
        cell = ModelCell(call_id=call.id, code=call.code, result=result)
        self._cells.append(cell)
        self._history.append(
            CellOutput(call_id=call.id, text=result.text, images=result.images, is_error=result.is_error)
        )
        return cell

    def _refuse(self, calls: list[CodeCall], why: str) -> None:
        for call in calls:
            self._history.append(CellOutput(call_id=call.id, text=why, is_error=True))


def _tool_of(interpreter: AsyncCodeInterpreter) -> CodeTool:
    # In this format the tool is only a name, a description and a schema.
    described = interpreter.openai_tools(api="functions")[0]
    return CodeTool(
        name=str(described["name"]),
        description=str(described["description"]),
        parameters=cast("JsonObject", described["parameters"]),
    )
