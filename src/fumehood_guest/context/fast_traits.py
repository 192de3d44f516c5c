"""Traits that each cell sets, without the overhead of notifications when there are no observers.

Used in a context, by the parts of its shell. Setting a trait of IPython costs more than running most statements: the
value is validated, compared and announced. These do the same when there are observers or the value has an unusual type;
otherwise they store the value, with no observable difference.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, FrozenSet

from IPython.core.interactiveshell import ExecutionResult
from traitlets import All, Bool, Instance, Integer, Unicode

_NOBODY: Dict[str, Any] = {}
_RESULT = "IPython.core.interactiveshell.ExecutionResult"


class _Quick:
    """A trait that stores values of some types directly, unless there are observers or validators."""

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
            # An empty list of observers stays behind after an observer was removed.
            and not any(watched.get(All, _NOBODY).values())
        ):
            owner._trait_values[name] = value
        else:
            super().__set__(owner, value)  # type: ignore[misc]


class QuickBool(_Quick, Bool):  # type: ignore[misc]
    """A Bool trait; a bool is stored without validation."""

    plain = frozenset((bool,))


class QuickInteger(_Quick, Integer):  # type: ignore[misc]
    """An Integer trait without bounds; an int is stored without validation."""

    plain = frozenset((int,))


class QuickUnicode(_Quick, Unicode):  # type: ignore[misc]
    """A Unicode trait; a str is stored without validation."""

    plain = frozenset((str,))


class QuickResult(_Quick, Instance):  # type: ignore[misc]
    """A trait for IPython's ExecutionResult or None; either is stored without validation."""

    plain = frozenset((ExecutionResult, type(None)))

    def __init__(self) -> None:
        super().__init__(_RESULT, allow_none=True)
