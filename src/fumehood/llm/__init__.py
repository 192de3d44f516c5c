"""The tool for models: a code interpreter that any model can call, with any provider.

Runs in the user's process, over the public names. Importing this package must not load a provider's SDK or asyncio:
each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood.llm.agent import Agent, AsyncAgent, aask, ask
    from fumehood.llm.costs import AgentUsage, Price, TokenUsage
    from fumehood.llm.events import (
        AgentEvent,
        Answer,
        CellFinished,
        CellStarted,
        CodeWritten,
        FileUploaded,
        ModelCell,
        OutputWritten,
        ResultShown,
        TextWritten,
        TurnFinished,
    )
    from fumehood.llm.formats.anthropic import code_execution_result
    from fumehood.llm.formats.calls import ModelCall
    from fumehood.llm.formats.exchange import read_calls, write_answers
    from fumehood.llm.formats.responses import code_interpreter_call, code_interpreter_events
    from fumehood.llm.interpreter import AsyncCodeInterpreter, CodeInterpreter
    from fumehood.llm.model_errors import (
        ModelAnswerError,
        ModelAuthenticationError,
        ModelConnectionError,
        ModelContextLengthError,
        ModelError,
        ModelOverloadedError,
        ModelRateLimitError,
        ModelRequestError,
    )
    from fumehood.llm.providers.anthropic_messages import AnthropicMessages
    from fumehood.llm.providers.base import (
        CellOutput,
        CodeCall,
        CodeTool,
        Message,
        ModelMessage,
        ModelRequest,
        Provider,
        UserMessage,
        Written,
    )
    from fumehood.llm.providers.fenced import FencedProvider
    from fumehood.llm.providers.openai_chat import OpenAIChat
    from fumehood.llm.providers.openai_responses import OpenAIResponses
    from fumehood.llm.result import ToolFile, ToolImage, ToolResult
    from fumehood.llm.workbench import ScanVerdict

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentUsage",
    "Answer",
    "AnthropicMessages",
    "AsyncAgent",
    "AsyncCodeInterpreter",
    "CellFinished",
    "CellOutput",
    "CellStarted",
    "CodeCall",
    "CodeInterpreter",
    "CodeTool",
    "CodeWritten",
    "FencedProvider",
    "FileUploaded",
    "Message",
    "ModelAnswerError",
    "ModelAuthenticationError",
    "ModelCall",
    "ModelCell",
    "ModelConnectionError",
    "ModelContextLengthError",
    "ModelError",
    "ModelMessage",
    "ModelOverloadedError",
    "ModelRateLimitError",
    "ModelRequest",
    "ModelRequestError",
    "OpenAIChat",
    "OpenAIResponses",
    "OutputWritten",
    "Price",
    "Provider",
    "ResultShown",
    "ScanVerdict",
    "TextWritten",
    "TokenUsage",
    "ToolFile",
    "ToolImage",
    "ToolResult",
    "TurnFinished",
    "UserMessage",
    "Written",
    "aask",
    "ask",
    "code_execution_result",
    "code_interpreter_call",
    "code_interpreter_events",
    "read_calls",
    "write_answers",
]

# The public names by the module that defines them.
_HOMES = {
    "agent": "Agent AsyncAgent aask ask",
    "costs": "AgentUsage Price TokenUsage",
    "events": """
        AgentEvent Answer CellFinished CellStarted CodeWritten FileUploaded ModelCell OutputWritten ResultShown
        TextWritten TurnFinished
    """,
    "providers.fenced": "FencedProvider",
    "formats.anthropic": "code_execution_result",
    "formats.calls": "ModelCall",
    "formats.exchange": "read_calls write_answers",
    "formats.responses": "code_interpreter_call code_interpreter_events",
    "interpreter": "AsyncCodeInterpreter CodeInterpreter",
    "model_errors": """
        ModelAnswerError ModelAuthenticationError ModelConnectionError ModelContextLengthError ModelError
        ModelOverloadedError ModelRateLimitError ModelRequestError
    """,
    "providers.anthropic_messages": "AnthropicMessages",
    "providers.base": """
        CellOutput CodeCall CodeTool Message ModelMessage ModelRequest Provider UserMessage Written
    """,
    "providers.openai_chat": "OpenAIChat",
    "providers.openai_responses": "OpenAIResponses",
    "result": "ToolFile ToolImage ToolResult",
    "workbench": "ScanVerdict",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    home = next(module for module, names in _HOMES.items() if name in names.split())
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
