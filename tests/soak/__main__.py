"""`make soak`: thousands of mixed runs in one host process, one in ten hostile; then everything is counted.

The exit code is 0 when no result was wrong and the process and the machine hold what they held before, within five
hundredths; 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.soak import open_resources, runs

from fumehood import AsyncSandbox
from fumehood.assemble import local_backend
from fumehood.engine import supervisor
from fumehood.portal import call, shared_portal

# So many calls share a sandbox before it is replaced.
_CALLS_OF_A_SANDBOX = 40
# How long a run may take: the limits of its calls, and what the promise allows on top.
_RUN_SECONDS = 60.0
_SETTLE_SECONDS = 60.0
_TOLD = 20
_GIVEN_UP = "given up"
_REMEMBERED = 50
_REMEMBERED_BYTES = 1 << 16


class Soak:
    """One soak.

    Args:
        seed: Decides which runs come, and in which order.
        lanes: How many go on at once.
    """

    def __init__(self, seed: int, lanes: int) -> None:
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._lanes = lanes
        self._decks: dict[str, Iterator[object]] = {}

    async def carry_out(self, count: int, say_progress: bool) -> None:
        """Does so many runs."""
        left = iter(range(count))
        begun, before = time.monotonic(), self.done.total()

        async def lane() -> None:
            while any(True for _ in itertools.islice(left, 1)):
                async with AsyncSandbox() as sandbox:
                    await self._one(sandbox)

                    for _ in itertools.islice(left, _CALLS_OF_A_SANDBOX - 1):
                        await self._one(sandbox)

        async def progress() -> None:
            while True:
                await asyncio.sleep(5)
                done, seconds = self.done.total() - before, time.monotonic() - begun
                print(f"{done} of {count} runs, {seconds:.0f} s, {len(self.wrong)} wrong", flush=True)

        telling = asyncio.ensure_future(progress()) if say_progress else None
        try:
            await asyncio.gather(*(lane() for _ in range(self._lanes)))
        finally:
            if telling is not None:
                telling.cancel()

    async def _one(self, sandbox: AsyncSandbox) -> None:
        kind = self._dice.random()

        if kind < 0.1:
            name = self._next("hostile", [*runs.HOSTILE, "a killed checkpoint"])
            work = runs.killed_checkpoint() if name == "a killed checkpoint" else runs.hostile(name)
        elif kind < 0.2:
            name = _GIVEN_UP
            work = runs.given_up(sandbox, random.Random(self._dice.random()))
        else:
            ordinary = self._dice.choice(runs.ORDINARY)
            name = ordinary.__name__
            work = ordinary(sandbox, random.Random(self._dice.random()))

        try:
            async with asyncio.timeout(_RUN_SECONDS):
                problem = await work
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"

        self.done[name] += 1

        if problem is not None:
            self.wrong.append(f"{name}: {problem}")

    def _next(self, kind: str, names: list[str]) -> str:
        """All of a kind come, in an order of dice, before one comes again."""
        deck = self._decks.get(kind)
        found = next(deck, None) if deck is not None else None

        if found is None:
            self._decks[kind] = deck = iter(self._dice.sample(names, len(names)))
            found = next(deck)

        return str(found)


def remember_little() -> None:
    """Lets the host keep the ends and the audit records of fewer sandboxes than it otherwise does.

    Both are bounded, by 10,000 and by 16 MiB. Bounded lower they are full before anything is counted, and what grows
    afterwards is something else.
    """
    supervisor._REMEMBERED = _REMEMBERED
    host = local_backend()._supervisor
    host.records._ended._max_bytes = _REMEMBERED_BYTES


async def _settled(before: dict[str, int] | None) -> dict[str, int]:
    """Counts until there is what there was, or for as long as the kernel may take to give back."""
    loop = shared_portal().loop
    deadline = time.monotonic() + _SETTLE_SECONDS

    while True:
        await asyncio.to_thread(call, local_backend().wait_warm)
        now = await asyncio.to_thread(open_resources.count, loop)

        if before is None or time.monotonic() > deadline:
            return now

        # Memory comes back at once or not at all.
        if all(
            name == open_resources.MEMORY or open_resources.is_as_before(now[name], was)
            for name, was in before.items()
        ):
            return now

        await asyncio.sleep(0.05)


async def _soak(options: argparse.Namespace) -> int:
    print(f"seed {options.seed}", flush=True)
    remember_little()
    soak = Soak(options.seed, options.lanes)
    # What is made once and kept: templates, threads, caches, the memory of all of them.
    await soak.carry_out(options.warm_up, say_progress=False)
    before = await _settled(None)
    begun = time.monotonic()
    await soak.carry_out(options.runs, say_progress=not options.quiet)
    seconds = time.monotonic() - begun
    now = await _settled(before)

    for problem in soak.wrong[:_TOLD]:
        print("wrong:", problem)

    hostile = sum(soak.done[name] for name in (*runs.HOSTILE, "a killed checkpoint"))
    given_up = soak.done[_GIVEN_UP]
    print(f"\n{options.runs} runs in {seconds:.0f} s, after {options.warm_up}")
    print(f"of all, {hostile} were hostile, and {given_up} calls were given up at a random moment")
    slack = {open_resources.MEMORY: options.memory_slack}
    print(open_resources.table(before, now, len(soak.wrong), slack))
    held = all(
        open_resources.is_as_before(now[name], was, slack.get(name, 0.05)) for name, was in before.items()
    )
    return 0 if held and not soak.wrong else 1


def main() -> int:
    """Soak, and say what came of it."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="how many (10,000)")
    parser.add_argument(
        "--warm-up", type=int, default=2000, help="how many before anything is counted (2,000)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="which ones; one of dice")
    parser.add_argument("--lanes", type=int, default=4, help="how many at once (4)")
    slack = "by how much of itself the memory may change (0.05); short soaks are still filling what is kept"
    parser.add_argument("--memory-slack", type=float, default=0.05, help=slack)
    parser.add_argument("--quiet", action="store_true", help="no line about every five seconds")
    options = parser.parse_args()
    os.environ.setdefault("FUMEHOOD_POOL_SIZE", "2")
    return asyncio.run(_soak(options))


if __name__ == "__main__":
    sys.exit(main())
