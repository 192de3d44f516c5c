"""A live Python interpreter as a tool of LangChain: `create_agent(model, [FumehoodTool()])`.

Runs in the agent's process. The model's text becomes the message's content, pictures become image blocks; data for the
program alone becomes the message's artifact, as plain data that a checkpointer can keep. Code that fails is an answer
to the model, never an exception.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from types import TracebackType
from typing import Any, Literal

from fumehood.cancellation import wait_shared
from fumehood.frameworks.needed import needed
from fumehood.llm import CodeInterpreter, ToolResult

with needed("langchain"):
    from langchain_core.tools import BaseTool
    from pydantic import BaseModel, Field, PrivateAttr


class RunPythonInput(BaseModel):
    """The arguments of a call that the model writes."""

    code: str = Field(description="Python source code, as in a notebook's cell.")


class FumehoodTool(BaseTool):
    """The tool `run_code`: code of a model in one sandbox, whose variables and files stay from call to call.

    Args:
        interpreter: An interpreter of yours, which stays yours. Without one, an interpreter is made, and `close()` ends
            it.
        name: The name of the tool for the model.
        options: Arguments of `fumehood.llm.CodeInterpreter`, such as *sandbox*, *template*, *limits* and *url*.
    """

    name: str = "run_code"
    description: str = ""
    args_schema: type[BaseModel] = RunPythonInput
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _interpreter: CodeInterpreter = PrivateAttr()
    _is_owner: bool = PrivateAttr()

    def __init__(
        self, interpreter: CodeInterpreter | None = None, *, name: str = "run_code", **options: Any
    ) -> None:
        made = CodeInterpreter(**options) if interpreter is None else interpreter
        super().__init__(name=name, description=str(made.openai_tools(api="functions")[0]["description"]))
        self._interpreter = made
        self._is_owner = interpreter is None

    @property
    def interpreter(self) -> CodeInterpreter:
        """The interpreter, for access to files and to the other abilities of the sandbox."""
        return self._interpreter

    def close(self) -> None:
        """Kill the sandbox, if it was made here."""
        if self._is_owner:
            self._interpreter.close()

    def __enter__(self) -> FumehoodTool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, code: str) -> tuple[str | list[dict[str, Any]], dict[str, Any]]:
        result = self._interpreter.run(code)
        return _content(result), _artifact(result)

    async def _arun(self, code: str) -> tuple[str | list[dict[str, Any]], dict[str, Any]]:
        # In a thread, because agents are run by several loops, one after the other, and the interpreter has its own.
        running = asyncio.ensure_future(asyncio.to_thread(self._run, code))

        try:
            return await wait_shared(running)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._interpreter.sandbox.interrupt)
            await asyncio.wait([running])
            raise


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    if not result.images:
        return result.text

    pictures = [
        {"type": "image", "base64": base64.b64encode(image.data).decode(), "mime_type": image.mime}
        for image in result.images
    ]
    return [{"type": "text", "text": result.text}, *pictures]


def _artifact(result: ToolResult) -> dict[str, Any]:
    execution = result.execution
    error = execution.error if execution is not None else None
    return {
        "is_error": result.is_error,
        "state_lost": result.state_lost,
        "files": [dataclasses.asdict(file) for file in result.files],
        "stdout": "".join(execution.logs.stdout) if execution is not None else "",
        "stderr": "".join(execution.logs.stderr) if execution is not None else "",
        "value": execution.text if execution is not None else None,
        "error": dataclasses.asdict(error) if error is not None else None,
    }
