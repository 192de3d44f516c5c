"""What a zygote reports of its preload list, and a start without the modules that cannot be preloaded.

Runs in the host process, on the engine's loop; what the runtimes of Linux have in common. A module whose import leaves
a thread or fails is found by the zygote, which cannot undo the import: its processes are ended, and started again
without the module. A runtime remembers what it has found for as long as it lives, so that only the first start of a
template takes longer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fumehood.errors import IsolationUnavailableError, SandboxStartError, TemplateError
from fumehood.runtimes.base import Spawner
from fumehood.templates.preloads import Cause, LeftOut, without
from fumehood.values.template import DEFAULT_PRELOAD, Template

_LOG = logging.getLogger("fumehood.templates")
_MAX_REASON_CHARS = 300
_CAUSES: Mapping[object, Cause] = {"threads": "threads", "error": "error"}
# How Python names what a program has died of.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)\b.*")

_Started = TypeVar("_Started", bound=Spawner)


class UnfitModulesError(Exception):
    """Modules of the preload list cannot be preloaded: the processes that have tried are of no use.

    Args:
        left_out: The modules.
    """

    def __init__(self, left_out: tuple[LeftOut, ...]) -> None:
        super().__init__(*map(str, left_out))
        self.left_out = left_out


class PreloadReport:
    """What one zygote says while it imports.

    Args:
        names: The modules that it is told to import.

    Attributes:
        missing: Those that the template does not have; complete when the zygote is ready.
        importing: The one that it has begun to import last.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.missing: tuple[LeftOut, ...] = ()
        self.importing = ""

    def note_importing(self, message: Mapping[str, Any]) -> None:
        """Takes note of what the zygote is about to import.

        Raises:
            ValueError: It was told to import nothing of that name.
        """
        self.importing = self._known(message["module"])

    def fault(self, message: Mapping[str, Any]) -> Exception | None:
        """Reads what the zygote says when it is ready; returns why no sandbox can be made by it, if so.

        Raises:
            ValueError, KeyError, TypeError: The message is not what it should be.
        """
        if not isinstance(message["unfit"], dict):
            raise TypeError("the unfit modules are no object")

        self.missing = tuple(
            LeftOut(module=self._known(name), cause="missing", reason="it is not installed")
            for name in message["missing"]
        )
        unfit = tuple(
            LeftOut(module=self._known(name), cause=_CAUSES[cause], reason=str(reason)[:_MAX_REASON_CHARS])
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
        )

    def _known(self, name: object) -> str:
        if name not in self._names:
            raise ValueError(f"{name!r} is not on the preload list")

        return str(name)


class LeftOutModules:
    """What one runtime knows of the modules that its templates cannot preload."""

    def __init__(self) -> None:
        self._known: dict[Template, tuple[LeftOut, ...]] = {}
        self._told: dict[Template, tuple[LeftOut, ...]] = {}

    async def start(self, template: Template, start: Callable[[Template], Awaitable[_Started]]) -> _Started:
        """Starts a template's processes, without the modules that cannot be preloaded, and says in the log which.

        Args:
            template: The template.
            start: Starts it once; raises UnfitModulesError.
        """
        while True:
            known = self._known.get(template, ())
            try:
                spawner = await start(replace(template, preload=without(template.preload, known)))
            except UnfitModulesError as error:
                # Each turn leaves out at least one more.
                self._known[template] = (*known, *error.left_out)
                continue

            spawner.left_out = (*known, *spawner.left_out)
            self._tell(template, spawner.left_out)
            return spawner

    def _tell(self, template: Template, left_out: tuple[LeftOut, ...]) -> None:
        """Says it once for each template: with interpreters of their own, each sandbox is a start."""
        # The default list names what most have and nobody must.
        told = tuple(one for one in left_out if one.cause != "missing" or one.module not in DEFAULT_PRELOAD)

        if told == self._told.get(template, ()):
            return

        self._told[template] = told

        for one in told:
            _LOG.warning("template %r does not preload %s", template.name, one)


def start_fault(
    template: Template, error: BaseException, importing: str, words: str, hint: str
) -> BaseException:
    """Returns the error that a start of a template's processes ends with.

    Args:
        template: The template.
        error: What was raised.
        importing: The module that was being imported.
        words: What launcher, jail init and zygote have written to standard error.
        hint: The way out where the error itself names none.
    """
    if isinstance(error, asyncio.CancelledError | IsolationUnavailableError | UnfitModulesError):
        return error

    # An error that knows the reason is not explained by what else was written: libraries write warnings.
    if isinstance(error, SandboxStartError) and not isinstance(error, ZygoteEndedError):
        return error

    if isinstance(error, TimeoutError):
        reason = "it was not ready in time"
    elif isinstance(error, ZygoteEndedError):
        reason = "it ended"
    else:
        reason = str(error) or type(error).__name__

    at = f" while it imported {importing!r}" if importing else ""
    # What has not ended has no last words, only warnings.
    last = "" if isinstance(error, TimeoutError) else _last_words(words)
    return TemplateError(
        template=template.name,
        reason=f"its zygote did not become ready: {reason}{at}{f': {last}' if last else ''}",
        hint=hint,
    )


class ZygoteEndedError(SandboxStartError):
    """The zygote has ended before it was ready; what it wrote may tell why."""

    def __init__(self) -> None:
        super().__init__(step="preload", reason="the zygote ended")


def _last_words(words: str) -> str:
    """Returns the line that tells most of a program's end: the exception that ended it, or the last one."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "")
