"""A zygote's report on its preload list, and restarts without the modules that cannot be preloaded.

Runs in the host process, on the engine's loop; shared by the Linux runtimes. The zygote detects a module whose import
fails or leaves a thread, but cannot undo the import: its processes are ended, and started again without the module. A
runtime remembers these modules for its lifetime, so that only the first start of a template takes longer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fumehood.errors import IsolationUnavailableError, SandboxStartError, TemplateError, reason_of
from fumehood.log import events
from fumehood.runtimes.base import Spawner
from fumehood.templates.recipe import Cause, SkippedModule, without
from fumehood.values.template import DEFAULT_PRELOAD, Template

_MAX_REASON_CHARS = 300
_NOT_READY = "its zygote did not become ready"
_CAUSES: Mapping[object, Cause] = {"threads": "threads", "error": "error"}
# The last line of a Python traceback.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)\b.*")

_Started = TypeVar("_Started", bound=Spawner)


class UnfitModulesError(Exception):
    """Modules of the preload list cannot be preloaded; the processes that tried must be replaced.

    Args:
        left_out: The modules.
    """

    def __init__(self, left_out: tuple[SkippedModule, ...]) -> None:
        super().__init__(*map(str, left_out))
        self.left_out = left_out


class PreloadReport:
    """The reports of one zygote during its imports.

    Args:
        names: The modules on its preload list.

    Attributes:
        missing: Modules that the template does not have; complete when the zygote is ready.
        importing: The module whose import has begun last.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.missing: tuple[SkippedModule, ...] = ()
        self.importing = ""

    def note_importing(self, message: Mapping[str, Any]) -> None:
        """Records which module the zygote is about to import.

        Raises:
            ValueError: The module is not on the preload list.
        """
        self.importing = self._known(message["module"])

    def fault(self, message: Mapping[str, Any]) -> Exception | None:
        """Parses the zygote's ready message; returns an error if it cannot make sandboxes.

        Raises:
            ValueError, KeyError, TypeError: The message is malformed.
        """
        if not isinstance(message["unfit"], dict):
            raise TypeError("the unfit modules are no object")

        self.missing = tuple(
            SkippedModule(module=self._known(name), cause="missing", reason="it is not installed")
            for name in message["missing"]
        )
        unfit = tuple(
            SkippedModule(
                module=self._known(name), cause=_CAUSES[cause], reason=str(reason)[:_MAX_REASON_CHARS]
            )
            for name, (cause, reason) in message["unfit"].items()
        )

        if unfit:
            return UnfitModulesError(unfit)

        threads = [str(name)[:_MAX_REASON_CHARS] for name in message["threads"]]

        if not threads:
            return None

        return SandboxStartError(
            step="preload",
            reason=f"{len(threads)} threads run in the zygote, which a fork would lose, and no module of the preload "
            f"list has started them: {', '.join(threads[:5])}",
            hint="look for what the environment runs at each start of its interpreter (.pth files, sitecustomize)",
            logged=f"{len(threads)} threads run in the zygote",
        )

    def _known(self, name: object) -> str:
        if name not in self._names:
            raise ValueError(f"{name!r} is not on the preload list")

        return str(name)


class LeftOutModules:
    """The modules that the templates of one runtime cannot preload."""

    def __init__(self) -> None:
        self._known: dict[Template, tuple[SkippedModule, ...]] = {}
        self._reported: dict[Template, tuple[SkippedModule, ...]] = {}

    async def start(self, template: Template, start: Callable[[Template], Awaitable[_Started]]) -> _Started:
        """Starts a template's processes without the modules that cannot be preloaded, and logs which those are.

        Args:
            template: The template.
            start: Starts the processes once; raises UnfitModulesError if modules cannot be preloaded.
        """
        while True:
            known = self._known.get(template, ())
            try:
                spawner = await start(replace(template, preload=without(template.preload, known)))
            except UnfitModulesError as error:
                # Each round leaves out at least one more module.
                self._known[template] = (*known, *error.left_out)
                continue

            spawner.left_out = (*known, *spawner.left_out)
            self._tell(template, spawner.left_out)
            return spawner

    def _tell(self, template: Template, left_out: tuple[SkippedModule, ...]) -> None:
        """Logs the modules left out, once for each template: with own interpreters, each sandbox is a start."""
        # Missing modules of the default list are normal.
        reported = tuple(
            one for one in left_out if one.cause != "missing" or one.module not in DEFAULT_PRELOAD
        )

        if reported == self._reported.get(template, ()):
            return

        self._reported[template] = reported

        for one in reported:
            # Its reason holds the words of the module itself; `fumehood template build` shows them.
            events.MODULE_LEFT_OUT.log(template=template.name, module=one.module, cause=one.cause)


def start_fault(
    template: Template, error: BaseException, importing: str, words: str, hint: str
) -> BaseException:
    """Returns the error that a failed start of a template's processes ends with.

    Args:
        template: The template.
        error: The exception.
        importing: The module that was being imported.
        words: The output of launcher, jail init and zygote to standard error.
        hint: The remedy, where the error itself names none.
    """
    if isinstance(error, asyncio.CancelledError | IsolationUnavailableError | UnfitModulesError):
        return error

    # An error with a reason is not explained by other output: libraries write warnings.
    if isinstance(error, SandboxStartError) and not isinstance(error, ZygoteEndedError):
        return error

    if isinstance(error, TimeoutError):
        reason = logged = "it was not ready in time"
    elif isinstance(error, ZygoteEndedError):
        reason = logged = "it ended"
    else:
        reason, logged = str(error) or type(error).__name__, reason_of(error)

    at = f" while it imported {importing!r}" if importing else ""
    # After a time-out there is no final error in the output, only warnings.
    last = "" if isinstance(error, TimeoutError) else _last_words(words)
    return TemplateError(
        template=template.name,
        reason=f"{_NOT_READY}: {reason}{at}{f': {last}' if last else ''}",
        hint=hint,
        logged=f"{_NOT_READY}: {logged}{at}",
    )


class ZygoteEndedError(SandboxStartError):
    """The zygote has ended before it was ready; its standard error may contain the reason."""

    def __init__(self) -> None:
        super().__init__(step="preload", reason="the zygote ended")


def _last_words(words: str) -> str:
    """Returns the line of a program's output that best explains its end: the last exception, else the last line."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "")
