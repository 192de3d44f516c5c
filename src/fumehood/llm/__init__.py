"""The tool for models: a code interpreter that any model can call, whatever its provider.

Names only, each loaded when it is first used: importing this package loads no provider's SDK, and not even asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood.llm.interpreter import AsyncCodeInterpreter, CodeInterpreter
    from fumehood.llm.result import ToolFile, ToolImage, ToolResult

__all__ = [
    "AsyncCodeInterpreter",
    "CodeInterpreter",
    "ToolFile",
    "ToolImage",
    "ToolResult",
]

# The public names by the module that defines them.
_HOMES = {
    "interpreter": "AsyncCodeInterpreter CodeInterpreter",
    "result": "ToolFile ToolImage ToolResult",
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
