"""The modules of a template's preload list that are left out, and why.

Plain data of the host process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fumehood.text import visible_line

Cause = Literal["missing", "threads", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A module of a preload list that is not preloaded; code in sandboxes can still import it, if it is there.

    Attributes:
        module: Its name.
        cause: It is not installed; it leaves threads running, which a fork would lose; or its import fails.
        reason: The same in words.
    """

    module: str
    cause: Cause
    reason: str

    def __str__(self) -> str:
        return f"{visible_line(self.module)}: {visible_line(self.reason, max_characters=300)}"


def without(preload: Iterable[str], left_out: Iterable[LeftOut]) -> tuple[str, ...]:
    """Returns a preload list without the modules that are left out."""
    names = {one.module for one in left_out}
    return tuple(name for name in preload if name not in names)
