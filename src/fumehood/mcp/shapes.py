"""The arguments and results of the tools as data: their types, bounds, and descriptions for models.

A value out of bounds never reaches a tool: the SDK reports which argument it was. MCP hosts give a model either the
text of a result or its structured form, so both are complete; names and units are those of the library. Text from a
guest is made readable and shortened first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

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


class CodeError(BaseModel):
    """The error of code that did not end normally."""

    kind: str = Field(
        description="exception, time_limit, cpu_limit, interrupted, out_of_memory or context_died"
    )
    name: str
    message: str
    traceback: str


class CodeOutcome(BaseModel):
    """The outcome of a piece of code."""

    sandbox_id: str = Field(description="Where it ran; give it to the next call to go on with the same state")
    is_new_sandbox: bool = Field(description="Whether the sandbox was made by this call")
    value: str | None = Field(description="The value of the last expression as text")
    stdout: str
    stderr: str
    error: CodeError | None
    images: int = Field(description="How many pictures are in the content")
    state_lost: bool = Field(description="Whether the variables of earlier calls are gone; files are kept")
    is_shortened: bool = Field(description="Whether text was left out, because it was too long")
    execution_count: int | None
    seconds: float
    isolation: str = Field(description="What stood between the code and the host")


class SandboxDescription(BaseModel):
    """A living sandbox."""

    sandbox_id: str
    template: str
    state: str = Field(description="running, paused or ending")
    started_at: str
    ends_at: str | None
    idle_timeout_seconds: float | None = Field(description="After how long without a call it ends")
    memory_bytes: int
    network: str = Field(description="What it can reach: none, listed (some places only) or internet")
    isolation: str
    languages: dict[str, str] = Field(
        description="Those that its template was made ready for, with versions; empty: Python, and what its machine has"
    )


class MadeSandbox(SandboxDescription):
    """The answer of `create_sandbox`."""

    has: str = Field(description="Its Python and its well-known packages, with versions")


class LivingSandboxes(BaseModel):
    """Living sandboxes."""

    sandboxes: list[SandboxDescription]
    more: int = Field(description="How many more there are that are not listed")


class KillOutcome(BaseModel):
    """The end of a sandbox."""

    sandbox_id: str
    was_alive: bool


class KeptCheckpoint(BaseModel):
    """A point of a sandbox to go back to."""

    sandbox_id: str
    checkpoint_id: str
    name: str | None
    created_at: str
    files: int
    left_behind: list[str] = Field(description="What could not be kept, such as threads and child processes")


class Forks(BaseModel):
    """Sandboxes that continue from the state of another one."""

    sandbox_id: str = Field(description="The one that was forked")
    forks: list[SandboxDescription]
    left_behind: list[str] = Field(description="What could not come along, such as running commands")


class CommandOutcome(BaseModel):
    """The outcome of a command."""

    sandbox_id: str
    exit_code: int | None = Field(
        description="128 plus the signal's number when one ended it; null: out of time"
    )
    stdout: str
    stderr: str
    timed_out: bool
    is_shortened: bool


class FileEntry(BaseModel):
    """A file or directory."""

    path: str
    type: str = Field(description="file, dir, symlink or other")
    size_bytes: int
    modified_at: str | None


class DirectoryListing(BaseModel):
    """The entries of a directory."""

    sandbox_id: str
    path: str
    files: list[FileEntry]
    more: int = Field(description="How many more there are that are not listed")


class FilePart(BaseModel):
    """A part of a file."""

    sandbox_id: str
    path: str
    size_bytes: int
    mime_type: str
    text: str | None = Field(description="The lines asked for; null when the file is no text")
    first_line: int
    next_line: int | None = Field(description="Where to go on reading; null when the end was reached")


class WrittenFile(BaseModel):
    """A file that was written."""

    sandbox_id: str
    path: str
    size_bytes: int
    uri: str = Field(description="By which the file can be read as a resource")


Encoding = Literal["text", "base64"]
