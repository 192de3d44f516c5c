"""Writes docs/scorecard.md from a card of this machine and the outcome of the tests; `make scorecard` runs it.

It runs `fumehood doctor --attack --json` and, by pytest, every test that carries the id of a row; five minutes on a
quiet machine. Where bubblewrap is not installed its column says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fumehood.scorecard.card import CAPS, COLUMNS, WEIGHTS, Grade, grade
from fumehood.scorecard.rows import GROUPS, ROWS, SEVERITIES

PAGE = Path(__file__).parent / "scorecard.md"
_HEADINGS = {"fumehood": "fumehood", "bubblewrap": "bubblewrap", "subprocess": "a plain subprocess"}
_NAME = re.compile(r"^test_((?:[a-z]\d\d_)+)")

_HEAD = """# Scorecard

Written by `make scorecard`; do not edit. `fumehood doctor --attack` makes the card of your own machine: the rows that
do no harm where they succeed, in half a minute. The [threat model](threat-model.md) says what is promised, this page
what was tried, and what came of it.

- **PASS**: nothing got through, in any kind of process (a context, a child of it, a command, a terminal, a background
  task), although the same program gets through without a sandbox.
- **FAIL**: something got through. What, stands below the table.
- **N/A**: it could not be told; the reason stands below too. Often the control did not succeed either, so that a PASS
  would prove nothing.
- **by an option**, below a table: the same attempt with a setting of ours that is not the default. It makes neither the
  verdict nor the grade better.
- **-**: not tried there. Rows without probes are attacks that could do harm, or that need a server; the tests make them
  against fumehood alone, each with a control of its own.

A system call passes only when it is refused before the kernel looks at its arguments. Code that reaches the kernel
meets its bugs, whatever it would answer.
"""
_BUBBLEWRAP = """
bubblewrap is a tool to build sandboxes with: what it is told decides. Here it was told all that its options offer
(`--unshare-all --new-session --die-with-parent --clearenv --cap-drop ALL --uid 1000`, the system read-only, memory for
the rest), and nothing that others must bring: no system call filter and no control groups.
"""


@dataclass
class Tried:
    """What the tests that carry the id of one row have come to."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    @property
    def outcome(self) -> str:
        """PASS, FAIL, N/A, or - when there is none."""
        if self.failed:
            return "FAIL"

        return "PASS" if self.passed else "N/A" if self.skipped else "-"


def read_tests(path: str) -> dict[str, Tried]:
    """Reads what pytest has written, by the ids of rows."""
    found = {row.id: Tried() for row in ROWS}

    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - pytest has just written it
        named = _NAME.match(case.get("name", ""))

        for row in named[1].strip("_").upper().split("_") if named else ():
            _count(case, found.setdefault(row, Tried()))

    return found


def _count(case: ElementTree.Element, tried: Tried) -> None:
    skipped = case.find("skipped")
    parts = case.get("classname", "").split(".")
    tried.files.update(part for part in parts if part.startswith("test_"))

    if case.find("failure") is not None or case.find("error") is not None:
        tried.failed.append(case.get("name", ""))
    elif skipped is not None:
        tried.skipped.append(skipped.get("message", ""))
    else:
        tried.passed += 1


def page(card: dict[str, Any], tests: dict[str, Tried]) -> str:
    """The whole page."""
    verdicts = {row["id"]: row["verdicts"] for row in card["rows"]}
    parts = [
        _HEAD,
        _BUBBLEWRAP.strip(),
        "",
        "## Grades",
        *_grades(card, verdicts, tests),
        "",
        "## The machine",
        *_machine(card),
    ]

    for group, name in GROUPS.items():
        parts += ["", f"## {group}: {name}", *_table(group, verdicts, tests)]
        parts += _reasons(group, verdicts, tests)

    parts += ["", "## Work that must go on", *_work(card), "", "## How a grade is made", *_weights()]
    return "\n".join(parts) + "\n"


def _outcome(row: str, verdicts: dict[str, Any], tests: dict[str, Tried]) -> str:
    """The verdict of ours: by probes where there are some, and no better than by its tests."""
    by_tests = tests[row].outcome
    probed = verdicts.get(row, {}).get("fumehood", {}).get("outcome")
    return by_tests if probed is None or by_tests == "FAIL" else str(probed)


def _grades(card: dict[str, Any], verdicts: dict[str, Any], tests: dict[str, Tried]) -> Iterator[str]:
    everything = grade({row.id: _outcome(row.id, verdicts, tests) for row in ROWS})  # type: ignore[misc]
    yield "| | grade | score | hold | do not | could not be tried |"
    yield "|---|---|---|---|---|---|"
    yield _grade("fumehood, all rows", everything)

    for column in COLUMNS:
        if column in card["grade"]:
            yield _grade(f"{_HEADINGS[column]}, by `doctor --attack`", Grade(**card["grade"][column]))


def _grade(name: str, said: Grade) -> str:
    failed = sum(map(len, said.failed.values()))
    return f"| {name} | **{said.letter}** | {said.score:.1%} | {said.passed} | {failed} | {said.not_applicable} |"


def _machine(card: dict[str, Any]) -> Iterator[str]:
    machine = card["machine"]
    yield "| | |"
    yield "|---|---|"
    yield f"| kernel | {machine['kernel']}, {machine['architecture']} |"
    yield f"| run as | {machine['user']} |"
    yield f"| security modules | {machine['lsms']} |"
    yield f"| Landlock | ABI {machine['landlock_abi']} |"
    yield f"| control groups | {machine['cgroups']} |"
    yield f"| isolation level | `{machine['level']}`; missing: {', '.join(machine['missing']) or 'nothing'} |"
    yield f"| policy of system calls | sha256 `{machine['policy_sha256']}` |"
    yield f"| fumehood | {machine['version']} |"

    for column, why in card["absent"].items():
        yield f"| {column} | {why} |"


def _table(group: str, verdicts: dict[str, Any], tests: dict[str, Tried]) -> Iterator[str]:
    yield f"| row | class | property | {' | '.join(_HEADINGS.values())} | tests |"
    yield f"|---|---|---|{'---|' * (len(_HEADINGS) + 1)}"

    for row in ROWS:
        if row.id[0] != group:
            continue

        others = [verdicts.get(row.id, {}).get(column, {}).get("outcome", "-") for column in COLUMNS[1:]]
        cells = [_outcome(row.id, verdicts, tests), *others, _told(tests[row.id])]
        yield f"| {row.id} | {row.severity} | {row.words} | {' | '.join(cells)} |"


def _told(tried: Tried) -> str:
    if tried.outcome == "-":
        return "-"

    count = tried.passed + len(tried.failed)
    skipped = f", {len(tried.skipped)} skipped" if tried.skipped else ""
    return f"{count}{skipped} in {', '.join(f'`{name}`' for name in sorted(tried.files))}"


def _reasons(group: str, verdicts: dict[str, Any], tests: dict[str, Tried]) -> Iterator[str]:
    lines = []

    for row in ROWS:
        if row.id[0] != group:
            continue

        for column in COLUMNS[:-1]:
            said = verdicts.get(row.id, {}).get(column, {})

            if said.get("reason"):
                lines.append(f"- {row.id}, {column}: {_plain(said['reason'])}")

            if said.get("remark"):
                lines.append(f"- {row.id}, {column}, by an option: {_plain(said['remark'])}")

        if tests[row.id].outcome == "N/A":
            lines.append(f"- {row.id}: {_plain(tests[row.id].skipped[0])}")

        lines += [f"- {row.id}, fumehood: `{name}` fails" for name in tests[row.id].failed]

    if lines:
        yield ""
        yield from lines


def _plain(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _work(card: dict[str, Any]) -> Iterator[str]:
    columns = [column for column in COLUMNS if column in card["work"]]
    yield "A sandbox that runs nothing would pass every row."
    yield ""
    yield f"| | {' | '.join(_HEADINGS[column] for column in columns)} |"
    yield f"|---|{'---|' * len(columns)}"

    for name in card["work"]["subprocess"]:
        cells = [
            _plain(card["work"][column].get(name, card["work"][column].get("all", "-"))) for column in columns
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _weights() -> Iterator[str]:
    yield "Passed weight by applicable weight; N/A counts for neither. A failure of a class caps the grade, and R01 untried at B."
    yield ""
    yield "| class | means | weight | a failure caps at |"
    yield "|---|---|---|---|"

    for severity, weight in WEIGHTS.items():
        yield f"| {severity} | {SEVERITIES[severity]} | {weight} | {CAPS.get(severity, '-')} |"


def make() -> str:
    """Attacks this machine, runs the tests that carry ids of rows, and returns the page."""
    root = PAGE.parents[1]
    words = [sys.executable, "-m", "fumehood", "doctor", "--attack", "--json"]
    card = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout)
    chosen = " or ".join(row.id.lower() for row in ROWS)

    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/tests.xml"
        options = ["-q", "-k", chosen, "--junitxml", report, "--numprocesses", "2", "--dist", "loadfile"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *sys.argv[1:]], cwd=root)
        return page(card, read_tests(report))


if __name__ == "__main__":
    PAGE.write_text(make(), encoding="utf-8")
