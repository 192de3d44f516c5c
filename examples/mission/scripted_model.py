"""A model that follows a script, so that these examples need neither key nor network; it runs in your process.

It stands where a hosted model would, behind the `Provider` protocol of `fumehood.llm`. All around it is real: the
agent hands its code to a sandbox, the code runs or fails, and what comes back is what the model reads next. It never
looks past that message: a step that does not find the word it waits for ends the example. To ask a model that thinks,
put "anthropic:NAME" or "openai:NAME" in its place and leave the rest as it is.
"""

from __future__ import annotations

import textwrap
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fumehood.llm import CodeCall, ModelMessage, ModelRequest, TextWritten, Written


@dataclass(frozen=True)
class Step:
    """One message of the model.

    Attributes:
        reads: What stands in the message that it answers: the question, or what its last code printed.
        writes: Its prose; `{read}` is the message that it answers.
        code: The code that it wants to be run; without any, its prose is the answer.
    """

    reads: str
    writes: str = ""
    code: str = ""


class ScriptedModel:
    """Writes one step after the other, if it reads what it should."""

    name = model = "scripted"

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        """Answer the last message."""
        read = request.messages[-1].text

        if not self._steps or self._steps[0].reads not in read:
            raise RuntimeError(f"the script of this example has no answer to:\n{read}")

        step = self._steps.pop(0)
        text = step.writes.replace("{read}", read)
        code = textwrap.dedent(step.code).strip()

        if text:
            yield TextWritten(text=text)

        calls = (CodeCall(id=f"call_{len(self._steps)}", code=code),) if code else ()
        yield ModelMessage(text=text, calls=calls)

    async def close(self) -> None:
        """Nothing is open."""
