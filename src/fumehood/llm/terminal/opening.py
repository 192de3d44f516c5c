"""Assembles the terminal of a chat: its abilities, and how it reads a line.

Runs in the user's terminal. The environment is an argument; nothing is read here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console

from fumehood import Sandbox
from fumehood.llm.agent import Agent
from fumehood.llm.terminal.pictures import detect_protocol
from fumehood.llm.terminal.screen import ChatScreen
from fumehood.llm.terminal.session import ChatSession
from fumehood.text import visible_line

_PROMPT = "you> "


def open_session(
    agent: Agent, sandbox: Sandbox, *, folder: str, notebook: str | None, environment: Mapping[str, str]
) -> ChatSession:
    """Return a chat in this terminal.

    Args:
        agent: The agent.
        sandbox: The sandbox of its code.
        folder: The folder for pictures and files.
        notebook: The file of the conversation, written at the end.
        environment: The environment of the terminal.
    """
    # Text of a model and of a guest has neither markup nor emoji, and numbers in it get no colour.
    console = Console(highlight=False, emoji=False, markup=False)
    screen = ChatScreen(console, protocol=detect_protocol(environment), folder=folder)
    info = sandbox.get_info()
    model = visible_line(agent.model)
    screen.say(
        f"model {model}, sandbox {info.id}, isolation {info.isolation.level}; /help lists the commands"
    )
    return ChatSession(agent, sandbox, screen, _read_line, folder=folder, notebook=notebook)


def _read_line() -> str:
    # Without a terminal there is no prompt.
    return input(_PROMPT if sys.stdin.isatty() else "")
