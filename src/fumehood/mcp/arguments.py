"""Common arguments of tools, each with its bounds and its description for models.

Runs in the process of the MCP server. A value out of bounds never reaches a tool: the SDK tells the model which
argument it was.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_ID_CHARS = 64
_PATH_CHARS = 4096

NamedSandbox = Annotated[str, Field(min_length=1, max_length=_ID_CHARS, description="Which")]
SandboxId = Annotated[
    str | None, Field(min_length=1, max_length=_ID_CHARS, description="Which; default: the last one")
]
Path = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_PATH_CHARS,
        description="Relative to /home/user",
    ),
]
Seconds = Annotated[float, Field(ge=0.1, le=3600, description="Seconds")]
