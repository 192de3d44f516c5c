"""The two forms of each answer: content for a model, and the same as data.

Runs in the process of the MCP server; pure. Everything is bounded here: a model pays for each character, and a host may
use either form.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime

from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic import BaseModel

from fumehood import Execution, SandboxInfo
from fumehood.llm.error_text import Surroundings
from fumehood.llm.execution_text import Shape, is_failure, tell
from fumehood.llm.images import ImageBounds
from fumehood.llm.readable_text import in_bytes, readable, shorten
from fumehood.llm.result import ToolImage
from fumehood.mcp.shapes import CodeError, CodeOutcome, SandboxDescription
from fumehood.text import visible_line
from fumehood.values.languages import STATEFUL_LANGUAGES, find_language

MAX_TEXT_CHARS = 20_000
# The most characters of an execution's text; files are read on purpose, and in pages.
_EXECUTION_CHARS = 6_000
MAX_IMAGES = 4
# In base64 a third more; hosts refuse answers much larger than a megabyte.
MAX_IMAGE_BYTES = 768 * 1024
_SHAPE = Shape(max_text_chars=_EXECUTION_CHARS, images=ImageBounds(MAX_IMAGES, MAX_IMAGE_BYTES))
_STDERR_CHARS = 6_000
_VALUE_CHARS = 6_000
_MESSAGE_CHARS = 2_000
_LANGUAGE_CHARS = 60


def answer(
    text: str, data: BaseModel, *, more: Iterable[ContentBlock] = (), is_error: bool = False
) -> CallToolResult:
    """Return an answer in both forms."""
    return CallToolResult(
        content=[TextContent(text=text), *more],
        structured_content=data.model_dump(mode="json"),
        is_error=is_error,
    )


def tell_execution(
    execution: Execution,
    code: str,
    sandbox_id: str,
    *,
    is_new: bool,
    notes: Sequence[str],
    around: Surroundings,
) -> CallToolResult:
    """Return the outcome of an execution.

    Args:
        execution: The execution.
        code: The code that was run.
        sandbox_id: The sandbox.
        is_new: Whether the sandbox was made for it.
        notes: Lines about the sandbox.
        around: The facts for hints.
    """
    shown = tell(execution, code, _SHAPE, around, notes)
    outcome = _outcome(execution, sandbox_id, is_new=is_new, images=len(shown.images))
    return answer(shown.text, outcome, more=as_content(shown.images), is_error=is_failure(execution))


def as_content(images: Sequence[ToolImage]) -> list[ImageContent]:
    """Return pictures as content."""
    return [
        ImageContent(data=base64.b64encode(image.data).decode("ascii"), mime_type=image.mime)
        for image in images
    ]


def describe(info: SandboxInfo) -> SandboxDescription:
    """Return the description of a sandbox as the tools answer it."""
    return SandboxDescription(
        sandbox_id=info.id,
        template=info.template,
        state=info.state,
        started_at=info.started_at.isoformat(timespec="seconds"),
        ends_at=time_of(info.ends_at),
        idle_timeout_seconds=info.idle_timeout_seconds,
        memory_bytes=info.limits.memory_bytes,
        network=info.network.level,
        isolation=info.isolation.level,
        languages=dict(info.languages),
    )


def describe_in_words(info: SandboxInfo) -> str:
    """Return a sandbox as a line of text."""
    idle = f", ends after {info.idle_timeout_seconds:g} s without a call" if info.idle_timeout_seconds else ""
    ends = f", at the latest {time_of(info.ends_at)}" if info.ends_at else ""
    memory = in_bytes(info.limits.memory_bytes)
    network = f", network: {info.network.level}"
    spoken = f", {languages_in_words(info)}" if info.languages else ""
    return (
        f"{info.id}: {info.state}, template {info.template}, {memory} of memory{network}{idle}{ends}{spoken}"
    )


def languages_in_words(info: SandboxInfo) -> str:
    """Return the languages that the template of a sandbox was made ready for, with versions; empty if none is known.

    Those that `run_code` does not take, since each of their cells is a whole program, are named apart.
    """
    cells: list[str] = []
    programs: list[str] = []

    for name, version in info.languages.items():
        words = visible_line(f"{_title(name)} {version}".rstrip(), max_characters=_LANGUAGE_CHARS)
        (cells if name in STATEFUL_LANGUAGES else programs).append(words)

    named = {"languages": cells, "as commands": programs}
    return "; ".join(f"{label}: {', '.join(found)}" for label, found in named.items() if found)


def _title(language: str) -> str:
    known = find_language(language)
    # A newer server may have more of them.
    return known.title if known else language


def time_of(when: datetime | None) -> str | None:
    """Return a time as text."""
    return None if when is None else when.isoformat(timespec="seconds")


def _outcome(execution: Execution, sandbox_id: str, *, is_new: bool, images: int) -> CodeOutcome:
    stdout, stderr = "".join(execution.logs.stdout), "".join(execution.logs.stderr)
    out = shorten(readable(stdout), _EXECUTION_CHARS)
    err = shorten(readable(stderr), _STDERR_CHARS)
    value = None if execution.text is None else readable(execution.text)
    is_shortened = len(out) < len(stdout) or len(err) < len(stderr) or len(value or "") > _VALUE_CHARS
    return CodeOutcome(
        sandbox_id=sandbox_id,
        is_new_sandbox=is_new,
        value=None if value is None else shorten(value, _VALUE_CHARS),
        stdout=out,
        stderr=err,
        error=_error(execution),
        images=images,
        state_lost=execution.state_lost,
        is_shortened=is_shortened or bool(execution.truncated),
        execution_count=execution.execution_count,
        seconds=round(execution.usage.wall_seconds, 3),
        isolation=execution.isolation,
    )


def _error(execution: Execution) -> CodeError | None:
    error = execution.error

    if error is None or not is_failure(execution):
        return None

    return CodeError(
        kind=error.kind,
        name=readable(error.name)[:200],
        message=shorten(readable(error.value), _MESSAGE_CHARS),
        traceback=shorten(readable(error.traceback), _STDERR_CHARS),
    )
