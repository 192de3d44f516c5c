"""What `fumehood mcp` is compared with: the same tool on an ipykernel, written with the same SDK.

Runs in a process of its own, started by the measuring client as it starts ours. The kernel is up and warm; the tool
sends the code through jupyter_client's asynchronous client and waits until the kernel says that it is idle.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from jupyter_client.manager import start_new_async_kernel
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

_START_SECONDS = 60


@asynccontextmanager
async def kernel(server: MCPServer[Any]) -> AsyncGenerator[Any, None]:
    """Keeps a kernel with the packages that ours has imported as well."""
    manager, client = await start_new_async_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
    try:
        await execute(client, "import numpy, pandas, matplotlib.pyplot")
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def execute(client: Any, code: str) -> str:
    """Runs code in the kernel and returns what it wrote, once it is idle."""
    message_id = client.execute(code)
    written: list[str] = []

    async with asyncio.timeout(_START_SECONDS):
        while True:
            message = await client.get_iopub_msg(timeout=None)
            content = message["content"]

            if message["parent_header"].get("msg_id") != message_id:
                continue

            match message["msg_type"]:
                case "stream":
                    written.append(content["text"])
                case "execute_result" | "display_data":
                    written.append(content["data"].get("text/plain", ""))
                case "error":
                    written.append("\n".join(content["traceback"]))
                case "status" if content["execution_state"] == "idle":
                    return "".join(written)


async def run_code(context: Context[Any, Any], code: str) -> str:
    """Run Python code in a live kernel."""
    return await execute(context.request_context.lifespan_context, code)


def main() -> None:
    """Serves the tool on standard input and output."""
    server: MCPServer[Any] = MCPServer("reference", lifespan=kernel, log_level="ERROR")
    server.add_tool(run_code)
    server.run("stdio")


if __name__ == "__main__":
    main()
