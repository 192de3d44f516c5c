"""`make fuzz`: 100,000 mutated messages through everything of the host that reads what somebody else wrote.

Begins from real traffic, recorded at the start, and from the corpus of the wire's tests. The exit code is 0 when no
reader raised anything but a refusal of its own kind and the memory stayed bounded; else 1, with message and seed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import secrets
import sys
import traceback
import tracemalloc
from collections import Counter

from tests.fuzz.recording import record
from tests.fuzz.targets import Target, targets

# Of all mutants together: what one may take while it is read, and what may be left of all.
PEAK_BYTES = 48 << 20
LEFT_BYTES = 8 << 20


async def fuzz(cases: int, seed: int, *, say: bool) -> int:
    """Feeds every target its share; returns the exit code."""
    faults: list[str] = []
    # What a parser of others writes down about each refusal is of no use here.
    logging.disable(logging.WARNING)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(repr(context)))
    chosen = targets(await record())
    tracemalloc.start()
    try:
        for target in chosen:
            seen, problem = await _feed(target, cases // len(chosen), seed)
            faults += problem

            if say:
                shown = ", ".join(f"{word} {count}" for word, count in seen.most_common())
                print(f"{target.name}: {seen.total()} of {len(target.seeds)} seeds: {shown}", flush=True)

        left_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)

    if left_bytes > LEFT_BYTES or peak_bytes > PEAK_BYTES:
        faults.append(f"memory: {left_bytes:,} bytes left, {peak_bytes:,} at the peak")

    for fault in faults:
        print(f"FAULT (seed {seed}):\n{fault}")

    print(f"{cases} cases, seed {seed}: {len(faults)} faults; {peak_bytes:,} bytes at the peak")
    return 1 if faults else 0


async def _feed(target: Target, cases: int, seed: int) -> tuple[Counter[str], list[str]]:
    # Each by its own dice: a target can be repeated without the others.
    dice = random.Random(f"{seed} {target.name}")
    seen: Counter[str] = Counter()
    problems: list[str] = []

    for _ in range(cases):
        try:
            seen[await target.case(dice)] += 1
            # What reads does not always wait: the loop closes behind it what was left half-way.
            await asyncio.sleep(0)
        except Exception:
            problems.append(traceback.format_exc())

            if len(problems) == 3:
                break

    return seen, problems


def main() -> int:
    """Fuzz, and say what came of it."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="which ones; one of dice")
    options = parser.parse_args()
    return asyncio.run(fuzz(options.cases, options.seed, say=True))


if __name__ == "__main__":
    sys.exit(main())
