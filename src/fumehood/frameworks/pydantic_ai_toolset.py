"""A live Python interpreter as a toolset of Pydantic AI: `Agent(model, toolsets=[FumehoodToolset()])`.

Runs in the user's process, on the loop of the agent. Each run has a sandbox of its own, which ends with the run, unless
one is lent. Code that fails is an answer to the model: it uses up no retry of the tool.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fumehood.frameworks.needed import needed
from fumehood.llm import AsyncCodeInterpreter

with needed("pydantic-ai"):
    from pydantic_ai import RunContext
    from pydantic_ai.messages import BinaryContent, ToolReturn
    from pydantic_ai.tools import Tool
    from pydantic_ai.toolsets import FunctionToolset


class FumehoodToolset(FunctionToolset[Any]):
    """The tool `run_code`, with instructions that describe the sandbox to the model.

    Args:
        interpreter: An interpreter of yours, which stays yours and is shared by all runs. Without one, each run makes
            its own.
        id: The name of the toolset.
        options: Arguments of `fumehood.llm.AsyncCodeInterpreter`, such as *sandbox*, *template*, *limits* and *url*.
    """

    def __init__(
        self, interpreter: AsyncCodeInterpreter | None = None, *, id: str = "fumehood", **options: Any
    ) -> None:
        self.interpreter = AsyncCodeInterpreter(**options) if interpreter is None else interpreter
        self._is_owner = interpreter is None
        self._options = options
        words = self.interpreter.openai_tools(api="functions")[0]
        tool = Tool(
            self._run, name=str(words["name"]), description=str(words["description"]), takes_ctx=False
        )
        super().__init__([tool], id=id, instructions=self.interpreter.system_prompt)

    async def for_run(self, ctx: RunContext[Any]) -> FumehoodToolset:
        """Return the toolset of one run: a fresh one, unless the interpreter was lent."""
        return type(self)(id=self.id or "fumehood", **self._options) if self._is_owner else self

    async def __aexit__(self, *_: object) -> None:
        if self._is_owner:
            await self.interpreter.close()

    async def _run(self, code: str) -> ToolReturn[Any]:
        result = await self.interpreter.run(code)
        pictures = [BinaryContent(data=image.data, media_type=image.mime) for image in result.images]
        return ToolReturn(
            return_value=[result.text, *pictures] if pictures else result.text,
            metadata={
                "is_error": result.is_error,
                "state_lost": result.state_lost,
                "files": [dataclasses.asdict(file) for file in result.files],
            },
        )
