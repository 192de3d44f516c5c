"""Runs work that would block the loop in a single thread, one piece after the other.

Runs in the host and in the server process. One thread and not many: each that computes makes the loop wait for the
interpreter's lock once more. The work must not spend long in one call of C code, which holds that lock: see
`json_in_pieces`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")

Kind = Literal["answers", "listings", "saved states", "kept records"]
# A smaller value is written in about a millisecond.
SMALL_BYTES = 128 * 1024
# The number of list items that are written in one call, if none of them has more than a few members.
_ITEMS = 500
_FEW = 10
_DEPTH = 2
_UNICODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ASCII = json.JSONEncoder(separators=(",", ":")).encode
_Write = Callable[[Any], str]


async def off_loop(kind: Kind, function: Callable[..., _T], *arguments: Any) -> _T:
    """Returns what a function returns, called in the thread for this kind of work when those before it are done.

    If the caller is cancelled while it waits for the thread, the function is not called.
    """
    return await asyncio.get_running_loop().run_in_executor(_executor(kind), function, *arguments)


def json_in_pieces(value: Any, *, is_ascii: bool = False) -> str:
    """Returns plain data as JSON, encoded in many short calls; with escapes where the text must be ASCII."""
    return "".join(_pieces(value, _ASCII if is_ascii else _UNICODE))


@cache
def _executor(kind: Kind) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"fumehood-{kind.replace(' ', '-')}")


def _pieces(value: Any, write: _Write) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        return _object_pieces(value, write)

    if isinstance(value, list) and value:
        return _list_pieces(value, write)

    return iter((write(value),))


def _object_pieces(value: Mapping[str, Any], write: _Write) -> Iterator[str]:
    mark = "{"

    for some in _portions(list(value)):
        if any(_is_large(value[name]) for name in some):
            for name in some:
                yield f"{mark}{write(name)}:"
                yield from _pieces(value[name], write)
                mark = ","
        else:
            yield mark + write({name: value[name] for name in some})[1:-1]
            mark = ","

    yield "}"


def _list_pieces(value: list[Any], write: _Write) -> Iterator[str]:
    mark = "["

    for some in _portions(value):
        if any(map(_is_large, some)):
            for one in some:
                yield mark
                yield from _pieces(one, write)
                mark = ","
        else:
            yield mark + write(some)[1:-1]
            mark = ","

    yield "]"


def _portions(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), _ITEMS):
        yield items[start : start + _ITEMS]


def _is_large(value: Any, depth: int = 0) -> bool:
    """Whether a value has many items; stops looking as soon as it has seen that."""
    if not isinstance(value, (Mapping, list)) or not value:
        return False

    if len(value) > _FEW or depth > _DEPTH:
        return True

    return any(_is_large(one, depth + 1) for one in (value.values() if isinstance(value, Mapping) else value))
