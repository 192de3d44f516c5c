"""Judge what a model wrote for 164 small functions, each program in a sandbox of its own, and count pass@k.

    python examples/pass_at_k/pass_at_k.py                         # a scripted model, five tries each
    python examples/pass_at_k/pass_at_k.py --samples answers.jsonl # lines with "task_id" and "completion"

`FUMEHOOD_URL` and `FUMEHOOD_API_KEY` send the programs to a server or a cluster: nothing else changes.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import comb
from pathlib import Path
from typing import Any

from fumehood import Run, RunOutcome, run_many

PROBLEMS = Path(__file__).parent / "problems.jsonl"
LIMITS = {"wall_seconds": 3, "memory_bytes": 256 << 20, "processes": 32}
# What models get wrong: nothing returned, names that are not there, loops without end, code that is cut off.
MISTAKES = ("    pass\n", "    return answer\n", "    while True:\n        pass\n", "    return (\n")
Sample = tuple[str, str]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def scripted(problem: dict[str, Any], tries: int) -> Iterator[Sample]:
    """Yield what a middling model would write: the more, the higher a number that the task has by chance."""
    for number in range(tries):
        chance = zlib.crc32(f"{problem['task_id']} {number}".encode()) % 100
        is_right = chance < 20 + zlib.crc32(problem["task_id"].encode()) % 80
        mistake = MISTAKES[chance % len(MISTAKES)]
        yield problem["task_id"], problem["canonical_solution"] if is_right else mistake


def program(problem: dict[str, Any], completion: str) -> Run:
    """Put a completion and its test together."""
    code = f"{problem['prompt']}{completion}\n{problem['test']}\ncheck({problem['entry_point']})\n"
    return Run(code=code, limits=LIMITS)


def verdict(outcome: RunOutcome) -> str:
    """Return what became of a program in a word."""
    if outcome.failure is not None:
        raise outcome.failure

    error = outcome.execution.error
    return "passed" if error is None else error.name if error.kind == "exception" else error.kind


def pass_at(count: int, right: int, tries: int) -> float:
    """Estimate without bias how likely one of so many tries passes, when `right` of `count` did (Chen et al., 2021)."""
    return 1.0 - comb(count - right, tries) / comb(count, tries)


def main() -> None:
    """Judge all samples and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=Path, help="what a model wrote; otherwise a scripted one writes")
    parser.add_argument("--tries", type=int, default=5, help="how often the scripted model tries each")
    parser.add_argument("--limit", type=int, help="only so many problems")
    options = parser.parse_args()
    problems = {one["task_id"]: one for one in read_lines(PROBLEMS)[: options.limit]}
    samples: list[Sample] = (
        [(one["task_id"], one["completion"]) for one in read_lines(options.samples)]
        if options.samples
        else [sample for one in problems.values() for sample in scripted(one, options.tries)]
    )
    samples = [sample for sample in samples if sample[0] in problems]
    verdicts: dict[str, list[str]] = defaultdict(list)

    for outcome in run_many([program(problems[name], completion) for name, completion in samples]):
        verdicts[samples[outcome.index][0]].append(verdict(outcome))

    print(f"{len(problems)} problems, {len(samples)} programs")

    for word, count in Counter(word for words in verdicts.values() for word in words).most_common():
        print(f"{count:6} {word}")

    least = min(map(len, verdicts.values()))

    for tries in sorted({1, 2, 5, 10} & set(range(1, least + 1))):
        chances = [pass_at(len(words), words.count("passed"), tries) for words in verdicts.values()]
        print(f"pass@{tries:<2} {sum(chances) / len(problems):6.1%}")


if __name__ == "__main__":
    main()
