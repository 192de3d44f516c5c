"""The tool that runs a line of bash in a sandbox.

Runs in the process of the MCP server. A command that fails is an answer with its exit code, not a refusal: the model
reads what it wrote.
"""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood import AsyncSandbox, CommandExitError, CommandTimeoutError
from fumehood.llm.readable_text import fair_shares, readable, shorten
from fumehood.mcp.arguments import Path, SandboxId, Seconds
from fumehood.mcp.caller import CallContext, Caller, caller_of, in_order
from fumehood.mcp.progress import Note, reporting
from fumehood.mcp.shapes import CommandOutcome
from fumehood.mcp.tool_answers import MAX_TEXT_CHARS, answer
from fumehood.values.guest_paths import HOME_PATH

_DEFAULT_SECONDS = 60.0
_MAX_COMMAND_CHARS = 100_000

Command = Annotated[str, Field(min_length=1, max_length=_MAX_COMMAND_CHARS, description="For bash")]


async def run_command(
    context: CallContext,
    command: Command,
    cwd: Path = HOME_PATH,
    timeout: Seconds = _DEFAULT_SECONDS,
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
    """Return the outcome of a command, in both forms."""
    parts = [outcome.stdout.rstrip("\n")]

    if outcome.stderr:
        parts.append(f"[standard error]\n{outcome.stderr.rstrip()}")

    if outcome.timed_out:
        parts.append("[killed: its time ran out; give a longer timeout, or do less]")
    elif outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")

    text = "\n".join(part for part in parts if part) or "(no output)"
    return answer(text, outcome, is_error=outcome.exit_code != 0)
