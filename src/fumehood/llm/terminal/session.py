"""A chat: reads the user's lines, runs the agent's turns, and carries out commands that begin with a slash.

Runs in the user's terminal. Ctrl-C ends a turn and never the chat; an error of the provider is shown, and the chat
continues. The environment is an argument; nothing is read here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from fumehood import FileInfo, FumehoodError, Sandbox
from fumehood.api.artifacts import list_tree, save_files
from fumehood.llm.agent import Agent
from fumehood.llm.events import CellFinished
from fumehood.llm.readable_text import in_bytes
from fumehood.llm.terminal.screen import ChatScreen, describe_usage, detect_protocol
from fumehood.text import visible_line
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

_ROOTS = (DATA_PATH, HOME_PATH)
# For pictures, and for files that are asked for by name.
_HERE = "."
# Of files that are not brought.
_MAX_NAMES = 10
_HELP = """\
/help            this list
/files           the files of the sandbox
/get NAME        bring a file of /mnt/data to this machine
/save [PATH]     write the conversation as a notebook
/reset           forget the conversation; variables and files stay
/quit            end the chat (Ctrl-D does too)
Ctrl-C interrupts an answer or a running cell."""


class ChatSession:
    """One chat, from its first line to its end.

    Args:
        agent: The agent.
        sandbox: The sandbox of its code.
        screen: Shows the events.
        ask_line: Reads a line of the user; raises EOFError at the end.
        output: The folder for files of the sandbox, to which new ones are brought at the end. None: only those that
            `/get` names are brought, to the current folder, since their names are the choice of a model and its code.
        notebook: The file of the conversation, written at the end and by `/save` without a path.
    """

    def __init__(
        self,
        agent: Agent,
        sandbox: Sandbox,
        screen: ChatScreen,
        ask_line: Callable[[], str],
        *,
        output: str | None,
        notebook: str | None = None,
    ) -> None:
        self._agent = agent
        self._files_inside = sandbox.files
        self._screen = screen
        self._ask_line = ask_line
        self._output = output
        self._notebook = notebook
        self._is_at_prompt = False
        self._has_failed = False
        # Paths of files that are new or changed, and that `/get` has not brought since.
        self._unfetched: dict[str, None] = {}
        self._commands: dict[str, Callable[[str], bool]] = {
            "help": self._help,
            "files": self._files,
            "get": self._get,
            "save": self._save,
            "reset": self._reset,
            "quit": self._quit,
        }

    def run(self) -> bool:
        """Run the chat to its end, and return whether the last question got an answer."""
        with self._interrupts():
            while (line := self._next_line()) is not None:
                if not line.startswith("/"):
                    self._turn(line)
                elif not self._command(line):
                    break

        if self._unfetched:
            self._end_files()

        if self._notebook is not None:
            self._save("")

        self._screen.say(f"the whole chat: {describe_usage(self._agent.usage)}")
        return not self._has_failed

    def _next_line(self) -> str | None:
        """Read until a line is not empty; None at the end."""
        while True:
            try:
                self._is_at_prompt = True
                line = self._ask_line().strip()
            except KeyboardInterrupt:
                # First of all: a second interrupt must not find a prompt.
                self._is_at_prompt = False
                self._screen.end_line()
                line = ""
            except EOFError:
                return None
            finally:
                self._is_at_prompt = False

            if line:
                return line

    def _turn(self, prompt: str) -> None:
        self._has_failed = False

        try:
            for event in self._agent.stream(prompt):
                self._screen.show(event)

                if isinstance(event, CellFinished):
                    self._unfetched.update(dict.fromkeys(file.path for file in event.cell.result.files))
        except (FumehoodError, OSError) as error:
            self._has_failed = True
            self._screen.say_error(error)

    def _command(self, line: str) -> bool:
        name, _, rest = line[1:].partition(" ")
        command = self._commands.get(name.lower())

        if command is None:
            self._screen.say(f"there is no /{name}; /help lists what there is", "red")
            return True

        try:
            return command(rest.strip())
        except (FumehoodError, OSError) as error:
            self._screen.say_error(error)
            return True

    def _help(self, _: str) -> bool:
        for line in _HELP.splitlines():
            self._screen.say(line, "")

        return True

    def _files(self, _: str) -> bool:
        entries = self._entries()

        for entry in entries:
            self._screen.say(f"{entry.path}  {in_bytes(entry.size_bytes)}", "")

        if not entries:
            self._screen.say("there are no files yet")

        return True

    def _get(self, name: str) -> bool:
        wanted = name if name.startswith("/") else f"{DATA_PATH}/{name}"
        entries = [entry for entry in self._entries() if entry.path == wanted]

        if not entries:
            self._screen.say(f"there is no {wanted}; /files lists what there is", "red")

        self._fetch(entries, os.path.dirname(wanted))
        return True

    def _fetch(self, entries: list[FileInfo], root: str) -> None:
        for saved in save_files(self._files_inside, entries, root=root, into=self._output or _HERE):
            self._unfetched.pop(saved.source, None)
            self._screen.say(
                f"{visible_line(saved.source)} was left out: {saved.skipped}" if saved.skipped else saved.path
            )

    def _end_files(self) -> None:
        """Bring the new files that were not fetched, or name them: the sandbox ends with the chat."""
        if self._output is None:
            names = ", ".join(list(self._unfetched)[:_MAX_NAMES])
            names += " and others" if len(self._unfetched) > _MAX_NAMES else ""
            self._screen.say(
                f"not brought, and gone with the sandbox: {names}; --output DIR brings new files"
            )
            return

        try:
            entries = [entry for entry in self._entries() if entry.path in self._unfetched]

            for root in _ROOTS:
                self._fetch([entry for entry in entries if entry.path.startswith(f"{root}/")], root)
        except (FumehoodError, OSError) as error:
            self._screen.say_error(error)

    def _save(self, path: str) -> bool:
        target = path or self._notebook or "chat.ipynb"
        self._agent.to_notebook(target)
        self._screen.say(f"saved {target}")
        return True

    def _reset(self, _: str) -> bool:
        self._agent.reset()
        self._screen.say("the conversation is forgotten; variables and files are kept")
        return True

    def _quit(self, _: str) -> bool:
        return False

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Make Ctrl-C discard the line at the prompt, and otherwise end only the turn."""

        def interrupt(_: int, __: FrameType | None) -> None:
            if self._is_at_prompt:
                raise KeyboardInterrupt

            self._agent.cancel()

        before = signal.signal(signal.SIGINT, interrupt)

        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)

    def _entries(self) -> list[FileInfo]:
        found = [entry for root in _ROOTS for entry in list_tree(self._files_inside, root)]
        return [entry for entry in found if entry.type == "file"]


_PROMPT = "you> "


def open_session(
    agent: Agent,
    sandbox: Sandbox,
    *,
    output: str | None,
    notebook: str | None,
    environment: Mapping[str, str],
    error_text: Callable[[Exception], str],
) -> ChatSession:
    """Return a chat in this terminal.

    Args:
        agent: The agent.
        sandbox: The sandbox of its code.
        output: The folder for pictures and new files; None: pictures come to the current folder, and no files.
        notebook: The file of the conversation, written at the end.
        environment: The environment of the terminal.
        error_text: The text of an error, with hints that fit the program.
    """
    # Text of a model and of a guest has neither markup nor emoji, and numbers in it get no colour.
    console = Console(highlight=False, emoji=False, markup=False)
    screen = ChatScreen(
        console, protocol=detect_protocol(environment), folder=output or _HERE, error_text=error_text
    )
    info = sandbox.get_info()
    model = visible_line(agent.model)
    screen.say(
        f"model {model}, sandbox {info.id}, isolation {info.isolation.level}; /help lists the commands"
    )
    return ChatSession(agent, sandbox, screen, _read_line, output=output, notebook=notebook)


def _read_line() -> str:
    # Without a terminal there is no prompt.
    return input(_PROMPT if sys.stdin.isatty() else "")
