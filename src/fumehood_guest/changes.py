"""Changes: which variables a cell has added, changed and deleted, found without running any code of the user's.

Runs in a context, around a cell whose caller has asked for it. Objects are looked at by what the interpreter and
well-known libraries store, never through a method that user code may have written, and all looks together are
bounded in time. So it is a bounded answer: an array is known by a sample of its bytes, an object by what its
attributes refer to.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from itertools import islice
from types import ModuleType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from fumehood_wire.messages import MAX_CHUNK_BYTES, MAX_VARIABLE_CHARS, MAX_VARIABLES

_LOOK_SECONDS = 0.05
_SAMPLE_BYTES = 1 << 16
_MOST_ITEMS = 1_000
_SUMMARY_CHARACTERS = 60
_LONG_BITS = 256
# By number: to compare or hash a class can run code of its metaclass.
_ATOMS = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))
_CONTAINERS = frozenset(map(id, (list, dict, set, frozenset, tuple, bytearray)))

Mark = Tuple[Any, ...]
Change = Dict[str, Any]


class Survey:
    """The variables of a namespace as they were at one moment.

    Args:
        namespace: Theirs.
        hidden: Names that are the shell's own.
    """

    def __init__(self, namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._hidden = hidden
        self._marks = self._take()
        self._types = {name: _type_name(value) for name, value in self._variables()}

    def changes(self) -> List[Change]:
        """Returns what is different now, by name."""
        now = self._take()
        changes = [
            _describe(name, "deleted", self._types[name], None) for name in self._marks if name not in now
        ]

        for name, mark in now.items():
            before = self._marks.get(name)

            if before is None or _differ(before, mark):
                value = self._namespace[name]
                kind = "added" if before is None else "changed"
                changes.append(_describe(name, kind, _type_name(value), value))

        changes.sort(key=lambda change: change["name"])
        return changes

    def encoded(self) -> bytes:
        """Returns `changes` as the wire takes them: as many as there is room for."""
        changes = self.changes()[:MAX_VARIABLES]

        while True:
            payload = json.dumps(changes).encode("ascii")

            if len(payload) <= MAX_CHUNK_BYTES:
                return payload

            del changes[len(changes) // 2 :]

    def _variables(self) -> List[Tuple[str, Any]]:
        return [
            (name, value)
            for name, value in list(self._namespace.items())
            if type(name) is str and not name.startswith("_") and name not in self._hidden
        ]

    def _take(self) -> Dict[str, Mark]:
        deadline = time.monotonic() + _LOOK_SECONDS
        marks: Dict[str, Mark] = {}

        for name, value in self._variables():
            # Out of time: it is known by what object it is, and by nothing more.
            marks[name] = _mark(value) if time.monotonic() < deadline else (id(value),)

        return marks


def _differ(before: Mark, now: Mark) -> bool:
    if len(before) == 1 or len(now) == 1:
        return bool(before[0] != now[0])

    # Two numbers are the same whether or not they are one object.
    return before[1:] != now[1:] if before[1] == now[1] and now[1] in _ATOMS else before != now


def _mark(value: Any) -> Mark:
    """What tells an object from another one, and from itself when it has changed."""
    kind = id(type(value))

    if kind in _ATOMS:
        return (id(value), kind, value if _is_short(value) else (id(value), _size(value)))

    if kind in _CONTAINERS:
        return (id(value), kind, len(value), _ids(value))

    if type(value) is ModuleType:
        return (id(value), kind)  # what it holds is its own business, and changes with every error

    look = _LOOKS.get(_origin(value))
    try:
        if look is not None:
            return (id(value), kind, look(value))

        attributes = object.__getattribute__(value, "__dict__")
    except Exception:
        return (id(value), kind)

    if type(attributes) is not dict:
        return (id(value), kind)

    return (id(value), kind, len(attributes), _ids(attributes))


def _ids(container: Any) -> int:
    if isinstance(container, bytearray):
        return zlib.crc32(container[:_SAMPLE_BYTES])

    if type(container) is dict:
        # In one step: another thread may change it.
        pairs = list(islice(dict.items(container), _MOST_ITEMS))
        items = [part for pair in pairs for part in pair]
    else:
        items = list(islice(container, _MOST_ITEMS))

    return hash(tuple(item if type(item) in (int, float, bool) else id(item) for item in items))


def _is_short(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) or len(value) <= _SAMPLE_BYTES


def _array(value: Any) -> Mark:
    """Of numpy's own class: shape, type, and a sample of what it holds."""
    flat = value.reshape(-1)
    step = max(1, flat.nbytes // _SAMPLE_BYTES)
    return (value.shape, str(value.dtype), zlib.crc32(flat[::step].tobytes()))


def _frame(value: Any) -> Mark:
    """Of pandas' own class: shape, labels, and a sample of each of its first blocks."""
    blocks = [
        _array(block.values) for block in islice(value._mgr.blocks, 8) if hasattr(block.values, "nbytes")
    ]
    return (value.shape, id(value.index), tuple(blocks))


_ARRAY = ("numpy", "ndarray")
_LOOKS: Dict[Tuple[str, str], Callable[[Any], Mark]] = {
    _ARRAY: _array,
    ("pandas.core.frame", "DataFrame"): _frame,
    ("pandas.core.series", "Series"): _frame,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _frame,
}


def _describe(name: str, kind: str, type_name: str, value: Any) -> Change:
    return {
        "name": name[:MAX_VARIABLE_CHARS],
        "kind": kind,
        "type": type_name[:MAX_VARIABLE_CHARS],
        "summary": "" if kind == "deleted" else _summary(value)[:MAX_VARIABLE_CHARS],
        "size_bytes": None if kind == "deleted" else _size(value),
    }


def _type_name(value: Any) -> str:
    # Past whatever a metaclass makes of the attribute.
    return str(type.__dict__["__name__"].__get__(type(value)))


def _origin(value: Any) -> Tuple[str, str]:
    """The module and the name of its class, if that is where the class is found: one that lies is nobody's."""
    try:
        module = type.__dict__["__module__"].__get__(type(value))
        name = _type_name(value)
        found = sys.modules[module].__dict__[name]
    except (AttributeError, KeyError, TypeError):
        return "", ""

    return (module, name) if found is type(value) else ("", "")


def _summary(value: Any) -> str:
    kind = id(type(value))

    if type(value) is int and value.bit_length() > _LONG_BITS:
        return f"an integer of {value.bit_length():,} bits"

    if (type(value) is str or type(value) is bytes) and len(value) > _SUMMARY_CHARACTERS:
        return f"{value[:_SUMMARY_CHARACTERS]!r}..."

    if kind in _ATOMS:
        return repr(value)

    if kind in _CONTAINERS:
        return f"{len(value):,} items"

    if _origin(value) in _LOOKS:
        return " x ".join(f"{length:,}" for length in value.shape)

    return ""


def _size(value: Any) -> Optional[int]:
    kind = id(type(value))

    if kind in _ATOMS or kind in _CONTAINERS:
        return sys.getsizeof(value)

    origin = _origin(value)

    if origin not in _LOOKS:
        return None

    try:
        if origin == _ARRAY:
            return int(value.nbytes)

        return int(sum(block.values.nbytes for block in islice(value._mgr.blocks, 64)))
    except Exception:
        return None
