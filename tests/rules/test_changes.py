"""Changes that users notice are written down: a file each in `changes/`, and a section for each version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
KINDS = [kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]]


def test_each_fragment_has_a_name_and_a_kind():
    """Towncrier would not know where to put another one."""
    wrong = [
        path.name
        for path in (ROOT / "changes").iterdir()
        if path.name != "README.md" and not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", path.name)
    ]
    assert wrong == [], f"name them NAME.KIND.md, with a KIND of {KINDS}"


def test_each_fragment_is_short():
    """One to three sentences: what more there is to say is in the guides."""
    long = [path.name for path in (ROOT / "changes").glob("*.*.md") if len(path.read_text().split()) > 120]
    assert long == []


def test_the_kinds_are_explained():
    """In the order of the sections that they become."""
    assert re.findall(r"^\| `(\w+)` \|", (ROOT / "changes" / "README.md").read_text(), re.MULTILINE) == KINDS


def test_the_first_section_of_the_changelog_is_this_version():
    """Fragments are about the version after it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert versions[0][0] == PROJECT["project"]["version"]
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE)), "a version and its date"
