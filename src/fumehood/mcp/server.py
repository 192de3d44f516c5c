"""The MCP server itself: tools, resources, and their descriptions.

Runs in the process of `fumehood mcp`, or in that of `fumehood serve`. It knows no transport and holds no state of a
client; each call names its caller (`caller.py`).
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeAlias

from mcp.server import MCPServer, Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ResourceTemplate, TextContent
from mcp.types import Tool as MCPTool
from pydantic import AnyUrl, ValidationError

from fumehood.mcp.caller import Caller, telling_of_ends, with_outputs
from fumehood.mcp.files import TEMPLATE, read_file_at
from fumehood.mcp.refusals import explain_arguments, refusing
from fumehood.mcp.toolbox import TOOLS, short_input, short_output
from fumehood.text import visible_line

NAME = "fumehood"
_INSTRUCTIONS = """\
Runs Python in isolated sandboxes that remember: variables, imports and files stay from call to call.
{place}
Data files are in /mnt/data; look before you compute. Figures of matplotlib come back as pictures. Code that \
fails keeps what was defined before it: correct it and go on. There is no network unless a sandbox was made with \
one.{output}"""
# A server of one host, and one of many.
_LAST = "Calls go on in the last sandbox; give sandbox_id only to use another one."
_BY_ID = (
    "Begin with run_code without sandbox_id; it makes a sandbox and returns its id. Give that id to every later call: "
    "another sandbox knows nothing of this one."
)
_OUTPUT = " New files in /mnt/data and /home/user are brought to the user."
_ANOTHER = "As returned by run_code"

_Lifespan: TypeAlias = Callable[[MCPServer[Any]], AbstractAsyncContextManager[Any]]
_Call: TypeAlias = ServerRequestContext[Any, Any]


class SandboxServer(MCPServer[Any]):
    """An MCP server whose resources are files of sandboxes, and whose errors about arguments are in plain words.

    Attributes:
        launcher: The caller of requests without one.
    """

    launcher: Caller | None = None

    async def list_tools(self) -> list[MCPTool]:
        """Return the tools with short schemas."""
        return [self._short(tool) for tool in await super().list_tools()]

    def _short(self, tool: MCPTool) -> MCPTool:
        arguments = tool.input_schema["properties"]
        # Without a last sandbox each call has to name its own; run_code makes one.
        needed = ("sandbox_id",) if self.launcher is None and tool.name != "run_code" else ()
        schema = short_input(tool.input_schema, needed=tuple(name for name in needed if name in arguments))
        properties = schema["properties"]

        if self.launcher is None and "sandbox_id" in properties:
            said = _ANOTHER if needed else f"{_ANOTHER}; default: a new one"
            properties["sandbox_id"]["description"] = said
        elif self.launcher is not None and tool.name == "run_code":
            properties["timeout"]["description"] = f"Default {self.launcher.setup.run_seconds:g}"

        output = short_output(tool.output_schema) if tool.output_schema else None
        return tool.model_copy(update={"input_schema": schema, "output_schema": output})

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:
        """Call a tool.

        Raises:
            ToolError: The tool failed, or its arguments are wrong.
        """
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            known = sorted(tool.name for tool in await super().list_tools())

            if name not in known:
                shown = visible_line(name, max_characters=50)
                raise ToolError(f"There is no tool {shown}.\nNext: call one of {', '.join(known)}") from None

            if type(error.__cause__) is ToolError:
                # A refusal has its own words; the SDK's prefix would be a second form of them.
                raise ToolError(str(error.__cause__)) from error.__cause__

            if not isinstance(error.__cause__, ValidationError):
                raise

            takes = _arguments()[name]
            raise ToolError(explain_arguments(name, error.__cause__, takes)) from error.__cause__

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return the address under which files are read."""
        return [TEMPLATE]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents]:
        """Return the file at an address, with its own type."""
        assert context is not None
        return [await read_file_at(str(uri), context)]


def make_server(launcher: Caller | None = None) -> Server[Any]:
    """Make the server, without a transport.

    Args:
        launcher: The caller of requests without one; its sandboxes end with the server, which serves its tools alone.
    """
    # Arguments and refusals of tools are the caller's data, and not logged.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    server = SandboxServer(
        NAME,
        title="Fumehood",
        description="Isolated Python sandboxes with live state.",
        instructions=_instructions(launcher),
        version=version("fumehood"),
        log_level="WARNING",
        lifespan=_keeping(launcher),
        subscriptions=False,
        middleware=[_refuse_unknown_arguments],
    )

    server.launcher = launcher

    for tool in TOOLS:
        if launcher is None or tool.name in launcher.tools:
            function = tool.function if tool.is_read_only else with_outputs(tool.function)
            server.add_tool(
                telling_of_ends(refusing(function)),
                tool.name,
                tool.title,
                tool.description,
                annotations=tool.annotations,
            )

    # The SDK gives access to the parts of its transports only through one of them.
    server.streamable_http_app(stateless_http=True)
    return server.session_manager.app


def _instructions(launcher: Caller | None) -> str:
    has_output = launcher is not None and launcher.setup.output
    return _INSTRUCTIONS.format(
        place=_BY_ID if launcher is None else _LAST, output=_OUTPUT if has_output else ""
    )


def _keeping(launcher: Caller | None) -> _Lifespan:
    @asynccontextmanager
    async def lifespan(server: MCPServer[Any]) -> AsyncIterator[Caller | None]:
        try:
            yield launcher
        finally:
            if launcher is not None:
                await launcher.kill_all()

    return lifespan


async def _refuse_unknown_arguments(ctx: _Call, call_next: CallNext) -> HandlerResult:
    """Report an argument that does not exist to the model: a misspelt `sandbox_id` would make a new sandbox."""
    params = ctx.params or {}
    name, given = params.get("name"), params.get("arguments")

    if (
        ctx.method != "tools/call"
        or not isinstance(given, dict)
        or not isinstance(name, str)
        or name not in _arguments()
    ):
        return await call_next(ctx)

    known = _arguments()[name]
    unknown = sorted(visible_line(str(key), max_characters=50) for key in given if key not in known)

    if not unknown:
        return await call_next(ctx)

    text = f"{name} has no argument {', '.join(unknown[:5])}; it takes {', '.join(sorted(known))}"
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


@functools.cache
def _arguments() -> dict[str, dict[str, bool]]:
    """Returns the names of arguments by the name of the tool, and whether each is required."""
    return {
        tool.name: {
            name: parameter.default is parameter.empty
            for name, parameter in inspect.signature(tool.function).parameters.items()
            if name != "context"
        }
        for tool in TOOLS
    }
