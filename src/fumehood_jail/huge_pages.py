"""Huge pages: collapses a zygote's memory into huge pages, so that its forks are fast.

Runs in a zygote, once, when everything is imported and before anything is forked from it.
"""

from __future__ import annotations

from fumehood_jail import syscalls

_HUGE_PAGE_BYTES = 2 << 20


def collapse() -> int:
    """Asks the kernel to back heap and anonymous mappings with huge pages, where it can (Linux 6.1).

    A fork copies one entry for each page: with huge pages it copies far fewer. What a child writes to is
    split again and copied in small pages, so nothing gets larger.

    Returns:
        How many huge pages were made; 0 where the kernel has none.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]

    return sum(_collapse(fields[0]) for fields in lines if _is_own_memory(fields))


def _is_own_memory(fields: list[str]) -> bool:
    """Whether a mapping is writable and is heap or anonymous memory."""
    return fields[1].startswith("rw-p") and (len(fields) <= 5 or fields[5] == "[heap]")


def _collapse(bounds: str) -> int:
    start, end = (int(part, 16) for part in bounds.split("-"))
    first = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    collapsed = 0

    for address in range(first, end - _HUGE_PAGE_BYTES + 1, _HUGE_PAGE_BYTES):
        try:
            syscalls.madvise(address, _HUGE_PAGE_BYTES, syscalls.MADV_COLLAPSE)
        except OSError:
            continue  # the kernel has no free huge page, or does not support them

        collapsed += 1

    return collapsed
