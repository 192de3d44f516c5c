"""Carries out calls: one sandbox at a time, its last file listing, and the hooks before and after.

Calls run one after the other, because they share state that the model relies on. When the sandbox has ended, the answer
reports it and the next call has a fresh one, if the sandbox was made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fumehood import (
    AsyncSandbox,
    ContextNotFoundError,
    Execution,
    FumehoodError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.llm.execution_text import Shape, is_about_install, is_failure, is_undone, list_files, tell
from fumehood.llm.file_changes import FileChanges
from fumehood.llm.file_links import Publisher
from fumehood.llm.hints import Surroundings
from fumehood.llm.hooks import Scan, WrapOutput, reason_to_refuse, wrapped
from fumehood.llm.readable_text import in_bytes, unfenced
from fumehood.llm.result import ToolFile, ToolResult
from fumehood.llm.sandbox_holder import SandboxHolder
from fumehood.llm.text_editor import Edited, edit
from fumehood.text import visible_line

_MAX_FILES = 20
_MAX_HINTED_FILES = 200
_ENDED = (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError)
Options: TypeAlias = Mapping[str, Any]
"""Arguments of `run_code` by name."""
NO_OPTIONS: Options = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for each call.

    Attributes:
        shape: How the text is made.
        options: Further arguments of `run_code` for Python.
        scan: Checks code before it runs.
        wrap_output: Makes the last change to the text.
        publisher: Publishes files.
    """

    shape: Shape
    options: Mapping[str, Any]
    scan: Scan | None = None
    wrap_output: WrapOutput | None = None
    publisher: Publisher | None = None


class Workbench:
    """Carries out calls in the sandbox of one interpreter."""

    def __init__(self, holder: SandboxHolder, rules: Rules) -> None:
        self.holder = holder
        self._rules = rules
        self._changes = FileChanges()
        self._bash_context: str | None = None
        self._lock = asyncio.Lock()

    async def run_python(self, code: str, options: Options = NO_OPTIONS) -> ToolResult:
        """Run Python code, with further options for this call; a Markdown fence around it is removed."""
        return await self._run(unfenced(code), {**self._rules.options, **options})

    async def run_bash(self, command: str) -> ToolResult:
        """Run a command in a shell that keeps its state."""
        timeout = self._rules.options.get("timeout")
        return await self._run(unfenced(command), {"language": "bash", "timeout": timeout})

    async def restart_bash(self) -> ToolResult:
        """Restart the shell."""

        async def restart(sandbox: AsyncSandbox) -> ToolResult:
            if self._bash_context is not None:
                await sandbox.restart_code_context(self._bash_context)

            return ToolResult(text="The shell was restarted.")

        async with self._lock:
            return await self._in_sandbox(restart)

    async def edit(self, arguments: Mapping[str, object]) -> tuple[Edited | None, ToolResult]:
        """Carry out a command of the text editor; without a sandbox there is no `Edited`."""
        made: list[Edited] = []

        async def carry_out(sandbox: AsyncSandbox) -> ToolResult:
            if not self._changes.is_begun:
                await self._changes.look(sandbox)

            edited = await edit(sandbox, arguments, max_chars=self._rules.shape.max_text_chars)
            made.append(edited)
            files: list[ToolFile] = []
            notes: list[str] = []

            if edited.is_write:
                found = await self._changes.look(sandbox)
                files, notes = await self._published(sandbox, found[:_MAX_FILES])

            text = await self.wrap("\n".join([edited.text, *notes]))
            return ToolResult(text=text, files=tuple(files), is_error=bool(edited.error))

        async with self._lock:
            result = await self._in_sandbox(carry_out)

        return (made[0] if made else None), result

    async def close(self) -> None:
        """Release the sandbox: one that was made here is killed; in a borrowed one our shell's context is removed."""
        shell, self._bash_context = self._bash_context, None
        self._changes = FileChanges()

        if shell is not None and not self.holder.is_owner:
            try:
                await self.holder.current.remove_code_context(shell)
            except FumehoodError:
                # The context has ended, or its sandbox has.
                pass

        await self.holder.end()

    async def wrap(self, text: str) -> str:
        """Return a text from the caller's wrapper."""
        return await wrapped(self._rules.wrap_output, text)

    async def upload(self, path: str, content: Any) -> str:
        """Write a file of the user, which is not reported as new; return its path."""
        async with self._lock:
            sandbox = await self.holder.begin()
            info = await sandbox.files.write(path, content)
            self._changes.know(info)
            return info.path

    async def _run(self, code: str, options: Mapping[str, Any]) -> ToolResult:
        language = str(options.get("language") or "python")
        reason = await reason_to_refuse(self._rules.scan, code, language=language)

        if reason:
            text = f"The code was not run: {reason}.\nHint: solve the task in another way, without what was refused."
            return ToolResult(text=text, is_error=True, blocked_by=reason)

        async def run(sandbox: AsyncSandbox) -> ToolResult:
            if not self._changes.is_begun:
                await self._changes.look(sandbox)

            context = await self._shell(sandbox) if options.get("language") == "bash" else None
            execution = await sandbox.run_code(code, context=context, **options)
            return await self._told(sandbox, execution, code)

        async with self._lock:
            try:
                return await self._in_sandbox(run)
            except ContextNotFoundError:
                # Our shell's context was removed; the next call makes another.
                self._bash_context = None
                raise

    async def _in_sandbox(self, act: Callable[[AsyncSandbox], Awaitable[ToolResult]]) -> ToolResult:
        was_there = self.holder.is_begun
        sandbox = await self.holder.begin()

        try:
            return await act(sandbox)
        except _ENDED as error:
            self._changes = FileChanges()
            self._bash_context = None
            return _after_the_end(
                error,
                is_replaced=await self.holder.replace(),
                is_unsure=error.outcome_unknown or not was_there,
            )

    async def _shell(self, sandbox: AsyncSandbox) -> str:
        if self._bash_context is None:
            self._bash_context = (await sandbox.create_code_context(language="bash")).id

        return self._bash_context

    async def _told(self, sandbox: AsyncSandbox, execution: Execution, code: str) -> ToolResult:
        """Make the result; when the sandbox ended right after the code, the result keeps the code's output."""
        try:
            found = await self._changes.look(sandbox)
        except _ENDED:
            found = []

        files, notes = await self._published(sandbox, found[:_MAX_FILES])
        notes = [*list_files(files, len(found) - len(files)), *notes]
        notes += [
            f"[{visible_line(folder)} holds too many files to list new ones]"
            for folder in self._changes.overfull
        ]
        needs_facts = execution.error is not None or is_about_install(execution, code)
        around = await self._surroundings(sandbox) if needs_facts else Surroundings()
        told = tell(execution, code, self._rules.shape, around, notes)
        return ToolResult(
            text=await self.wrap(told.text),
            images=told.images,
            files=tuple(files),
            is_error=is_failure(execution),
            execution=execution,
            state_lost=execution.state_lost,
            undone=is_undone(execution),
        )

    async def _published(
        self, sandbox: AsyncSandbox, files: list[ToolFile]
    ) -> tuple[list[ToolFile], list[str]]:
        publisher = self._rules.publisher

        if publisher is None or not files:
            return files, []

        try:
            published = await publisher.publish(sandbox, [file.path for file in files])
        except Exception as error:  # noqa: BLE001 - a store's failure must not lose what the code has done
            why = error.message if isinstance(error, FumehoodError) else type(error).__name__
            return files, [f"[the files were not published: {why}]"]

        urls = {file.path: file.url for file in published}
        skipped = [
            f"[not published: {visible_line(file.name)}, {visible_line(file.skipped)}]"
            for file in published
            if file.skipped
        ]
        return [replace(file, url=urls.get(file.path)) for file in files], skipped

    async def _surroundings(self, sandbox: AsyncSandbox) -> Surroundings:
        """Return the facts for hints at this moment; none of a sandbox that has just ended."""
        try:
            info = await sandbox.get_info()
        except FumehoodError:
            return Surroundings()

        return Surroundings(
            network=info.network,
            files=tuple(visible_line(path) for path in self._changes.paths[:_MAX_HINTED_FILES]),
            memory=in_bytes(info.limits.memory_bytes),
        )


def _after_the_end(error: FumehoodError, *, is_replaced: bool, is_unsure: bool) -> ToolResult:
    """Return the result after the end of the sandbox: no state is left, and what the next call gets."""
    ran = (
        "It is not known how much of this call was carried out."
        if is_unsure
        else "This call was not carried out."
    )
    goes_on = (
        "a fresh sandbox is ready for the next call. Import, load and define again what you need; files that were "
        "uploaded have to be uploaded again."
        if is_replaced
        else "tell the user that the sandbox is gone; further calls will fail in the same way."
    )
    text = f"{error.message}. All variables and files are lost. {ran}\nHint: {goes_on}"
    return ToolResult(text=text, is_error=True, state_lost=True)
