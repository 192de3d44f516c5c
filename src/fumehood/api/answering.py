"""Answers the questions of an execution with the callbacks that the caller gave: input, tools, commits.

The answers of callbacks go to the backend as they are; nothing that a guest sends is executed here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fumehood.api.callbacks import AsyncCommitCallback, AsyncInputCallback
from fumehood.api.tools import AsyncToolCallback, ReadyTool, ToolRunner
from fumehood.port.backend import Backend
from fumehood.portal import notify
from fumehood.values.events import CommitRequestEvent, Event, InputRequestEvent, Question
from fumehood.values.requests import CommitAnswer, ExecuteRequest, InputAnswer


@dataclass(frozen=True, slots=True)
class Answering:
    """The callbacks that answer the questions of one execution."""

    tools: Mapping[str, ReadyTool]
    on_tool_call: AsyncToolCallback | None
    on_input: AsyncInputCallback | None
    on_commit: AsyncCommitCallback | None

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of the request that enable the questions for which there are callbacks."""
        return {
            "allow_input": self.on_input is not None,
            "tools": tuple(tool.spec for tool in self.tools.values()),
            "ask_commit": self.on_commit is not None,
        }

    async def answered(
        self, backend: Backend, sandbox_id: str, request: ExecuteRequest
    ) -> AsyncGenerator[Event, None]:
        """Runs code and yields its events; each question is answered after its event was yielded."""
        happening = backend.execute(sandbox_id, request)

        if self.tools:
            runner = ToolRunner(
                self.tools, self.on_tool_call, lambda answer: backend.answer_tool(sandbox_id, answer)
            )
            happening = runner.follow(happening)

        async with aclosing(happening) as events:
            async for event in events:
                yield event

                if isinstance(event, InputRequestEvent):
                    await backend.answer_input(sandbox_id, await self._input(event))

                if isinstance(event, CommitRequestEvent):
                    await backend.answer_commit(sandbox_id, await self._commit(event))

    async def _input(self, event: InputRequestEvent) -> InputAnswer:
        text = await notify(self.on_input, Question(event.prompt, is_password=event.is_password))
        return InputAnswer(execution_id=event.execution_id, request_id=event.request_id, text=text)

    async def _commit(self, event: CommitRequestEvent) -> CommitAnswer:
        """Asks the callback; returns False unless its result is True.

        An exception of the callback is raised to the caller.
        """
        commit = await notify(self.on_commit, event.changes) is True
        return CommitAnswer(execution_id=event.execution_id, commit=commit)
