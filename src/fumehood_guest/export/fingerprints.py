"""Fingerprints: values that identify an object and change when it changes, computed without running its code.

Runs in a context, for `changes`. An object is examined through what the interpreter and well-known libraries store,
never through a method that user code may have written: classes can fake anything but their address. A class counts as a
library's only if that library's module holds it. The search enters containers and objects of classes defined in cells,
up to a number of items, and samples large ones. Of objects of other classes the attributes are compared by identity
only: libraries change their inner state at will.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from itertools import islice
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

Mark = Tuple[Any, ...]

_SAMPLE_BYTES = 1 << 16
_MOST_ITEMS = 1_000
# How many items an array in a container counts for: it takes about as long.
_ARRAY_ITEMS = 50
_SUMMARY_CHARACTERS = 60
_MOST_SHOWN = 50
# Id and class; a third entry is the content.
_MARKED_BY_CONTENT = 2
_DIGEST_MASK = (1 << 64) - 1
_MOST_SHOWN_DIMENSIONS = 2
_LONG_BITS = 256
# By id: comparing or hashing a class can run code of its metaclass.
_ATOMS = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))
_CONTAINERS = frozenset(map(id, (list, dict, set, frozenset, tuple, bytearray)))
_OWN_MODULE = "__main__"
_ARRAY = ("numpy", "ndarray")


def mark(value: Any) -> Mark:
    """Returns a fingerprint that identifies an object, and differs after the object has changed."""
    kind = id(type(value))

    if kind in _ATOMS:
        return (id(value), kind, _atom(value))

    try:
        return (id(value), kind, _content(value))
    except Exception:
        return (id(value), kind)


def differ(before: Mark, now: Mark) -> bool:
    """Returns whether two fingerprints are of different values, as far as both are complete."""
    if len(before) == 1 or len(now) == 1:
        return bool(before[0] != now[0])

    # Equal numbers are the same value whether or not they are one object.
    return before[1:] != now[1:] if before[1] == now[1] and now[1] in _ATOMS else before != now


def digest(value: Any) -> str:
    """Returns a fingerprint of an object's class and content as 16 characters; equal content gives the same.

    Hashes of text, and the addresses in it, mean the same only in processes that were forked from one another.
    """
    found = mark(value)
    # Without a content, the object itself is all that is known.
    return f"{hash(found[1:] if len(found) > _MARKED_BY_CONTENT else found) & _DIGEST_MASK:016x}"


def type_name(value: Any) -> str:
    """Returns the name of an object's class, bypassing attributes of its metaclass."""
    return _name_of(type(value))


def _name_of(kind: type) -> str:
    # The name may be an instance of a user's subclass of str.
    return str.__str__(type.__dict__["__name__"].__get__(kind))


def summary(value: Any) -> str:
    """Returns a summary of an object in a few characters, or an empty text."""
    kind = id(type(value))

    if type(value) is int and value.bit_length() > _LONG_BITS:
        return f"an integer of {value.bit_length():,} bits"

    if (type(value) is str or type(value) is bytes) and len(value) > _SUMMARY_CHARACTERS:
        return f"{value[:_SUMMARY_CHARACTERS]!r}..."

    if kind in _ATOMS:
        return repr(value)

    if kind in _CONTAINERS:
        return f"{len(value):,} items"

    if _origin(value) not in _LOOKS:
        return ""

    try:
        return " x ".join(f"{length:,}" for length in value.shape)
    except Exception:
        return ""


def size_of(value: Any) -> Optional[int]:
    """Returns the memory that an object takes by itself, if it is known without calling its class."""
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


Table = Tuple[Sequence[int], List[Tuple[str, str]], List[List[str]]]


def elements_of(value: Any) -> Iterator[Tuple[str, Any]]:
    """Yields the first elements of a container with their keys or places; nothing for other objects."""
    kind = type(value)

    if kind is dict:
        yield from (
            (summary(key) or type_name(key), item) for key, item in list(islice(value.items(), _MOST_SHOWN))
        )
    elif kind in (list, tuple, set, frozenset):
        yield from ((str(place), item) for place, item in enumerate(list(islice(value, _MOST_SHOWN))))


def table_of(value: Any) -> Optional[Table]:
    """Returns shape, columns and first rows of an array or a frame of a well-known library; None for other objects."""
    origin = _origin(value)

    if origin not in _LOOKS:
        return None

    try:
        return _table_of_array(value) if origin == _ARRAY else _table_of_frame(value)
    except Exception:
        return None


def _table_of_array(value: Any) -> Table:
    shape = tuple(int(length) for length in value.shape)
    kind = _kind_of(value)

    if value.dtype.names is not None or not 1 <= len(shape) <= _MOST_SHOWN_DIMENSIONS:
        return shape, [], []

    if len(shape) == 1:
        return shape, [("0", kind)], [[cell] for cell in _cells(value)]

    part = value[:_MOST_SHOWN, :_MOST_SHOWN]
    return shape, [(str(number), kind) for number in range(part.shape[1])], [_cells(row) for row in part]


def _table_of_frame(value: Any) -> Table:
    manager = (_attributes(value, type(value)) or {})["_mgr"]

    if not _is_of_pandas(manager):
        return (), [], []

    # The manager's axes are the other way round: columns first, where there are any.
    shape = tuple(int(length) for length in manager.shape)[::-1]
    count = shape[1] if len(shape) > 1 else 1
    columns: Dict[int, Tuple[str, List[str]]] = {}

    for block in islice(manager.blocks, _MOST_SHOWN):
        if not _is_of_pandas(block):
            continue

        values = block.values
        places = [int(place) for place in islice(block.mgr_locs, count)]

        for row, place in enumerate(places if len(shape) > 1 else [0]):
            if place < _MOST_SHOWN:
                one = values[row] if getattr(values, "ndim", 1) > 1 else values
                columns[place] = (_kind_of(one), _cells(one))

    labels = _labels(manager.axes[0]) if len(shape) > 1 else ["0"]
    shown = [place for place in sorted(columns) if place < len(labels)]
    rows = min((len(columns[place][1]) for place in shown), default=0)
    return (
        shape,
        [(labels[place], columns[place][0]) for place in shown],
        [[columns[place][1][row] for place in shown] for row in range(rows)],
    )


def _labels(axis: Any) -> List[str]:
    if not _is_of_pandas(axis):
        return []

    values: Any = getattr(axis, "_values", None)

    if values is None:
        return [str(number) for number in range(_MOST_SHOWN)]

    # For a text, the quotes of its summary are left out.
    return [text[1:-1] if text[:1] in ("'", '"') else text for text in _cells(values)]


def _kind_of(values: Any) -> str:
    if _origin(values) == _ARRAY:
        return str(values.dtype.str) if values.dtype.names is None else "record"

    return type_name(values)


def _cells(values: Any) -> List[str]:
    """Returns the first cells of a column as text: numbers and strings by their value, other objects by their class."""
    if _is_of_pandas(values):
        inner = next(
            (
                one
                for one in (getattr(values, name, None) for name in ("_ndarray", "_data"))
                if one is not None
            ),
            None,
        )
        values = inner if _origin(inner) == _ARRAY else None

    if values is None or _origin(values) != _ARRAY:
        return []

    part = values[:_MOST_SHOWN]

    if values.dtype.kind in "mM":
        return [str(one) for one in part.astype(str).tolist()]

    return [summary(one) or type_name(one) for one in part.tolist()]


# -- contents of objects


def _content(value: Any) -> int:
    """Returns one number for the content of an object, which differs when the content differs."""
    # Only texts and non-negative numbers: -1 and -2 have the same hash.
    found: List[Any] = []
    seen: Dict[int, int] = {}
    # The objects still to examine, and whether to enter them.
    waiting: List[Tuple[Any, bool]] = [(value, True)]
    room = _MOST_ITEMS

    while waiting and room > 0:
        one, is_entered = waiting.pop()
        room -= 1

        if id(type(one)) in _ATOMS:
            found.append(_atom(one))
        elif not is_entered:
            found.append(id(one))
        elif id(one) in seen:
            found.append(seen[id(one)])
        else:
            seen[id(one)] = len(seen)
            itself, inner, cost = _parts(one, room)
            room -= cost
            found.append(itself)
            waiting.extend(reversed(inner))

    return hash(tuple(found))


def _atom(value: Any) -> Mark:
    """Returns an atom's value; for a long one a sample and its id, which may be reused after it is freed."""
    kind = type(value)

    if kind is str or kind is bytes:
        step = -(-len(value) // _SAMPLE_BYTES)
        return (kind.__name__, value) if step <= 1 else (id(value), len(value), value[::step])

    if kind is int and value.bit_length() > _LONG_BITS:
        return (id(value), hash(value))

    return (f"{kind.__name__} {value!r}",)


def _parts(value: Any, room: int) -> Tuple[Any, List[Tuple[Any, bool]], int]:
    """Returns an object's own fingerprint, the objects it holds, and the extra cost of the examination."""
    kind = type(value)

    if kind is ModuleType:
        return id(value), [], 0  # a module's content is internal, and changes with every error

    origin = _origin(value)
    look = _LOOKS.get(origin)

    if look is not None:
        return look(value), [], _ARRAY_ITEMS

    made_of = _made_of(value, origin)

    if made_of is not None:
        return id(kind), [(one, True) for one in made_of], 0

    if issubclass(kind, bytearray):
        return zlib.crc32(bytearray.__getitem__(value, slice(0, _SAMPLE_BYTES))), [], 0

    inner = [(one, True) for one in _items(value, kind, room)]
    is_own = _is_own(kind)
    attributes = _attributes(value, kind)

    if attributes is None and issubclass(kind, type) and _is_own(value):
        attributes = _dict_of(value)

    if attributes is not None:
        pairs = list(islice(dict.items(attributes) if type(attributes) is dict else attributes.items(), room))
        inner.extend((part, is_own) for pair in pairs for part in pair)

    if is_own:
        inner.extend((one, True) for one in _slots(value, kind))

    # An object identified by its content may be replaced: an equal list counts as unchanged.
    is_known = _is_container(kind) or (is_own and bool(inner))
    return (id(kind if is_known else value), len(inner)), inner, 0


def _is_container(kind: type) -> bool:
    return issubclass(kind, (list, tuple, dict, set, frozenset, deque))


def _items(value: Any, kind: type, room: int) -> List[Any]:
    """Returns the first items of a container, bypassing its class; atomically, since other threads may change it."""
    if issubclass(kind, list):
        return list.__getitem__(value, slice(0, room))

    if issubclass(kind, tuple):
        return list(tuple.__getitem__(value, slice(0, room)))

    if issubclass(kind, dict):
        return [part for pair in list(islice(dict.items(value), room)) for part in pair]

    if issubclass(kind, set):
        return list(islice(set.__iter__(value), room))

    if issubclass(kind, frozenset):
        return list(islice(frozenset.__iter__(value), room))

    if issubclass(kind, deque):
        return list(islice(deque.__iter__(value), room))

    return []


def _attributes(value: Any, kind: type) -> Optional[Mapping[str, Any]]:
    """Returns the attributes of an object, unless its class replaces `__dict__`."""
    for one in _bases(kind):
        getter = _dict_of(one).get("__dict__")

        if getter is not None:
            if type(getter) not in (GetSetDescriptorType, MemberDescriptorType):
                return None

            attributes = getter.__get__(value)
            return attributes if type(attributes) is dict else None

    return None


def _slots(value: Any, kind: type) -> List[Any]:
    found = []

    for one in _bases(kind):
        for slot in list(_dict_of(one).values()) if _is_own(one) else ():
            if type(slot) is MemberDescriptorType:
                try:
                    found.append(slot.__get__(value))
                except AttributeError:
                    found.append(None)  # it is not set

    return found


def _bases(kind: type) -> Tuple[type, ...]:
    return tuple(type.__dict__["__mro__"].__get__(kind))


def _dict_of(kind: type) -> MappingProxyType[str, Any]:
    found: MappingProxyType[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return found


def _is_own(kind: type) -> bool:
    """Whether a class was defined in a cell, according to its `__module__`."""
    module = _module_of(kind)
    return type(module) is str and module == _OWN_MODULE


def _module_of(kind: type) -> Any:
    """Returns the `__module__` of a class, which may be any object, or None."""
    try:
        return type.__dict__["__module__"].__get__(kind)
    except AttributeError:
        return None


# -- internals of well-known libraries


def _array(value: Any) -> Mark:
    """For numpy's own arrays: shape, type, and a checksum of a sample; large content is not copied."""
    # Not as text: the title of a field may be any object.
    dtype = value.dtype.str if value.dtype.names is None else id(value.dtype)
    # A view, unless there are gaps in it.
    sample = value.ravel(order="K") if value.flags.forc else value

    while sample.nbytes > _SAMPLE_BYTES:
        axis = max(range(sample.ndim), key=sample.shape.__getitem__)

        if sample.shape[axis] == 1:
            return (value.shape, dtype, id(value))

        step = min(sample.shape[axis], -(-sample.nbytes // _SAMPLE_BYTES))
        sample = sample[(slice(None),) * axis + (slice(None, None, step),)]

    return (value.shape, dtype, zlib.crc32(sample.tobytes()))


def _frame(value: Any) -> Mark:
    """For pandas' own objects: shape, labels, and a sample of each of the first blocks."""
    attributes = _attributes(value, type(value)) or {}
    manager = attributes["_mgr"]

    if not _is_of_pandas(manager):
        return (id(manager),)

    axes = [(id(axis), id((_attributes(axis, type(axis)) or {}).get("_name"))) for axis in manager.axes]
    blocks = [_values(block.values) for block in islice(manager.blocks, 8) if _is_of_pandas(block)]
    return (id(attributes.get("_name")), tuple(axes), len(manager.blocks), tuple(blocks))


def _values(values: Any) -> Mark:
    """For the content of a block: a numpy array, or one of pandas' arrays around some."""
    if _origin(values) == _ARRAY:
        return _array(values)

    if not _is_of_pandas(values):
        return (id(values),)

    inner = [getattr(values, name, None) for name in ("_ndarray", "_data", "_mask", "_pa_array")]
    return tuple(_array(one) if _origin(one) == _ARRAY else id(one) for one in inner)


def _is_of_pandas(value: Any) -> bool:
    module, _ = _origin(value)
    return module.partition(".")[0] == "pandas"


def _made_of(value: Any, origin: Tuple[str, str]) -> Optional[Sequence[Any]]:
    """Returns the parts that identify a value of an immutable class; None for any other value.

    Its address does not identify it: a later value may be allocated at the same place.
    """
    if origin in _VALUES:
        found: Sequence[Any] = value.__reduce__()[1]
        return found

    bases = _bases(type(value)) if origin in _PATHS or origin[0] == "numpy" else ()

    for base in bases:
        home = _home(base)

        if home == ("numpy", "number") or home == ("numpy", "datetime64"):
            return (value.tobytes(), value.dtype.str)

        parts = (_dict_of(base).get(name) for name in ("_raw_paths", "_parts"))
        slot = next((one for one in parts if type(one) is MemberDescriptorType), None)

        if slot is not None:
            return (slot.__get__(value),)

    return None


_VALUES = frozenset(
    (
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("decimal", "Decimal"),
        ("pandas", "Timedelta"),
        ("pandas", "Timestamp"),
        ("pandas._libs.tslibs.timedeltas", "Timedelta"),
        ("pandas._libs.tslibs.timestamps", "Timestamp"),
    )
)
_PATHS = frozenset((("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")))
_LOOKS: Dict[Tuple[str, str], Callable[[Any], Mark]] = {
    _ARRAY: _array,
    ("pandas.core.frame", "DataFrame"): _frame,
    ("pandas.core.series", "Series"): _frame,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _frame,
}


def _origin(value: Any) -> Tuple[str, str]:
    """Returns module and name of an object's class, if that module really holds the class; otherwise empty texts."""
    return _home(type(value))


def _home(kind: type) -> Tuple[str, str]:
    module, name = _module_of(kind), _name_of(kind)

    if type(module) is not str:
        return "", ""

    home = sys.modules.get(module)
    found = home.__dict__.get(name) if type(home) is ModuleType else None
    return (module, name) if found is kind else ("", "")
