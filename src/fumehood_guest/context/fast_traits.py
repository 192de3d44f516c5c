"""Traits that each cell sets, without what a trait does for watchers when there are none.

Used in a context, by the parts of its shell. Setting a trait of IPython's costs more than running most statements: the
value is checked, compared and announced. These do the same when somebody watches or the value is an unusual one;
otherwise they keep the value, which is all that anybody could notice.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, FrozenSet

from IPython.core.interactiveshell import ExecutionResult
from traitlets import All, Bool, Instance, Integer, Unicode

_NOBODY: Dict[str, Any] = {}
_RESULT = "IPython.core.interactiveshell.ExecutionResult"


class _Quick:
    """A trait that takes values of some types as they are, unless somebody wants to know."""

    plain: ClassVar[FrozenSet[type]]
    name: str

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        try:
            return owner._trait_values[self.name]
        except (AttributeError, KeyError):
            return super().__get__(owner, kind)  # type: ignore[misc]

    def __set__(self, owner: Any, value: Any) -> None:
        name, watched = self.name, owner._trait_notifiers

        if (
            type(value) in self.plain
            and name not in watched
            and name not in owner._trait_validators
            # A list of nobody stays behind when somebody has watched.
            and not any(watched.get(All, _NOBODY).values())
        ):
            owner._trait_values[name] = value
        else:
            super().__set__(owner, value)  # type: ignore[misc]


class QuickBool(_Quick, Bool):  # type: ignore[misc]
    """True or false."""

    plain = frozenset((bool,))


class QuickInteger(_Quick, Integer):  # type: ignore[misc]
    """A whole number without bounds."""

    plain = frozenset((int,))


class QuickUnicode(_Quick, Unicode):  # type: ignore[misc]
    """A text."""

    plain = frozenset((str,))


class QuickResult(_Quick, Instance):  # type: ignore[misc]
    """What came of a cell, as IPython has it, or None."""

    plain = frozenset((ExecutionResult, type(None)))

    def __init__(self) -> None:
        super().__init__(_RESULT, allow_none=True)
