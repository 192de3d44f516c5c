"""Tools that run code, run a line of bash, install packages, or write the code of a sandbox as a notebook.

A call without a sandbox continues in the last one; over HTTP, where there is none, it makes one, and kills it again if
the call gets no answer: its id would be lost. Code or a command that fails is an answer with its exit code, not a
refusal. pip runs inside the sandbox, as its user, and the notebook is written there.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ResourceLink
from pydantic import Field

from fumehood import AsyncSandbox, CommandExitError, CommandTimeoutError, FumehoodError, Limits
from fumehood.api.packages import MAX_PACKAGES, REQUIREMENT, install_command
from fumehood.llm.error_text import Surroundings
from fumehood.llm.execution_text import is_about_install
from fumehood.llm.readable_text import fair_shares, in_bytes, readable, shorten, unfenced
from fumehood.mcp.caller import CallContext, Caller, SandboxOptions, caller_of, in_order
from fumehood.mcp.files import type_of, uri_of
from fumehood.mcp.network import has_network, surroundings
from fumehood.mcp.progress import Note, reporting
from fumehood.mcp.shapes import CodeOutcome, CommandOutcome, Path, SandboxId, Seconds, WrittenFile
from fumehood.mcp.tool_answers import MAX_TEXT_CHARS, answer, languages_in_words, tell_execution
from fumehood.text import visible_line
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH
from fumehood.values.languages import StatefulName

_MAX_CODE_CHARS = 1_000_000
_MAX_HINTED_FILES = 200

Code = Annotated[
    str,
    Field(
        max_length=_MAX_CODE_CHARS,
        description="As in a notebook cell; `!` runs a command",
    ),
]


CodeLanguage = Annotated[StatefulName, Field(description="Each keeps its own variables")]
RunSeconds = Annotated[float | None, Field(ge=0.1, le=3600, description=f"Default {Limits().wall_seconds:g}")]


@dataclass(frozen=True, slots=True)
class _Place:
    """The sandbox of a call, and whether it was made for this call."""

    sandbox: AsyncSandbox
    is_new: bool = False


async def run_code(
    context: CallContext,
    code: Code,
    language: CodeLanguage = "python",
    timeout: RunSeconds = None,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, CodeOutcome]:
    """Run code in an isolated sandbox; return its output, the value of the last expression and its figures.

    Variables, imports and files stay for later calls.
    """
    # Some models send it in a Markdown fence.
    code = unfenced(code)
    caller = caller_of(context)
    seconds = caller.setup.run_seconds if timeout is None else timeout

    async with _place(caller, sandbox_id) as place, reporting(context, seconds) as note:
        sandbox = place.sandbox
        # A template's languages are named once, to the call that begins in a sandbox of it.
        spoken = languages_in_words(await sandbox.get_info()) if place.is_new else ""
        execution = await in_order(
            lambda: sandbox.run_code(code, language=language, timeout=seconds, on_stdout=note, on_stderr=note)
        )

    around = Surroundings()

    # Only hints of an error mention the network.
    if execution.error is not None or is_about_install(execution, code):
        around = surroundings((await sandbox.get_info()).network, caller.max_network, caller.tools)

        if execution.error is not None and execution.error.name == "FileNotFoundError":
            around = replace(around, files=await _data_files(sandbox))

    name = caller.name_of(sandbox.id)
    return tell_execution(
        execution, code, name, is_new=place.is_new, notes=_notes(caller, place, spoken), around=around
    )


def _notes(caller: Caller, place: _Place, spoken: str) -> list[str]:
    """Return notes for the model: languages, and the sandbox's id where calls need it."""
    name = caller.name_of(place.sandbox.id)
    notes = [f"[{spoken}]"] if spoken else []

    # The id stands last, where a model that goes on finds it.
    if place.is_new and not caller.keeps:
        notes.append(f"[sandbox_id: {name}; give it to the next call to go on with this state]")

    return notes


async def _data_files(sandbox: AsyncSandbox) -> tuple[str, ...]:
    """Return the paths of the data files, for a hint about one that was missed."""
    try:
        entries = await sandbox.files.list(DATA_PATH, depth=2)
    except FumehoodError:
        return ()

    return tuple(visible_line(entry.path) for entry in entries[:_MAX_HINTED_FILES] if entry.type == "file")


@asynccontextmanager
async def _place(caller: Caller, sandbox_id: str | None) -> AsyncGenerator[_Place, None]:
    """Returns the sandbox of this id; without an id the last one, or a new one."""
    if sandbox_id is not None:
        yield _Place(await caller.sandbox(sandbox_id))
    elif caller.keeps:
        before = caller.last
        sandbox = await caller.sandbox_to_run()
        yield _Place(sandbox, is_new=sandbox.id != before)
    else:
        async with caller.new(SandboxOptions()) as sandbox:
            yield _Place(sandbox, is_new=True)


_DEFAULT_COMMAND_SECONDS = 60.0
_MAX_COMMAND_CHARS = 100_000

Command = Annotated[str, Field(min_length=1, max_length=_MAX_COMMAND_CHARS, description="For bash")]


async def run_command(
    context: CallContext,
    command: Command,
    cwd: Path = HOME_PATH,
    timeout: Seconds = _DEFAULT_COMMAND_SECONDS,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, CommandOutcome]:
    """Run bash: its output and exit code. It sees the files of run_code, not its variables, and has no input."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)

    async with reporting(context, timeout) as note:
        outcome = await outcome_of(caller, sandbox, command, cwd=cwd, timeout=timeout, note=note)

    return tell_outcome(outcome)


async def outcome_of(
    caller: Caller,
    sandbox: AsyncSandbox,
    command: str | list[str],
    *,
    cwd: str | None,
    timeout: float,
    note: Note | None,
) -> CommandOutcome:
    """Run a command to its end, and return its outcome, within bounds.

    Args:
        caller: The caller.
        sandbox: The sandbox.
        command: A line for bash, or a program and its arguments.
        cwd: The directory.
        timeout: Seconds after which it is killed.
        note: Called with each piece of output.
    """
    code: int | None = 0

    try:
        done = await in_order(
            lambda: sandbox.commands.run(command, cwd=cwd, timeout=timeout, on_stdout=note, on_stderr=note)
        )
        texts, is_cut = (done.stdout, done.stderr), bool(done.truncated)
    except CommandExitError as error:
        texts, is_cut, code = (error.stdout, error.stderr), False, error.exit_code
    except CommandTimeoutError as error:
        texts, is_cut, code = (error.stdout, error.stderr), False, None

    whole = [readable(text) for text in texts]
    shares = fair_shares([len(text) for text in whole], MAX_TEXT_CHARS)
    stdout, stderr = (shorten(text, share) for text, share in zip(whole, shares, strict=True))
    return CommandOutcome(
        sandbox_id=caller.name_of(sandbox.id),
        exit_code=code,
        stdout=stdout,
        stderr=stderr,
        timed_out=code is None,
        is_shortened=is_cut or len(stdout) + len(stderr) < sum(map(len, whole)),
    )


def tell_outcome(outcome: CommandOutcome) -> CallToolResult:
    """Return the outcome of a command for the model, as text and as structured data."""
    parts = [outcome.stdout.rstrip("\n")]

    if outcome.stderr:
        parts.append(f"[standard error]\n{outcome.stderr.rstrip()}")

    if outcome.timed_out:
        parts.append("[killed: its time ran out; give a longer timeout, or do less]")
    elif outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")

    text = "\n".join(part for part in parts if part) or "(no output)"
    return answer(text, outcome, is_error=outcome.exit_code != 0)


_DEFAULT_INSTALL_SECONDS = 300.0

Requirement = Annotated[str, Field(max_length=200, pattern=REQUIREMENT)]
Requirements = Annotated[
    list[Requirement],
    Field(min_length=1, max_length=MAX_PACKAGES, description="Such as polars>=1"),
]


async def install_packages(
    context: CallContext,
    packages: Requirements,
    timeout: Seconds = _DEFAULT_INSTALL_SECONDS,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, CommandOutcome]:
    """Install Python packages from the index; needs a sandbox with network `pip` or `internet`."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)

    if not await has_network(sandbox):
        raise ToolError(
            f"sandbox {caller.name_of(sandbox.id)!r} has no network, so nothing can be installed\n"
            "Next: make one that has it with create_sandbox and network `pip`; files and variables of this one "
            "do not go with it"
        )

    command = shlex.join(install_command(packages))

    async with reporting(context, timeout) as note:
        outcome = await outcome_of(caller, sandbox, command, cwd=None, timeout=timeout, note=note)

    return tell_outcome(outcome)


NotebookPath = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"\.ipynb$", description="Of the notebook"),
]


async def to_notebook(
    context: CallContext, path: NotebookPath = "notebook.ipynb", sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, WrittenFile]:
    """Write all that run_code ran, with its outputs, as a Jupyter notebook in the sandbox."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    text = await in_order(sandbox.to_notebook)
    info = await in_order(lambda: sandbox.files.write(path, text))
    uri = uri_of(name, info.path)
    link = ResourceLink(uri=uri, name=info.name, mime_type=type_of(info.path), size=info.size_bytes)
    data = WrittenFile(sandbox_id=name, path=info.path, size_bytes=info.size_bytes, uri=uri)
    return answer(f"wrote {info.path} ({in_bytes(info.size_bytes)})", data, more=[link])
