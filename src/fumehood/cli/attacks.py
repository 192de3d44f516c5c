"""`fumehood doctor --attack`: runs hostile programs in this machine's own sandboxes, and prints a report card.

Only attacks that do no harm when they succeed are run. It prints the verdicts and, with `--json`, the whole card.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys

from fumehood.cli.terminal import note
from fumehood.scorecard.card import CONTROL, Card
from fumehood.scorecard.rows import GROUPS, ROWS, SEVERITIES, Row
from fumehood.text import visible_line

# A secret in the environment of this process, which no sandbox may ever see.
_CANARY = "FUMEHOOD_DOCTOR_CANARY"
_OURS = "fumehood"
_WIDTH = 100


def attack(*, as_json: bool) -> int:
    """Make the card, print it, and return the exit code: 0 unless a row that caps the grade fails for fumehood."""
    secret = f"canary-{secrets.token_hex(16)}"
    # Set before the first sandbox is made, which must not have it.
    os.environ[_CANARY] = secret
    # Imported late: it is a heavy part that no other command needs.
    from fumehood.scorecard.run import run_scorecard

    card = run_scorecard(secret, dict(os.environ), _show_progress)
    _end_progress()
    print(json.dumps(card.to_dict(), indent=2) if as_json else _table(card))
    return int(any(severity in card.grade().failed for severity in ("E", "L", "X", "A", "H")))


def _show_progress(what: str) -> None:
    if not sys.stderr.isatty():
        if not what.startswith(("bubblewrap: ", f"{CONTROL}: ", f"{_OURS}: ")):
            note(f"{what} ...")

        return

    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{visible_line(what, max_characters=width)[:width].ljust(width)}")
    sys.stderr.flush()


def _end_progress() -> None:
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{' ' * width}\r")


def _table(card: Card) -> str:
    columns = list(card.verdicts)
    head = ["row", "", "property".ljust(58), *columns]
    lines = ["  ".join(head).rstrip()]

    for row in ROWS:
        if row.harmless:
            lines += _row(card, row, columns)

    lines.append("")
    lines += [_work(card, column) for column in columns]
    lines += [f"{column}: {why}" for column, why in card.absent.items()]
    return "\n".join([*lines, "", *_facts(card), "", *_grades(card)])


def _row(card: Card, row: Row, columns: list[str]) -> list[str]:
    cells = [card.verdicts[column][row.id].outcome.ljust(len(column)) for column in columns]
    lines = ["  ".join([row.id, row.severity, row.words[:58].ljust(58), *cells]).rstrip()]
    verdict = card.verdicts[_OURS][row.id]

    if verdict.outcome != "PASS":
        lines.append(f"        -> {visible_line(verdict.reason, max_characters=400)}")

    if verdict.remark:
        lines.append(f"        -> {visible_line(verdict.remark, max_characters=400)}")

    return lines


def _work(card: Card, column: str) -> str:
    done = card.work[column]
    wrong = [f"{name} ({answer})" for name, answer in done.items() if answer != "ok"]
    said = f"ordinary work in {column}: {len(done) - len(wrong)} of {len(done)} kinds go on"
    return visible_line(said + (f"; not {', '.join(wrong)}" if wrong else ""), max_characters=600)


def _facts(card: Card) -> list[str]:
    machine = card.machine
    return [
        f"kernel {machine.kernel} ({machine.architecture}), as {machine.user}, fumehood {machine.version}",
        f"security modules: {machine.lsms}; Landlock ABI {machine.landlock_abi}",
        f"isolation level: {machine.level}",
        *(f"  {visible_line(layer, max_characters=_WIDTH)}" for layer in machine.missing),
        f"policy of system calls: sha256 {machine.policy_sha256}",
    ]


def _grades(card: Card) -> list[str]:
    lines = []

    for column in card.verdicts:
        grade = card.grade(column)
        lines.append(
            f"{column}: grade {grade.letter} ({grade.score:.1%} of the weight; {grade.passed} hold, "
            f"{sum(map(len, grade.failed.values()))} do not, {grade.not_applicable} could not be tried)"
        )
        lines += [f"  {SEVERITIES[severity]}: {', '.join(ids)}" for severity, ids in grade.failed.items()]

    untried = [row for row in ROWS if not row.harmless]
    groups = sorted({GROUPS[row.id[0]].lower() for row in untried})
    return [
        *lines,
        f"{len(untried)} more rows could do harm or need a server, and are tried by the tests: {', '.join(groups)}.",
        f"{card.seconds:.0f} s.",
    ]
