"""Shows the events of a turn on the user's terminal: prose, highlighted code, output, pictures, errors, files.

Runs in the user's terminal. Text of a model and of a guest passes `visible` before it is written, and is never parsed
as rich's markup. A picture is a guest's bytes: it is sent as base64 within the escape sequence of kitty or iTerm2, so
nothing in it can end the sequence. The environment shows what the terminal supports; it is never queried, because its
answer would come in on the user's keyboard.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Literal

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from fumehood import ExecutionError, Result
from fumehood.api.artifacts import picture_of, save_pictures
from fumehood.llm.costs import AgentUsage
from fumehood.llm.events import (
    AgentEvent,
    Answer,
    CellFinished,
    CellStarted,
    CodeWritten,
    FileUploaded,
    ModelCell,
    OutputWritten,
    ResultShown,
    TextWritten,
    TurnFinished,
)
from fumehood.llm.readable_text import in_bytes
from fumehood.text import visible, visible_line
from fumehood.values.guest_paths import DATA_PATH

# Highlighting everything again for each line is quadratic: longer code is shown plainly.
_MAX_CHARS = 20_000


class CodeLines:
    """Turns the code of one tool call, which arrives in pieces, into highlighted lines."""

    def __init__(self) -> None:
        self._code = ""
        self._shown_lines = 0
        self._syntax = Syntax("", "python", theme="ansi_dark", background_color="default")

    def add(self, text: str) -> list[Text]:
        """Take a piece and return the lines that are complete now."""
        self._code += text
        return self._lines(self._code.count("\n")) if "\n" in text else []

    def finish(self, code: str) -> list[Text]:
        """Return the rest of the complete code."""
        self._code = code if code.startswith(self._code) else self._code
        return self._lines(len(self._code.splitlines()))

    def _lines(self, count: int) -> list[Text]:
        shown = visible(self._code)
        text = self._syntax.highlight(shown) if len(shown) <= _MAX_CHARS else Text(shown)
        lines = list(text.split("\n", allow_blank=True))[self._shown_lines : count]
        self._shown_lines = max(count, self._shown_lines)
        return lines


Protocol = Literal["kitty", "iterm2", "none"]

# kitty's graphics protocol takes base64 in pieces of at most so many characters.
_PIECE_CHARS = 4_096
_MAX_BYTES = 4 * 1024 * 1024
_SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpg": b"\xff\xd8\xff"}


def detect_protocol(environment: Mapping[str, str]) -> Protocol:
    """Return the picture protocol of the terminal, by its environment."""
    # A multiplexer is in between, and passes neither on by itself.
    if environment.get("TMUX") or environment.get("STY"):
        return "none"

    program = environment.get("TERM_PROGRAM", "").lower()

    if environment.get("KITTY_WINDOW_ID") or environment.get("TERM") in ("xterm-kitty", "xterm-ghostty"):
        return "kitty"

    if program in ("iterm.app", "wezterm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"

    return "none"


def picture_sequence(protocol: Protocol, content: bytes, ending: str) -> str:
    """Return the escape sequence that shows a picture; empty when the terminal cannot.

    Args:
        protocol: The protocol of the terminal.
        content: The bytes of the file.
        ending: The ending of the file's name: png or jpg.
    """
    signature = _SIGNATURES.get(ending)

    if signature is None or not content.startswith(signature) or len(content) > _MAX_BYTES:
        return ""

    data = base64.b64encode(content).decode("ascii")

    match protocol:
        case "kitty" if ending == "png":
            return _kitty(data)
        case "iterm2":
            return f"\x1b]1337;File=inline=1;size={len(content)};preserveAspectRatio=1:{data}\x07\n"
        case _:
            return ""


def _kitty(data: str) -> str:
    pieces = [data[start : start + _PIECE_CHARS] for start in range(0, len(data), _PIECE_CHARS)]
    last = len(pieces) - 1
    shown: list[str] = []

    for number, piece in enumerate(pieces):
        # q=2: it answers nothing, which would come in on the user's keyboard.
        control = "a=T,f=100,q=2," if number == 0 else ""
        shown.append(f"\x1b_G{control}m={int(number < last)};{piece}\x1b\\")

    return "".join(shown) + "\n"


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
        protocol: The protocol by which it shows pictures.
        folder: The folder for pictures.
        error_text: The text of an error, with hints that fit the program.
    """

    def __init__(
        self, console: Console, *, protocol: Protocol, folder: str, error_text: Callable[[Exception], str]
    ) -> None:
        self._error_text = error_text
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

    def say_error(self, error: Exception) -> None:
        """Write an error, with the way out."""
        for line in self._error_text(error).splitlines():
            self.say(line, "red")

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

    def _finish_cell(self, cell: ModelCell) -> None:
        self.end_line()
        execution = cell.result.execution

        if execution is not None and execution.error is not None:
            self._show_error(execution.error)
        elif cell.result.is_error:
            self._write(f"{cell.result.text}\n", "red")

        if cell.result.is_error:
            self.say("it has failed; the model sees the error and may repair it", "yellow")

        for file in cell.result.files:
            name = file.name if file.path == f"{DATA_PATH}/{file.name}" else file.path
            self.say(f"{file.change} file: {file.path}, {in_bytes(file.size_bytes)}; /get {name} brings it")

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
