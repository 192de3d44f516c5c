"""How a message is damaged: bytes, lengths, pieces, and values that parsers have stumbled over before."""

from __future__ import annotations

import random

PIECES = (
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"9" * 30,
    b"9" * 5000,
    b"18446744073709551616",
    b"-9223372036854775809",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'""',
    b"[" * 600,
    b'{"a":' * 300,
    b'{"a":1,"a":2}',
    b"x" * 5000,
    b"%00",
    b"@",
    b"\\",
    b"[::1]",
    b"--",
)
_NUMBERS = (
    0,
    1,
    2,
    7,
    255,
    256,
    65_535,
    1 << 20,
    (1 << 20) + 1,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Returns a message with one to four faults."""
    changed = bytearray(data)

    for _ in range(dice.randint(1, 4)):
        _change(dice, changed)

    return bytes(changed)


def _change(dice: random.Random, data: bytearray) -> None:
    at = dice.randrange(len(data) + 1)

    match dice.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        case 1 if at < len(data):
            data[at] = dice.randrange(256)
        case 2:
            data[at:at] = dice.choice(PIECES)
        case 3:
            del data[at : at + dice.randint(1, 12)]
        case 4:
            data[at:at] = data[dice.randrange(len(data) + 1) :][: dice.randint(1, 40)]
        case 5:
            size = dice.choice((1, 2, 4, 8))
            number = dice.choice(_NUMBERS) & ((1 << 8 * size) - 1)
            data[at : at + size] = number.to_bytes(size, dice.choice(("big", "little")))
        case 6:
            del data[at:]
        case _:
            other = dice.randrange(len(data) + 1)
            low, high = sorted((at, other))
            data[low:high] = dice.choice(PIECES)
