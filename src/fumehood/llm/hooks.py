"""The caller's hooks before and after each call: a scan of the code, a wrapper around the text.

Runs in the user's process, in a thread of its own for plain functions, so that a slow one blocks no other task. A scan
decides about safety, so it fails closed: an exception, or a result that is no verdict, refuses the code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar, cast

from fumehood.text import visible_line

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
