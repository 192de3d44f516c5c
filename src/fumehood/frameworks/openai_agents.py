"""A code interpreter for an agent of the OpenAI Agents SDK: a function tool over one live sandbox.

Runs in the user's process, on the loop of the run. The model reads the text that `fumehood.llm` makes for models, and
gets figures as pictures.
"""

from __future__ import annotations

import base64
from typing import Any

from fumehood.frameworks.needed import needed
from fumehood.llm import AsyncCodeInterpreter

with needed("openai-agents"):
    from agents import FunctionTool, ToolOutputImage, ToolOutputText, function_tool


def run_code_tool(interpreter: AsyncCodeInterpreter, **options: Any) -> FunctionTool:
    """Return a tool with one argument, `code`, that runs it with `interpreter`.

    Code that fails is an answer that the model can act on, and no failure of the tool. A cancelled run, or the
    *timeout* of the tool, interrupts the code; its variables stay.

    Args:
        interpreter: Holds the sandbox; the caller closes it. Agents that share it share variables and files.
        options: Arguments of `agents.function_tool`, such as *needs_approval*, *timeout* and guardrails. Name and
            description are the interpreter's, unless *name_override* and *description_override* are given.
    """

    async def run_code(code: str) -> Any:
        result = await interpreter.run(code)

        if not result.images:
            return result.text

        pictures = [ToolOutputImage(image_url=_data_url(image.mime, image.data)) for image in result.images]
        return [ToolOutputText(text=result.text), *pictures]

    words = interpreter.openai_tools(api="functions")[0]
    named = {"name_override": words["name"], "description_override": words["description"], **options}
    return function_tool(run_code, **named)


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


# The name until the tools of all frameworks were called alike.
run_python_tool = run_code_tool
