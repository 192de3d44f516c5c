"""Heap layout: fills the free slots that imports leave all over the heap, so that forks write to few pages.

Runs in jail init and zygote, once, when everything is imported and before the first fork. Later objects lie close
together, in memory that nothing else uses: a page that is written to in a fork is copied, and a huge page is split, in
the process that forks.
"""

from __future__ import annotations

import gc
import sys
from typing import Callable, List

# The interpreter keeps small objects in pools, each for one size, which begin with a header (Objects/obmalloc.c). It
# takes a new pool when no other of that size has a free slot.
_POOL_BYTES = 1 << 14 if sys.version_info >= (3, 10) else 1 << 12
_POOL_HEADER_BYTES = 48
_STEP_BYTES = 16
_LARGEST_BYTES = 512
# How many objects are made at a time. The first ones of a new pool are adjacent.
_BATCH = 64
_ROW = 4
# If this much was allocated without finding a new pool, the allocator has no pools.
_MOST_BYTES_OF_A_SIZE = 8 << 20

# The second name is deprecated where the first exists (Python 3.13).
_clear_type_cache = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
# The objects in the filled slots, kept as long as this process and its forks live.
_kept: List[object] = []


_thresholds = gc.get_threshold()


def put_off_collections() -> None:
    """Prevents garbage collections until `freeze`: during imports they find almost nothing.

    Whether collections are enabled is left alone: a module that disables them means it.
    """
    gc.set_threshold(0)


def freeze() -> None:
    """Excludes existing objects from later collections, which would write to all of them, and fills the free slots.

    After: new objects are allocated close together, and are collected if collections were only put off.
    """
    gc.collect()

    for size_bytes in range(_STEP_BYTES, _LARGEST_BYTES + 1, _STEP_BYTES):
        if not _fill_those_of(size_bytes):
            break

    freeze_as_it_is()


def freeze_as_it_is() -> None:
    """The same in a millisecond, without a collection before and with free slots left: for a process with few forks."""
    gc.freeze()

    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*_thresholds)


def forget_lookups() -> None:
    """Clears the cache of attribute lookups in types.

    Otherwise each fork, by its own lookups, would write to the pages of names that it never uses.
    """
    _clear_type_cache()


def _fill_those_of(size_bytes: int) -> bool:
    """Fills all free slots in the memory pools of this object size; returns whether there are pools."""
    make = _maker_of(size_bytes)
    taken: List[object] = []

    for _ in range(_MOST_BYTES_OF_A_SIZE // size_bytes // _BATCH):
        batch: List[object] = [None] * _BATCH

        # No other object may be made meanwhile.
        for place in range(_BATCH):
            batch[place] = make()

        taken.extend(batch)

        if _holds_new_pool([id(one) for one in batch], size_bytes):
            _kept.append(taken)
            return True

    return False


def _holds_new_pool(addresses: List[int], size_bytes: int) -> bool:
    span_bytes = (_ROW - 1) * size_bytes
    pairs = zip(addresses, addresses[_ROW - 1 :])  # noqa: B905 - guests run on Python 3.9 too
    return any(
        first % _POOL_BYTES == _POOL_HEADER_BYTES and last == first + span_bytes for first, last in pairs
    )


def _maker_of(size_bytes: int) -> Callable[[], object]:
    """Returns a factory of objects of this size without references."""
    if size_bytes == _STEP_BYTES:
        return object

    if size_bytes == 2 * _STEP_BYTES:
        return lambda: complex(0.0, 1.0)

    length = size_bytes - sys.getsizeof(b"")
    return lambda: bytes(length)
