"""The next section of the changelog can be made from the fragments at any time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FRAGMENT = "`fumehood.Sandbox.run_code()` does more,\nin two lines."


def _towncrier(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "towncrier", "build", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_draft_is_made_of_the_fragments():
    """Of all that are there now."""
    draft = _towncrier("--draft", "--version", "next", folder=ROOT)
    assert draft.startswith("## next - ")

    for fragment in (ROOT / "changes").glob("*.*.md"):
        assert fragment.read_text(encoding="utf-8").split("\n")[0].strip() in draft, fragment.name


def test_a_release_puts_its_section_first_and_removes_the_fragments(tmp_path):
    """In a copy of what towncrier reads."""
    for name in ("pyproject.toml", "CHANGELOG.md", "tools/changelog.md.jinja", "changes/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    (tmp_path / "changes" / "more.feature.md").write_text(_FRAGMENT)
    (tmp_path / "changes" / "wrong.fix.md").write_text("It is right.")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    _towncrier("--yes", "--version", "0.2.0", "--date", "2027-01-02", folder=tmp_path)

    _, _, sections = (tmp_path / "CHANGELOG.md").read_text().partition("release notes start -->\n")
    assert sections.lstrip().startswith(
        "## 0.2.0 - 2027-01-02\n\n### Added\n\n- `fumehood.Sandbox.run_code()` does more,\n  in two lines.\n"
        "\n### Fixed\n\n- It is right.\n\n## 0.1.0 - "
    ), sections[:400]
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]
