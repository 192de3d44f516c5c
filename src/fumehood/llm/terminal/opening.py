"""The terminal of a chat, put together: what it can show, how it reads a line.

Runs in the user's terminal. What the environment says comes in as an argument; nothing is read here.
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
        agent: Who answers.
        sandbox: Where its code runs.
        folder: Where pictures and files are brought to.
        notebook: Where the conversation is written at the end.
        environment: What the terminal says of itself.
    """
    # Words of a model and of a guest are neither markup nor emoji, and numbers in them get no colour.
    console = Console(highlight=False, emoji=False, markup=False)
    screen = ChatScreen(console, protocol=detect_protocol(environment), folder=folder)
    info = sandbox.get_info()
    model = visible_line(agent.model)
    screen.say(
        f"model {model}, sandbox {info.id}, isolation {info.isolation.level}; /help lists the commands"
    )
    return ChatSession(agent, sandbox, screen, _read_line, folder=folder, notebook=notebook)


def _read_line() -> str:
    # Without a person there is nobody to be asked.
    return input(_PROMPT if sys.stdin.isatty() else "")
