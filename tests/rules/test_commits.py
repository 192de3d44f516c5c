"""The subject of a commit fits a line of `git log`: at most 72 characters, the reasons are in the body."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.image_layouts import needs_program
from tests.rules.conftest import ROOT

MOST_CHARACTERS = 72
# The rule holds from here on; of the commits before, some are longer.
BASE = "47026ca2823af3c9a6b4f1840de300c79f94b585"


def subjects_since_base(folder: Path) -> list[str]:
    """The subjects after the base, the newest first.

    Of a shallow checkout without the base only the newest: those below may be older than the rule. Where nothing of our
    history is (no git, a source distribution, a copy in another repository), there is none to judge.
    """
    if shutil.which("git") is None or _git(folder, "rev-parse", "--show-toplevel") != str(folder.resolve()):
        return []

    if _git(folder, "merge-base", BASE, "HEAD") == BASE:
        commits = [f"{BASE}..HEAD"]
    elif _git(folder, "rev-parse", "--is-shallow-repository") == "true":
        commits = ["--max-count=1", "HEAD"]
    else:
        return []

    return _git(folder, "log", "--no-merges", "--format=%s", *commits).splitlines()


def too_long(subjects: list[str]) -> list[str]:
    return [one for one in subjects if len(one) > MOST_CHARACTERS]


def test_subjects_fit_a_line():
    assert too_long(subjects_since_base(ROOT)) == []


def test_a_long_subject_is_found_also_in_a_shallow_checkout(tmp_path):
    """Control: in a checkout of one commit, whose base is missing; and nothing where the history is another's."""
    needs_program("git")
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    whole.mkdir()
    _git(whole, "init", "-q")

    for subject in ("area: short", "area: " + "long " * 20):
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        _git(whole, *who, "commit", "-q", "--allow-empty", "--no-verify", "-m", subject)

    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{whole}", shallow], check=True, timeout=60)
    assert too_long(subjects_since_base(whole)) == []
    assert len(too_long(subjects_since_base(shallow))) == 1


def _git(folder: Path, *words: str) -> str:
    """What git prints; nothing when it fails, as it does where there is no repository."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""
