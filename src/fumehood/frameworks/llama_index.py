"""A live Python interpreter for LlamaIndex: tools of an agent, or the executor of a `CodeActAgent`.

Runs in the agent's process, on its loop. What the model reads comes back as a text block, pictures as image blocks.
Code that fails is an answer to the model, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar

from fumehood import InvalidArgumentError
from fumehood.api.silent_runs import arun_silently
from fumehood.frameworks.host_functions import HostFunctions, binding
from fumehood.frameworks.needed import needed
from fumehood.llm import AsyncCodeInterpreter

with needed("llama-index"):
    from llama_index.core.base.llms.types import ImageBlock, TextBlock
    from llama_index.core.tools.tool_spec.base import BaseToolSpec


class FumehoodToolSpec(BaseToolSpec):
    """The tool `run_code`, by `to_tool_list()`; its function is a `code_execute_fn` as well.

    Args:
        interpreter: An interpreter of yours, which stays yours. Without one, an interpreter is made, and `close()` ends
            it.
        functions: Functions of yours that the code may call while it runs: the `tools` of a `CodeActAgent`.
        options: Arguments of `fumehood.llm.AsyncCodeInterpreter`, such as *sandbox*, *template*, *limits* and *url*.
    """

    spec_functions: ClassVar[list[str]] = ["run_code"]

    def __init__(
        self,
        interpreter: AsyncCodeInterpreter | None = None,
        *,
        functions: Iterable[Callable[..., Any]] = (),
        **options: Any,
    ) -> None:
        self._functions = {function.__name__: function for function in functions}

        if self._functions and interpreter is not None:
            raise InvalidArgumentError(
                field="functions", value=[*self._functions], allowed="nothing when an interpreter is given"
            )

        if self._functions:
            options["tools"] = HostFunctions(self._functions).tools(on_a_loop=True)

        self.interpreter = AsyncCodeInterpreter(**options) if interpreter is None else interpreter
        self._is_owner = interpreter is None

    async def run_code(self, code: str) -> list[Any]:
        """Run Python code in an isolated, live interpreter.

        Returns what it printed, the value of its last expression, its figures, and the names of new files. Variables,
        imports and files are kept between calls. Data files are in /mnt/data; save files for the user there.
        """
        if self._functions:
            await self.interpreter.__aenter__()
            await arun_silently(self.interpreter.sandbox, binding(self._functions))

        result = await self.interpreter.run(code)
        pictures = [ImageBlock(image=image.data, image_mimetype=image.mime) for image in result.images]
        return [TextBlock(text=result.text), *pictures]

    async def close(self) -> None:
        """Kill the sandbox, if it was made here."""
        if self._is_owner:
            await self.interpreter.close()

    async def __aenter__(self) -> FumehoodToolSpec:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()
