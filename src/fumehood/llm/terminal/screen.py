"""Shows the events of a turn on the user's terminal: prose, code, output, pictures, errors, files.

Runs in the user's terminal. Text of a model and of a guest passes `visible` before it is written, and is never parsed
as rich's markup; the only escape sequences are our own.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fumehood import ExecutionError, Result
from fumehood.api.artifacts import picture_of, save_pictures
from fumehood.llm.answer import Answer, Cell
from fumehood.llm.costs import AgentUsage
from fumehood.llm.events import (
    AgentEvent,
    CellFinished,
    CellStarted,
    CodeWritten,
    FileUploaded,
    OutputWritten,
    ResultShown,
    TextWritten,
    TurnFinished,
)
from fumehood.llm.readable_text import in_bytes
from fumehood.llm.terminal.code_lines import CodeLines
from fumehood.llm.terminal.pictures import Protocol, picture_sequence
from fumehood.text import visible, visible_line

_STOPPED = {
    "max_repairs": "stopped: too many cells in a row have failed",
    "max_steps": "stopped: the model was asked as often as is allowed",
    "cancelled": "interrupted",
    "refused": "the model refused",
    "length": "stopped: the message grew too long",
    "failed": "stopped by an error",
}


class ChatScreen:
    """Shows the events of turns.

    Args:
        console: The terminal.
        protocol: How it shows pictures.
        folder: The folder for pictures.
    """

    def __init__(self, console: Console, *, protocol: Protocol, folder: str) -> None:
        self._console = console
        self._protocol = protocol
        self._folder = folder
        self._lines: dict[str, CodeLines] = {}
        self._is_line_open = False

    def show(self, event: AgentEvent) -> None:
        """Show an event."""
        match event:
            case FileUploaded():
                self.say(f"uploaded {event.path}, {in_bytes(event.size_bytes)}")
            case TextWritten():
                self._write(event.text, "")
            case CodeWritten():
                self._show_code(event.call_id, event.text)
            case CellStarted():
                self._finish_code(event.call_id, event.code)
            case OutputWritten():
                self._write(event.text, "red" if event.stream == "stderr" else "cyan")
            case ResultShown():
                self._show_result(event.result)
            case CellFinished():
                self._finish_cell(event.cell)
            case TurnFinished():
                self._finish_turn(event.answer)

    def say(self, text: str, style: str = "dim") -> None:
        """Write a line of our own."""
        self.end_line()
        self._console.print(Text(visible_line(text, max_characters=1_000), style=style), soft_wrap=True)

    def end_line(self) -> None:
        """End the current line, if it is not empty."""
        if self._is_line_open:
            self._console.print()
            self._is_line_open = False

    def _write(self, text: str, style: str) -> None:
        # A lone carriage return would overwrite the line; progress bars read well line by line.
        shown = visible(text.replace("\r\n", "\n").replace("\r", "\n"))

        if shown:
            self._console.print(Text(shown, style=style), end="", soft_wrap=True)
            self._is_line_open = not shown.endswith("\n")

    def _show_code(self, call_id: str, text: str) -> None:
        lines = self._lines.get(call_id)

        if lines is None:
            self.say("── python ──")
            lines = self._lines[call_id] = CodeLines()

        self._print_lines(lines.add(text))

    def _finish_code(self, call_id: str, code: str) -> None:
        # Not every provider streams code before it is complete.
        if call_id not in self._lines:
            self._show_code(call_id, "")

        self._print_lines(self._lines.pop(call_id).finish(code))
        self.say("── output ──")

    def _print_lines(self, lines: list[Text]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def _show_result(self, result: Result) -> None:
        picture = picture_of(result)
        self.end_line()

        if picture is None:
            self._write(f"{result}\n", "cyan")
            return

        content, ending = picture
        sequence = picture_sequence(self._protocol, content, ending) if self._console.is_terminal else ""

        if sequence:
            self._console.file.write(sequence)
            self._console.file.flush()

        for saved in save_pictures([result], into=self._folder, stem="figure"):
            self.say(f"image: {saved.path}")

    def _finish_cell(self, cell: Cell) -> None:
        self.end_line()
        execution = cell.result.execution

        if execution is not None and execution.error is not None:
            self._show_error(execution.error)
        elif cell.result.is_error:
            self._write(f"{cell.result.text}\n", "red")

        if cell.result.is_error:
            self.say("it has failed; the model sees the error and may repair it", "yellow")

        for file in cell.result.files:
            self.say(f"{file.change} file: {file.path}, {in_bytes(file.size_bytes)}")

    def _show_error(self, error: ExecutionError) -> None:
        self._write(f"{str(error).rstrip()}\n", "red")

    def _finish_turn(self, answer: Answer) -> None:
        self.end_line()

        if answer.stopped != "answered":
            self.say(_STOPPED[answer.stopped], "yellow")

        self.say(describe_usage(answer.usage))


def describe_usage(usage: AgentUsage) -> str:
    """Return the usage of a turn, in a line."""
    requests = "1 request" if usage.requests == 1 else f"{usage.requests} requests"
    tokens = usage.tokens
    counted = f"{tokens.input_tokens:,} tokens read, {tokens.output_tokens:,} written"
    parts = [requests, counted]

    if usage.uncounted_requests:
        parts.append(f"{usage.uncounted_requests} not counted by the provider")

    if usage.cost is not None:
        parts.append(f"cost {usage.cost:.4f}")

    return "; ".join(parts)
