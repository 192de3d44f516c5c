"""The scorecard itself: what it finds here, and that it finds holes where there are some."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood.cli.attacks import attack
from fumehood.scorecard.card import CONTROL, Card, MachineFacts, Verdict
from fumehood.scorecard.places import ProgramPlace, bubblewrap
from fumehood.scorecard.rows import ROWS

HARMLESS = {row.id for row in ROWS if row.harmless}
# Every row in every kind of process, on a machine that may be busy with other tests.
_MOST_SECONDS = 300
pytestmark = pytest.mark.timeout(_MOST_SECONDS + 10)
# What docs/threat-model.md says of it: forks of a template have one hash seed and one address layout.
KNOWN = {"T04"}


@pytest.fixture(scope="module")
def card() -> dict:
    """A card of this machine, by the command that users run."""
    words = [sys.executable, "-m", "fumehood", "doctor", "--attack", "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=_MOST_SECONDS)
    found = json.loads(done.stdout)
    assert done.returncode == int(bool(known_here(found) - KNOWN)), found["grade"]
    return found


def known_here(card: dict) -> set[str]:
    """What fails, as it is documented: without ids of their own all sandboxes share one user of the host."""
    shares_one_user = any(layer.startswith("identity") for layer in card["machine"]["missing"])
    return KNOWN | {"T02"} if shares_one_user else KNOWN


def by_row(card: dict, column: str) -> dict[str, dict]:
    return {row["id"]: row["verdicts"][column] for row in card["rows"]}


def test_nothing_gets_through_here(card):
    """In no kind of process; and as root every row can be told."""
    verdicts = by_row(card, "fumehood")
    assert set(verdicts) == HARMLESS
    got_through = {row: said["reason"] for row, said in verdicts.items() if said["outcome"] == "FAIL"}
    assert got_through.keys() <= known_here(card), got_through

    if os.geteuid() == 0 and not card["machine"]["missing"]:
        assert {row: said["reason"] for row, said in verdicts.items() if said["outcome"] == "N/A"} == {}
        assert card["grade"]["fumehood"]["letter"] == "A"


def test_what_an_option_holds_is_reported_and_counts_nowhere(card):
    """T04 fails as it is by default; that it holds with interpreters of their own stands beside it."""
    said = by_row(card, "fumehood")["T04"]
    assert (said["outcome"], said["remark"]) == ("FAIL", "PASS with own_interpreter")
    assert card["grade"]["fumehood"]["failed"]["S"] == ["T04"]
    told = {row["id"] for row in card["rows"] for verdict in row["verdicts"].values() if verdict["remark"]}
    assert told == {"T04"}


def test_everything_gets_through_without_a_sandbox(card):
    """The control: a card that nothing can fail would be worth nothing."""
    control = by_row(card, CONTROL)
    plain = {row for row, said in control.items() if said["outcome"] != "FAIL"}

    if os.geteuid() == 0:
        assert plain == {"K16"}  # it makes its own

    assert card["grade"][CONTROL]["letter"] == "E"


def test_ordinary_work_goes_on(card):
    """Threads, processes, shared memory, loops, databases, drawings and packages, in every kind of process."""
    assert set(card["work"]["fumehood"].values()) == {"ok"}


def test_nothing_gets_through_for_an_ordinary_user():
    """Without root and without ranges of ids: what runs into the same walls, and what needs a control group is told."""
    folder = Path(__file__).resolve().parents[1] / "integration"
    code = (
        f"import json, sys\nsys.path.insert(0, {str(folder)!r})\nimport launching\n"
        "print(json.dumps(launching.run_scene('scorecard_scenes.what_gets_through', ordinary=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    got = json.loads(done.stdout)
    assert all("the layer 'cgroup memory' is not on" in reason for reason in got.pop("R01", []))
    assert got == {}


def test_what_the_card_was_made_on_is_reported(card):
    """Kernel, Landlock, control groups, and the very filter that is loaded."""
    machine = card["machine"]
    assert machine["kernel"] == os.uname().release
    assert len(machine["policy_sha256"]) == 64
    assert machine["cgroups"]
    assert isinstance(machine["landlock_abi"], int)


def test_bubblewrap_need_not_be_there(tmp_path, monkeypatch):
    """Where it is not installed its column is left out, and why is told."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bubblewrap(str(tmp_path)) is None


def test_a_probe_that_cannot_run_is_reported_as_such(tmp_path):
    """It has neither failed nor held."""
    place = ProgramPlace(CONTROL, str(tmp_path))
    place.write(
        "plan.json", json.dumps({"0": ["devices", ["/nowhere"]], "1": ["no_such_probe", []]}).encode()
    )
    said = place.probe("", "batch", f"{tmp_path}/attack/plan.json")
    assert said["0"]["found"]["mknod fifo"] == "ENOENT"
    assert "no_such_probe" in said["1"]["broken"]


def test_the_table_is_for_people(card, capsys, monkeypatch):
    """A line for each row, what got through, the machine, and the grade of each column."""
    from fumehood.cli import attacks
    from fumehood.scorecard import run

    monkeypatch.setattr(run, "run_scorecard", lambda *_: _as_card(card))
    assert attack(as_json=False) == int(bool(known_here(card) - KNOWN))
    shown = capsys.readouterr().out
    assert all(f"\n{row}  " in shown for row in HARMLESS)
    assert f"policy of system calls: sha256 {card['machine']['policy_sha256']}" in shown
    assert "fumehood: grade " in shown
    assert "        -> PASS with own_interpreter\n" in shown
    assert attacks._CANARY in os.environ
    monkeypatch.delenv(attacks._CANARY)


def _as_card(said: dict) -> object:
    columns = list(said["work"])
    machine = MachineFacts(**{**said["machine"], "missing": tuple(said["machine"]["missing"])})
    verdicts = {
        column: {row["id"]: Verdict(**row["verdicts"][column]) for row in said["rows"]} for column in columns
    }
    return Card(machine, verdicts, said["work"], said["absent"], said["seconds"])
