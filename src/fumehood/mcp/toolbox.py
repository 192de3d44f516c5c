"""The list of tools: each with its name, and its annotations for hosts.

Runs in the process of the MCP server; data. A tool changes only a sandbox, and most of them reach nothing outside it,
whatever the code in it tries.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mcp.types import CallToolResult, ToolAnnotations

from fumehood.mcp.checkpoints import checkpoint, rollback
from fumehood.mcp.commands import run_command
from fumehood.mcp.files import list_files, read_file, write_file
from fumehood.mcp.forks import fork_sandbox
from fumehood.mcp.notebooks import to_notebook
from fumehood.mcp.packages import install_packages
from fumehood.mcp.run_code import run_code
from fumehood.mcp.sandboxes import create_sandbox, kill_sandbox, list_sandboxes

ToolFunction = Callable[..., Awaitable[CallToolResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        function: Its function; its docstring and its arguments are what a model reads.
        title: Its name for people.
        is_read_only: It changes nothing.
        is_destructive: It can remove existing data.
        is_idempotent: A repetition changes nothing more.
        is_open_world: It can reach outside.
    """

    function: ToolFunction
    title: str
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False
    is_open_world: bool = False

    @property
    def name(self) -> str:
        """Its name for models."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """Its description for models."""
        return inspect.getdoc(self.function) or ""

    @property
    def annotations(self) -> ToolAnnotations:
        """Its annotations for hosts."""
        return ToolAnnotations(
            title=self.title,
            read_only_hint=self.is_read_only,
            destructive_hint=self.is_destructive,
            idempotent_hint=self.is_idempotent or self.is_read_only,
            open_world_hint=self.is_open_world,
        )


TOOLS = (
    Tool(function=run_code, title="Run Python code"),
    Tool(function=run_command, title="Run a command"),
    Tool(function=create_sandbox, title="Make a sandbox"),
    Tool(function=list_sandboxes, title="List sandboxes", is_read_only=True),
    Tool(function=kill_sandbox, title="End a sandbox", is_destructive=True, is_idempotent=True),
    Tool(function=read_file, title="Read a file", is_read_only=True),
    Tool(function=write_file, title="Write a file", is_destructive=True, is_idempotent=True),
    Tool(function=list_files, title="List files", is_read_only=True),
    Tool(function=checkpoint, title="Keep a checkpoint"),
    Tool(function=rollback, title="Go back to a checkpoint", is_destructive=True, is_idempotent=True),
    Tool(function=fork_sandbox, title="Fork a sandbox"),
    Tool(function=install_packages, title="Install packages", is_idempotent=True, is_open_world=True),
    Tool(function=to_notebook, title="Write a notebook", is_destructive=True, is_idempotent=True),
)
TOOL_NAMES = tuple(tool.name for tool in TOOLS)
