"""Carries out calls: one sandbox at a time, its last file listing, and the caller's hooks before and after.

Calls run one after the other, because they share state that the model relies on. When the sandbox has ended, the answer
reports it and the next call has a fresh one; a sandbox that was borrowed from the caller is never started, replaced or
killed here. A hook that is a plain function runs in a thread of its own. A scan decides about safety, so it fails
closed: an exception, or a result that is no verdict, refuses the code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from fumehood import (
    AsyncSandbox,
    ContextNotFoundError,
    Execution,
    FumehoodError,
    InvalidArgumentError,
    LanguageUnavailableError,
    ProtocolViolationError,
    Sandbox,
    SandboxClosedError,
    SandboxNotFoundError,
    SandboxNotStartedError,
)
from fumehood.llm.error_text import Surroundings
from fumehood.llm.execution_text import Shape, is_about_install, is_failure, is_undone, list_files, tell
from fumehood.llm.file_changes import FileChanges
from fumehood.llm.file_links import Publisher
from fumehood.llm.readable_text import in_bytes, unfenced
from fumehood.llm.result import ToolFile, ToolResult
from fumehood.llm.text_editor import Edited, edit
from fumehood.text import visible_line
from fumehood.values.languages import STATEFUL_LANGUAGES, StatefulName

_T = TypeVar("_T")
_MAX_REASON_CHARS = 500


class ScanVerdict(Protocol):
    """The verdict of a scan about a piece of code."""

    @property
    def blocks(self) -> bool:
        """True when the code must not run."""


class WrappedText(Protocol):
    """A wrapped text with further fields."""

    @property
    def text(self) -> str:
        """The text for the model."""


# A scan with a parameter `language` receives it; one without receives the code alone.
Scan: TypeAlias = Callable[..., ScanVerdict | Awaitable[ScanVerdict]]
WrapOutput: TypeAlias = Callable[[str], str | WrappedText | Awaitable[str | WrappedText]]


async def reason_to_refuse(scan: Scan | None, code: str, *, language: str = "python") -> str:
    """Return why the scan refuses `code`, or an empty text if there is no scan or it accepts the code."""
    if scan is None:
        return ""

    try:
        asked = functools.partial(scan, language=language) if _takes_language(scan) else scan
        verdict = await ask_hook(asked, code)
    except Exception as error:  # noqa: BLE001 - the scan gave no verdict, so the code is refused
        return f"the scan failed ({type(error).__name__}), and unscanned code is not run"

    blocks: object = getattr(verdict, "blocks", None)

    if not isinstance(blocks, bool):
        return "the scan gave no verdict, and unscanned code is not run"

    if not blocks:
        return ""

    reason: object = getattr(verdict, "reason", None)
    return visible_line(str(reason or verdict), max_characters=_MAX_REASON_CHARS)


async def wrapped(wrap_output: WrapOutput | None, text: str) -> str:
    """Return the wrapped `text`; a wrapper that fails lets nothing through."""
    if wrap_output is None:
        return text

    try:
        made: object = await ask_hook(wrap_output, text)
    except Exception as error:  # noqa: BLE001 - unwrapped text must not pass
        return f"[the output is withheld: wrap_output failed ({type(error).__name__})]"

    made = getattr(made, "text", made)
    return made if isinstance(made, str) else "[the output is withheld: wrap_output gave no text]"


async def ask_hook(hook: Callable[[str], _T | Awaitable[_T]], text: str) -> _T:
    """Call a caller's function, asynchronous or not."""
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004
        return await cast("Callable[[str], Awaitable[_T]]", hook)(text)

    answer = await asyncio.to_thread(hook, text)
    return await answer if inspect.isawaitable(answer) else answer


def _takes_language(scan: Scan) -> bool:
    try:
        return "language" in inspect.signature(scan).parameters
    except (TypeError, ValueError):
        # A function of C without a signature.
        return False


class SandboxHolder:
    """Holds the sandbox of one interpreter.

    Args:
        sandbox: The borrowed one, or None.
        options: Arguments for sandboxes that are made here; an option of None is left out. `lifetime` is the
            sandbox's own `timeout`, a word that means one call here.
    """

    def __init__(self, sandbox: AsyncSandbox | Sandbox | None, options: Mapping[str, object]) -> None:
        self._options = {name: value for name, value in options.items() if value is not None}
        self.is_owner = sandbox is None
        self._sandbox = async_face(sandbox) if sandbox is not None else None

        if sandbox is not None and self._options:
            name, value = next(iter(self._options.items()))
            raise InvalidArgumentError(
                field=name, value=value, allowed="nothing when a sandbox is given: it has its own"
            )

        if "lifetime" in self._options:
            self._options["timeout"] = self._options.pop("lifetime")

    @property
    def current(self) -> AsyncSandbox:
        """The current sandbox.

        Raises:
            SandboxNotStartedError: No sandbox was made yet.
        """
        if self._sandbox is None:
            raise SandboxNotStartedError

        return self._sandbox

    @property
    def is_begun(self) -> bool:
        """True when there is a sandbox."""
        return self._sandbox is not None

    async def begin(self) -> AsyncSandbox:
        """Return the sandbox, made now if there is none."""
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox(**self._options).__aenter__()  # type: ignore[arg-type]

        return self._sandbox

    async def replace(self) -> bool:
        """Drop a sandbox that has ended; return True when the next use makes a fresh one."""
        if not self.is_owner:
            return False

        await self.end()
        return True

    async def end(self) -> None:
        """Kill the sandbox if it was made here."""
        if self.is_owner and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()


def async_face(sandbox: AsyncSandbox | Sandbox) -> AsyncSandbox:
    """Return the asynchronous object of a sandbox."""
    if isinstance(sandbox, AsyncSandbox):
        return sandbox

    if isinstance(sandbox, Sandbox):
        return sandbox._async

    raise InvalidArgumentError(
        field="sandbox", value=sandbox, allowed="a Sandbox or an AsyncSandbox, or None"
    )


def sync_face(sandbox: AsyncSandbox) -> Sandbox:
    """Return the synchronous object of a sandbox."""
    face = Sandbox.__new__(Sandbox)
    face._hold(sandbox)
    return face


_BASH = "bash"
_WITH_CONTEXTS = frozenset(STATEFUL_LANGUAGES) - {"python"}
_CALLBACKS = frozenset(("on_stdout", "on_stderr", "on_result"))
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
        # The context of each language beside Python; these belong to this tool.
        self._contexts: dict[str, str] = {}
        self._missing: set[str] = set()
        self._lock = asyncio.Lock()

    async def run_python(self, code: str, options: Options = NO_OPTIONS) -> ToolResult:
        """Run Python code, with further options for this call; a Markdown fence around it is removed."""
        return await self._run(unfenced(code), {**self._rules.options, **options})

    async def run_code(self, code: str, language: str, options: Options = NO_OPTIONS) -> ToolResult:
        """Run code of a language; functions of the caller and transactions are Python's alone.

        Raises:
            LanguageUnavailableError: The template lacks the language.
        """
        if language == "python":
            return await self.run_python(code, options)

        callbacks = {name: option for name, option in options.items() if name in _CALLBACKS}
        timeout = options.get("timeout", self._rules.options.get("timeout"))
        try:
            return await self._run(unfenced(code), {"language": language, "timeout": timeout, **callbacks})
        except LanguageUnavailableError:
            self._missing.add(language)
            raise

    def languages_left(self, languages: Sequence[str]) -> list[str]:
        """Return the given languages, without those that a call has found to be missing."""
        return [language for language in languages if language not in self._missing]

    async def run_bash(self, command: str) -> ToolResult:
        """Run a command in a shell that keeps its state."""
        timeout = self._rules.options.get("timeout")
        return await self._run(unfenced(command), {"language": _BASH, "timeout": timeout})

    async def restart_bash(self) -> ToolResult:
        """Restart the shell."""

        async def restart(sandbox: AsyncSandbox) -> ToolResult:
            if _BASH in self._contexts:
                await sandbox.restart_code_context(self._contexts[_BASH])

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
        """Release the sandbox: one that was made here is killed; in a borrowed one our contexts are removed."""
        contexts, self._contexts = self._contexts, {}
        self._changes = FileChanges()

        if not self.holder.is_owner:
            for context in contexts.values():
                try:
                    await self.holder.current.remove_code_context(context)
                except FumehoodError:
                    # The context has ended, or its sandbox has.
                    continue

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

            context = await self._context(sandbox, language)
            execution = await sandbox.run_code(code, context=context, **options)
            return await self._answer(sandbox, execution, code)

        async with self._lock:
            try:
                return await self._in_sandbox(run)
            except ContextNotFoundError:
                # Our context was removed; the next call makes another.
                self._contexts.pop(language, None)
                raise

    async def _in_sandbox(self, act: Callable[[AsyncSandbox], Awaitable[ToolResult]]) -> ToolResult:
        was_there = self.holder.is_begun
        sandbox = await self.holder.begin()

        try:
            return await act(sandbox)
        except _ENDED as error:
            self._changes = FileChanges()
            self._contexts = {}
            return _after_the_end(
                error,
                is_replaced=await self.holder.replace(),
                is_unsure=error.outcome_unknown or not was_there,
            )

    async def _context(self, sandbox: AsyncSandbox, language: str) -> str | None:
        """Return the context of a language that keeps variables; Python's is the sandbox's own."""
        if language not in _WITH_CONTEXTS:
            return None

        if language not in self._contexts:
            made = await sandbox.create_code_context(language=cast("StatefulName", language))
            self._contexts[language] = made.id

        return self._contexts[language]

    async def _answer(self, sandbox: AsyncSandbox, execution: Execution, code: str) -> ToolResult:
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
        shown = tell(execution, code, self._rules.shape, around, notes)
        return ToolResult(
            text=await self.wrap(shown.text),
            images=shown.images,
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
    """Return the result of a call whose sandbox has ended: the loss of all state, and what the next call will find."""
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
