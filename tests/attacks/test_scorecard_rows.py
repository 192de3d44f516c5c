"""Every row of the scorecard has a test that carries its id in its name, or a reason why it cannot have one."""

from __future__ import annotations

import re
from pathlib import Path

from fumehood.scorecard.card import CAPS, WEIGHTS, grade
from fumehood.scorecard.host_checks import HOST_CHECKS
from fumehood.scorecard.probes import PROBES
from fumehood.scorecard.rows import GROUPS, ROWS, SEVERITIES

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "scorecard.md"
# Rows that no test can be named after, and why.
REASONS: dict[str, str] = {}
_NAME = re.compile(r"^\s*(?:async )?def test_((?:[a-z]\d\d_)+)", re.MULTILINE)


def named_rows() -> dict[str, set[str]]:
    """The ids in the names of test functions, each with the files that have it."""
    found: dict[str, set[str]] = {}

    for path in TESTS.rglob("test_*.py"):
        if {"node_modules", "packages"} & set(path.relative_to(TESTS).parts):
            continue

        for ids in _NAME.findall(path.read_text(encoding="utf-8")):
            for row in ids.strip("_").upper().split("_"):
                found.setdefault(row, set()).add(path.name)

    return found


def test_every_row_has_a_test():
    """None is only promised."""
    assert sorted({row.id for row in ROWS} - set(named_rows()) - set(REASONS)) == []


def test_no_reason_is_out_of_date():
    """What has a test needs no excuse."""
    assert sorted(set(REASONS) & set(named_rows())) == []


def test_what_is_harmless_is_tried_on_the_users_machine():
    """Each harmless row has a probe or a check of the host, and nothing else has."""
    tried = {probe.row for probe in PROBES} | set(HOST_CHECKS)
    assert tried == {row.id for row in ROWS if row.harmless}


def test_the_rows_are_complete():
    """As many of each group as the threat model counts, each once, with a class that has a weight."""
    counted = {group: sum(row.id[0] == group for row in ROWS) for group in GROUPS}
    assert counted == {"K": 17, "F": 11, "P": 7, "N": 14, "R": 11, "H": 11, "W": 10, "T": 6, "X": 16}
    assert len({row.id for row in ROWS}) == len(ROWS) == 103
    assert {row.severity for row in ROWS} <= set(SEVERITIES) == set(WEIGHTS)


def test_the_page_has_every_row():
    """`docs/scorecard.md` says something of each; what it says of the machine is its own."""
    page = PAGE.read_text(encoding="utf-8")
    written = re.findall(r"^\| ([A-Z]\d\d) \| ([A-Z]) \| ([^|]+) \|", page, re.MULTILINE)
    wanted = [(row.id, row.severity, row.words) for row in ROWS]
    assert [(row, severity, words.strip()) for row, severity, words in written] == wanted, (
        "run: make scorecard"
    )


def test_a_failure_caps_the_grade():
    """Whatever the score: an escape is D, data carried out C, the host's service B; the rest only counts."""
    passing = {row.id: "PASS" for row in ROWS}
    assert grade(passing).letter == "A"
    assert grade({**passing, "K05": "FAIL"}).letter == CAPS["E"] == "D"
    assert grade({**passing, "F03": "FAIL"}).letter == grade({**passing, "T01": "FAIL"}).letter == "D"
    assert grade({**passing, "N01": "FAIL"}).letter == "C"
    assert grade({**passing, "R01": "FAIL"}).letter == "B"
    assert grade({**passing, "R01": "N/A"}).letter == "B"
    assert grade({**passing, "P03": "FAIL"}).letter == "A"
    assert grade({**passing, "T04": "FAIL", "K01": "N/A"}).failed == {"S": ("T04",)}
    assert grade({row.id: "N/A" for row in ROWS}).letter == "-"
    assert grade({row.id: "FAIL" for row in ROWS}).letter == "E"


def test_the_score_is_of_what_could_be_tried():
    """Weights of what holds by weights of what was tried; N/A counts for neither."""
    said = grade({"K01": "PASS", "T04": "FAIL", "F11": "N/A"})
    assert (said.score, said.passed, said.not_applicable) == (10 / 12, 1, 1)
